"""Calls with one defect: right, returned as text, or delivered with wrong arguments: ``python bench/drift.py``.

The table is ``tests/parsing/mutants.py``. SGLang's parser is measured in the same run where it is installed, without
torch: ``pip install --no-deps sglang orjson partial-json-parser msgspec pybase64 ipython traitlets``. vLLM's cannot be
imported without torch and is named as not measured. Prints a table and writes ``bench/results/drift.json``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import sys
import types
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from strata_pack.parsing import OutputParser, parse
from tests.parsing.mutants import TOOLS, Mutant, one_call_mutants, two_call_mutants, verdict

Calls = list[tuple[str, Any]]
Reader = Callable[[str], Calls]

TABLES: dict[str, Callable[[], list[Mutant]]] = {"one call": one_call_mutants, "two calls": two_call_mutants}
GOALS = {"one call": (80, 4), "two calls": (65, 4)}
"""Percent right at least, percent wrong at most."""

DELTA = 4


def ours(text: str) -> Calls:
    """Return the calls that this parser delivers for a whole text."""
    return [(call.name, call.arguments) for call in parse(text, thinking=False, tools=TOOLS).calls]


def ours_streamed(text: str) -> Calls:
    """Return the same, in small deltas and with ``stream_tools``."""
    parser = OutputParser(thinking=False, tools=TOOLS, stream_tools=True)
    events = [event for at in range(0, len(text), DELTA) for event in parser.feed(text[at : at + DELTA])]
    events += parser.finish()
    return [(event.call.name, event.call.arguments) for event in events if event.kind == "tool_call" and event.call]


def sglang() -> Reader:
    """Return SGLang's parser for this format, imported without the package's own start, which needs torch."""
    root = importlib.util.find_spec("sglang")
    if root is None or not root.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sglang'")
    folder = Path(root.submodule_search_locations[0])
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.parent / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
    module = importlib.import_module("sglang.srt.function_call.qwen3_coder_detector")
    protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    tools = [protocol.Tool(**tool) for tool in TOOLS]

    def read(text: str) -> Calls:
        found = module.Qwen3CoderDetector().detect_and_parse(text, tools)
        return [(call.name, json.loads(call.parameters)) for call in found.calls]

    return read


PEERS: dict[str, Callable[[], Reader]] = {"sglang": sglang}
NOT_MEASURED = {"vllm": "its parsers cannot be imported without torch"}


def peers() -> tuple[dict[str, Reader], dict[str, str]]:
    """Return the readers that can be imported, and why the others cannot."""
    found: dict[str, Reader] = {}
    missing = dict(NOT_MEASURED)
    for name, load in PEERS.items():
        try:
            label = f"{name} {version(name)}"
        except PackageNotFoundError:
            missing[name] = "not installed"
            continue
        try:
            found[label] = load()
        except Exception as error:  # noqa: BLE001  whatever a foreign package raises at import
            missing[label] = f"cannot be imported here: {type(error).__name__}: {error}"
    return found, missing


def measure(reader: Reader, mutants: Sequence[Mutant]) -> dict[str, int]:
    """Return how many of ``mutants`` a reader reads right, gives back as text, and gets wrong."""
    verdicts: Counter[str] = Counter()
    for mutant in mutants:
        try:
            calls = reader(mutant.text)
        except Exception:  # noqa: BLE001  a peer that fails delivers nothing
            calls = []
        verdicts[verdict(mutant, calls)] += 1
    return {each: verdicts[each] for each in ("right", "text", "wrong")}


def main() -> int:
    """Measure, print, write; 1 if this parser misses a goal."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "drift.json")
    arguments.add_argument("--show", choices=["text", "wrong"], help="print the defects with this verdict")
    options = arguments.parse_args()
    logging.disable()  # a peer logs a line for every name it does not know
    found, missing = peers()
    readers: dict[str, Reader] = {"strata-pack": ours, "strata-pack, streamed": ours_streamed, **found}
    rows: list[dict[str, Any]] = []
    missed = False
    print(f"{'table':<12}{'parser':<28}{'mutants':>8}{'right':>8}{'text':>8}{'wrong':>8}{'right %':>9}{'wrong %':>9}")
    for table, load in TABLES.items():
        mutants = load()
        for name, reader in readers.items():
            counts = measure(reader, mutants)
            right, wrong = (100 * counts[each] / len(mutants) for each in ("right", "wrong"))
            rows.append({"table": table, "parser": name, "mutants": len(mutants), **counts})
            missed |= reader in (ours, ours_streamed) and (right < GOALS[table][0] or wrong > GOALS[table][1])
            numbers = "".join(f"{counts[each]:>8}" for each in ("right", "text", "wrong"))
            print(f"{table:<12}{name:<28}{len(mutants):>8}{numbers}{right:>9.1f}{wrong:>9.1f}")
        if options.show:
            for mutant in mutants:
                if verdict(mutant, ours(mutant.text)) == options.show:
                    print(f"  {options.show}: {mutant.defect}")
    for name, why in missing.items():
        print(f"{name}: not measured, {why}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "not_measured": missing}, indent=2) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
