"""How long a golden check takes on each engine, and what the limits cost over plain jinja2.

Run: python bench/golden.py [--server]   Writes bench/results/golden.json.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata_pack.chat.engines.engines import available_engines, open_engines
from strata_pack.chat.golden.cases import load_suite
from strata_pack.chat.golden.check import check_golden
from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate

RUNS = 7
RESULT = Path(__file__).parent / "results" / "golden.json"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _best_ms(work: Callable[[], object], runs: int = RUNS, clock: Callable[[], float] = time.process_time) -> float:
    times = []
    for _ in range(runs):
        start = clock()
        work()
        times.append(clock() - start)
    return round(min(times) * 1000, 2)


def main() -> None:
    shipped = load_shipped("qwen3.8-flash-next")
    suite = load_suite(shipped.golden_dir)
    names = [engine.name for engine in available_engines()] + (["llama.cpp"] if "--server" in sys.argv else [])
    rows: dict[str, float] = {"compile the template": _best_ms(lambda: ChatTemplate(shipped.source))}
    with open_engines(names, shipped.source) as engines:
        for engine in engines:
            served = engine.name == "llama.cpp"
            rows[f"{len(suite.cases)} cases on {engine.name}"] = _best_ms(
                lambda one=engine: check_golden(shipped.source, suite, [one]),
                3 if served else RUNS,
                time.perf_counter if served else time.process_time,
            )
    prompts = [case for case in suite.cases if case.error is None]
    guarded = ChatTemplate(shipped.source)
    bare = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    bare.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    plain = bare.from_string(shipped.source)
    rows[f"{len(prompts)} prompts, under limits"] = _best_ms(lambda: [guarded.render(**c.inputs()) for c in prompts])
    rows[f"{len(prompts)} prompts, jinja2's sandbox alone"] = _best_ms(
        lambda: [plain.render(**case.inputs()) for case in prompts]
    )
    for name, milliseconds in rows.items():
        print(f"{name:45} {milliseconds:9.2f} ms")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(
        json.dumps(
            {
                "processor": _processor(),
                "unit": "ms of processor time (llama.cpp: of wall time), best of runs",
                "rows": rows,
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
