"""Compares a pack with its source for ``prove``: on a short text, within a time limit.

It is in the command line because ``smoke`` and ``compare`` must not import each other.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata_pack.progress import Progress
    from strata_pack.report import Check

LIMIT_SECONDS = 30.0
WINDOWS = 4
CONTEXT = 256

WORSE = 3.0
"""Largest allowed ratio of a pack's perplexity to its source's: the smallest presets stay below it, damaged weights do
not."""


class TimeUpError(Exception):
    """The comparison took longer than its time limit."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``TimeUpError`` inside the block after ``seconds``; works in the main thread only (SIGALRM)."""

    def ring(_signum: int, _frame: FrameType | None) -> None:
        raise TimeUpError

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def comparer(progress: Progress, limit_seconds: float = LIMIT_SECONDS) -> Callable[[Path, Path], Check]:
    """Return a function that compares a pack with its source and returns the result as a ``Check``."""
    from strata_pack.compare.full import compare_full
    from strata_pack.errors import CheckFailed, StrataError
    from strata_pack.report import Check

    title = "the pack predicts a text about as well as its source"

    def compare(pack: Path, source: Path) -> Check:
        try:
            with _time_limit(limit_seconds):
                found = compare_full(pack, source, context=CONTEXT, limit=WINDOWS, progress=progress)
        except TimeUpError:
            return Check("compare", title, "skipped", f"not done within {limit_seconds:g} s; use `strata-pack compare`")
        except CheckFailed as error:
            return Check("compare", title, "failed", str(error))
        except StrataError as error:
            return Check("compare", title, "error", str(error))
        ours, theirs = found.perplexity.value, found.reference_perplexity.value
        return Check(
            "compare",
            title,
            "passed" if ours <= WORSE * theirs else "failed",
            f"perplexity {ours:.2f}, the source's {theirs:.2f}; mean KL divergence {found.kl_mean:.4f} nats, the same "
            f"likeliest token in {found.top1_agreement:.0%} of {found.tokens} places",
            data=found.to_dict(),
        )

    return compare
