"""Coverage-guided fuzzing of the output parser: ``python fuzz/parser.py [libFuzzer options] [corpus folder]``.

Needs the extra ``fuzz`` (atheris). Bytes become a text out of the pieces that matter to the parser and any characters,
cuts, and options; every invariant of ``tests/parsing/invariants.py`` is checked on it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent))

with atheris.instrument_imports(include=["strata_pack.parsing"]):
    from strata_pack.parsing import parser  # noqa: F401, else imported by the first reply, too late to be instrumented
    from tests.parsing import invariants, reference
    from tests.parsing.pieces import pieces_of

POLICIES = ["guarded", "strict", "any", "off"]
FORMATS = ["auto", "xml", "json"]
DIALECTS = ["qwen", "qwen", "seed-oss", "minimax-m2", "glm"]
TOOLS = [invariants.TOOLS, None, []]


def one_input(data: bytes) -> None:
    """Check one text."""
    source = atheris.FuzzedDataProvider(data)
    options = {
        "thinking": source.ConsumeBool(),
        "tools": source.PickValueInList(TOOLS),
        "implicit_end": source.PickValueInList(POLICIES),
        "call_format": source.PickValueInList(FORMATS),
        "dialect": source.PickValueInList(DIALECTS),
    }
    finish_reason = source.PickValueInList(["stop", "length"])
    pieces = pieces_of(str(options["dialect"]))
    parts = []
    cuts = []
    while source.remaining_bytes() and len(parts) < 60:
        choice = source.ConsumeIntInRange(0, len(pieces) + 8)
        parts.append(pieces[choice] if choice < len(pieces) else source.ConsumeUnicodeNoSurrogates(3))
        if source.ConsumeBool():
            cuts.append(sum(map(len, parts)) - source.ConsumeIntInRange(0, min(3, len(parts[-1]))))
    text = "".join(parts)
    outcome = invariants.check(text, sorted(cuts), finish_reason, **options)
    specials = [source.PickValueInList([None, False, True]) for _ in range(3)]
    invariants.check_specials(text, sorted(cuts), finish_reason, specials, **options)
    if options["tools"] == [] and options["dialect"] != "seed-oss":
        expected = reference.without_calls(text, thinking=bool(options["thinking"]))
        assert (outcome.reasoning, outcome.content) == expected


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
