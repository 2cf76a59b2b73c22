"""What a start costs, in bare starts of the same interpreter (processor time, user and system together).

    .venv/bin/python bench/start.py [--rounds 40]

Every round runs each program once, in turn, so that a busy machine slows all of them alike; the median of each is
divided by the median of ``python -c pass``. Exit code 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

PYTHON = Path(sys.executable)
COMMAND = PYTHON.with_name("strata-pack")
RESULT = Path(__file__).parent / "results/start.json"

PROGRAMS: dict[str, tuple[list[str | Path], float | None]] = {
    "python -c pass": ([PYTHON, "-c", "pass"], None),
    "import strata_pack": ([PYTHON, "-c", "import strata_pack"], None),
    "from strata_pack.parsing import OutputParser": (
        [PYTHON, "-c", "from strata_pack.parsing import OutputParser"],
        1.5,
    ),
    "strata-pack --version": ([COMMAND, "--version"], 2),
    "strata-pack --help": ([COMMAND, "--help"], 3),
    "strata-pack verify --help": ([COMMAND, "verify", "--help"], None),
    "python -c 'import numpy'": ([PYTHON, "-c", "import numpy"], None),
}
"""Each program and the most it may cost, in bare starts."""


def processor_seconds(command: list[str | Path]) -> float:
    """Run ``command`` and return the processor time that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd="/")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for command, _ in PROGRAMS.values():
        processor_seconds(command)  # the first start compiles
    for _ in range(rounds):
        for name, (command, _) in PROGRAMS.items():
            times[name].append(processor_seconds(command))
    medians = {name: statistics.median(found) for name, found in times.items()}
    bare = medians["python -c pass"]
    rows = {
        name: {"ms": round(medians[name] * 1000, 2), "starts": round(medians[name] / bare, 2), "limit": limit}
        for name, (_, limit) in PROGRAMS.items()
    }
    print(f"{'program':<46} {'ms':>7} {'starts':>7} {'limit':>6}")
    for name, row in rows.items():
        print(f"{name:<46} {row['ms']:>7.1f} {row['starts']:>7.2f} {row['limit'] or '':>6}")
    facts = {"python": sys.version.split()[0], "rounds": rounds, "processors": os.cpu_count()}
    RESULT.write_text(json.dumps({**facts, "programs": rows}, indent=2) + "\n", encoding="utf-8")
    return int(any(row["limit"] is not None and row["starts"] > row["limit"] for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
