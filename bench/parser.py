"""What the output parser costs per delta, next to the least that any parser could do: ``python bench/parser.py``.

Deltas of 4 characters. The floor is a loop of one method call, one ``str.find`` and one ``list.append`` per delta.
Then texts that are nothing but beginnings of calls, read at once. Prints tables and writes
``bench/results/parser.json``; the exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from strata_pack.parsing import OutputParser
from strata_pack.parsing.dialect import DIALECTS, Dialect

DELTA = 4
TOOLS = [
    {
        "name": "save",
        "parameters": {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}},
    }
]
PROSE = (
    "The list of jobs is short, so I can look at each of them before I answer the question.\n"
    "First the ones that failed: they share a host, and the host ran out of space in the night.\n\n"
)
SCRIPT = "def total(items):\n    return sum(item.price * item.count for item in items if item.open)\n\n"


def deltas_of(text: str) -> list[str]:
    """Return ``text`` in deltas."""
    return [text[start : start + DELTA] for start in range(0, len(text), DELTA)]


def filled(sample: str, size: int) -> str:
    """Return ``size`` characters of ``sample`` over and over."""
    return (sample * (size // len(sample) + 1))[:size]


def call(content: str, dialect: Dialect = DIALECTS["qwen"]) -> str:
    """Return one call with ``content`` as its long argument, in the tags of ``dialect``."""
    lines = [dialect.call_open, f"{dialect.function_open}save{dialect.function_opened.strip()}"]
    if not dialect.wrapped:
        lines = ["".join(lines)]
    for name, value in (("path", "a.py"), ("content", content)):
        header = f"{dialect.parameter_open}{name}{dialect.parameter_opened}"
        text = f"\n{value}\n" if dialect.name == "qwen" else value
        lines.append(f"{header}{text}{dialect.parameter_close}")
    lines += [dialect.function_close] if dialect.wrapped else []
    return "\n".join([*lines, dialect.call_close])


class Floor:
    """The least: look at the delta and keep it."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def feed(self, delta: str) -> None:
        """Take one delta."""
        delta.find("<")
        self.kept.append(delta)


def run_floor(deltas: list[str]) -> None:
    """Read ``deltas`` with the floor."""
    feed = Floor().feed
    for delta in deltas:
        feed(delta)


def run_parser(deltas: list[str], **options: Any) -> None:
    """Read ``deltas`` with the parser."""
    parser = OutputParser(tools=TOOLS, **options)
    feed = parser.feed
    for delta in deltas:
        feed(delta)
    parser.finish()


def per_delta(jobs: list[Callable[[], None]], count: int, repeats: int) -> list[float]:
    """Return the CPU nanoseconds per delta of each job: the median of ``repeats`` measurements, taken in turns.

    CPU time, because other work on the machine would show in the clock on the wall; in turns, because it still changes
    the speed of the processor.
    """
    runs = max(1, 40_000 // count)
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats):
        for job, measured in zip(jobs, times, strict=True):
            start = time.thread_time_ns()
            for _ in range(runs):
                job()
            measured.append((time.thread_time_ns() - start) / runs / count)
    return [median(measured) for measured in times]


def peak_memory(deltas: list[str], **options: Any) -> int:
    """Return the most bytes the parser holds while it reads ``deltas`` (which are not counted)."""
    tracemalloc.start()
    run_parser(deltas, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the texts and options by name."""
    twenty = "".join(f"Step {number}.\n{call('x = 1')}\n" for number in range(20))
    texts: dict[str, tuple[str, dict[str, Any]]] = {
        "plain reasoning, 100 KiB": (filled(PROSE, 100 << 10), {"thinking": True}),
        "plain content, 100 KiB": (filled(PROSE, 100 << 10), {"thinking": False}),
    }
    for stream in (False, True):
        label = "streamed" if stream else "whole"
        options = {"thinking": False, "stream_tools": stream}
        texts[f"content with 20 calls, {label}"] = (twenty, options)
        for name, size in (("2 KiB", 2 << 10), ("100 KiB", 100 << 10), ("1 MiB", 1 << 20)):
            texts[f"argument of {name}, {label}"] = (call(filled(SCRIPT, size)), options)
    for dialect in others():
        chosen = {"thinking": False, "dialect": dialect.name}
        texts[f"plain content, 100 KiB, {dialect.name}"] = (filled(PROSE, 100 << 10), chosen)
        for stream in (False, True):
            for name, size in (("2 KiB", 2 << 10), ("1 MiB", 1 << 20)):
                label = f"argument of {name}, {'streamed' if stream else 'whole'}, {dialect.name}"
                texts[label] = (call(filled(SCRIPT, size), dialect), {**chosen, "stream_tools": stream})
    return texts


def others() -> list[Dialect]:
    """Return the dialects other than Qwen's."""
    return [dialect for dialect in DIALECTS.values() if dialect.name != "qwen"]


OPENERS = 10_000_000
"""Characters of a text that is nothing but openers."""

LIMITS = {
    "plain text, times the floor": 4.0,
    "1 MiB argument, times the 2 KiB one": 1.5,
    "10 MB of openers, seconds": 3.0,
}


def opener_seconds() -> dict[str, float]:
    """Return the CPU seconds that texts of openers take, in the thinking and in the answer."""
    seconds = {}
    for name, opener in (("adjacent", "<tool_call>"), ("one a line", "<tool_call>\n")):
        text = opener * (OPENERS // len(opener))
        for thinking in (True, False):
            start = time.thread_time()
            run_parser([text], thinking=thinking)
            seconds[f"{name}, {'thinking' if thinking else 'answer'}"] = time.thread_time() - start
    return seconds


def bounds(rows: list[dict[str, Any]], seconds: dict[str, float]) -> dict[str, float]:
    """Return what is measured against each of ``LIMITS``: the worst of its kind."""
    cost = {row["case"]: row["ns_per_delta"] for row in rows}
    return {
        "plain text, times the floor": max(row["times_floor"] for row in rows if row["case"].startswith("plain")),
        "1 MiB argument, times the 2 KiB one": max(
            cost[f"argument of 1 MiB, {how}{which}"] / cost[f"argument of 2 KiB, {how}{which}"]
            for how in ("whole", "streamed")
            for which in ("", *(f", {dialect.name}" for dialect in others()))
        ),
        "10 MB of openers, seconds": max(seconds.values()),
    }


def cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> int:
    """Measure, print, write; 1 if a bound is missed."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "parser.json")
    options = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'case':<44}{'deltas':>9}{'floor ns':>10}{'ns/delta':>10}{'x floor':>9}{'peak x text':>13}")
    for name, (text, parser_options) in cases().items():
        deltas = deltas_of(text)
        jobs = [partial(run_floor, deltas), partial(run_parser, deltas, **parser_options)]
        floor, cost = per_delta(jobs, len(deltas), options.repeats)
        memory = peak_memory(deltas, **parser_options) / len(text)
        rows.append(
            {
                "case": name,
                "deltas": len(deltas),
                "floor_ns": round(floor, 1),
                "ns_per_delta": round(cost, 1),
                "times_floor": round(cost / floor, 2),
                "peak_memory_times_text": round(memory, 2),
            }
        )
        print(f"{name:<44}{len(deltas):>9}{floor:>10.0f}{cost:>10.0f}{cost / floor:>9.2f}{memory:>13.2f}")
    seconds = opener_seconds()
    for name, taken in seconds.items():
        print(f"10 MB of openers, {name}: {taken:.2f} s")
    measured = bounds(rows, seconds)
    for name, limit in LIMITS.items():
        print(f"{name}: {measured[name]:.2f}, limit {limit:g}{'' if measured[name] <= limit else ': MISSED'}")
    machine = {"cpu": cpu(), "system": platform.platform(), "python": sys.version.split()[0]}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine, "delta_chars": DELTA, "rows": rows, "openers_seconds": seconds, "bounds": measured}
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    return int(any(measured[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
