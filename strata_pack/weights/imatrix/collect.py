"""Computes a model's importance matrix over a calibration text with llama.cpp.

The model runs in a child process (``llama.activations_child``), which saves its sums regularly next to the output file.
An interrupted run resumes from them when it is called again with the same arguments.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, sha256_text
from strata_pack.llama.activations_child import load_state
from strata_pack.llama.logits import child_died, quiet_threads
from strata_pack.llama.logits_child import ERRORS
from strata_pack.outputs import check_outputs
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import open_shards, shard_paths
from strata_pack.weights.imatrix.file import Collected, merge, read_collected, write_imatrix

SHIPPED_TEXT = Path(__file__).parent / "calibration.txt"
"""Prose in the public domain, code, and agent transcripts with tool calls in the family's format."""
TEXT_LIMIT = 256 << 20
STATE_SUFFIX = ".partial"
PIECE = 64
"""Characters of the pieces by which repetition is found."""
SEARCHED = 1 << 18
"""Characters at the beginning of the text in which repetition is looked for."""
LEAST_NEW = 1 / 3
"""Share of new pieces below which a text is said to repeat itself; agent transcripts have a half."""


@dataclass(frozen=True)
class ImatrixRequest:
    """The request of a collection.

    ``model``: a GGUF (its first shard); ``texts``: UTF-8 files (default: the shipped text); ``context``: tokens per
    chunk; ``chunks``: maximum number of chunks, 0 to merge only; ``merged``: imatrix files whose sums are added;
    ``parse_special``: special tokens spelled in the text are tokenized as special.
    """

    model: Path
    out: Path
    texts: tuple[Path, ...] = ()
    context: int = 512
    chunks: int | None = None
    merged: tuple[Path, ...] = ()
    process_output: bool = False
    parse_special: bool = True
    threads: int | None = None


@dataclass(frozen=True)
class ImatrixResult:
    """The result. ``chunks`` were evaluated in total, ``resumed`` of them by interrupted earlier runs."""

    path: Path
    collected: Collected
    chunks: int
    resumed: int
    seconds: float
    """Seconds of this run's evaluation."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of this run; 0 if it evaluated nothing."""
        tokens = (self.chunks - self.resumed) * self.collected.chunk_size
        return tokens / self.seconds if self.seconds > 0 else 0.0


def make_imatrix(request: ImatrixRequest, progress: Progress | None = None) -> ImatrixResult:
    """Collect, merge and write an importance matrix.

    Raises ``BadInput`` if llama.cpp does not load the model, a text is too short or not UTF-8, or a merged file is of
    another model; ``LogitsUnavailable`` if the installed xllamacpp is not the supported build; ``EnvironmentFailure``
    if the process dies or the disk is full.
    """
    progress = progress or Silent()
    check_outputs([request.out], [*request.texts, *request.merged, *shard_paths(request.model)])
    parts = [read_collected(path) for path in request.merged]
    if parts:
        _check_model(request, parts)
    chunks = resumed = 0
    seconds = 0.0
    state = request.out.with_name(request.out.name + STATE_SUFFIX)
    if request.chunks != 0:
        texts = [(path.name, _read(path)) for path in request.texts or (SHIPPED_TEXT,)]
        fresh = new_share("".join(content for _, content in texts))
        if fresh < LEAST_NEW:
            progress.note(
                f"{request.out.name}: {1 - fresh:.0%} of the text repeats what precedes it, so the importances hold "
                "for little else; give a varied text"
            )
        key = _key(request, [content for _, content in texts])
        started = time.monotonic()
        chunks, resumed = _collect(request, [content for _, content in texts], state, key, progress)
        seconds = time.monotonic() - started
        sums, _ = load_state(state, key)
        parts.insert(0, Collected(sums, chunks, request.context, tuple(name for name, _ in texts)))
    if not parts:
        raise BadInput("there is nothing to write", where=request.out, remedy="give --merge, or at least one chunk")
    collected = merge(parts)
    write_imatrix(request.out, collected)
    state.unlink(missing_ok=True)
    return ImatrixResult(request.out, collected, chunks, resumed, seconds)


def _check_model(request: ImatrixRequest, parts: Sequence[Collected]) -> None:
    """Raise ``BadInput`` if a merged file has a weight that the model does not have, or has in another shape."""
    with ExitStack() as stack:
        files = [stack.enter_context(file) for file in open_shards(request.model)]
        shapes = {tensor.name: tensor.shape for file in files for tensor in file.tensors}
    for path, part in zip(request.merged, parts, strict=True):
        for name, sums in part.sums.items():
            columns, *others = shapes.get(name, (0, 0))
            if sums.squares.size != columns * math.prod(others[1:]):
                what = "in another shape" if name in shapes else "not at all"
                raise BadInput(
                    f"holds importances of {name}, which {request.model.name} has {what}",
                    where=path,
                    remedy="merge imatrix files of one model",
                )


def _read(path: Path) -> str:
    try:
        return read_bytes(path, TEXT_LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 (byte {error.start})", where=path) from None


def new_share(text: str) -> float:
    """Return the share of the text's beginning that does not repeat what precedes it, from 0 to 1."""
    count = max(min(len(text), SEARCHED) - PIECE + 1, 1)
    return len({hash(text[at : at + PIECE]) for at in range(count)}) / count


def _key(request: ImatrixRequest, texts: Sequence[str]) -> str:
    """Return the key by which sums of an interrupted run are recognised: model files, texts and settings."""
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in shard_paths(request.model)]
    settings = (request.context, request.process_output, request.parse_special)
    return sha256_text(json.dumps([files, [sha256_text(text) for text in texts], settings]))


def _collect(
    request: ImatrixRequest, texts: Sequence[str], state: Path, key: str, progress: Progress
) -> tuple[int, int]:
    """Run the child to its end; return the number of chunks and how many of them an earlier run had done."""
    settings = {
        "model": str(shard_paths(request.model)[0]),
        "texts": texts,
        "state": str(state),
        "key": key,
        "context": request.context,
        "limit": request.chunks,
        "threads": request.threads or os.cpu_count() or 1,
        "process_output": request.process_output,
        "parse_special": request.parse_special,
    }
    with _child(settings, request.model) as lines:
        plan = next(lines)
        chunks, done = int(plan["chunks"]), int(plan["done"])
        if done:
            progress.note(f"{request.out.name}: resuming after chunk {done} of {chunks}")
        task = progress.task(f"collect {request.model.name}", (chunks - done) * request.context, "tokens")
        for _ in lines:
            task.advance(request.context)
        task.done()
    return chunks, done


@contextmanager
def _child(settings: dict[str, Any], model: Path) -> Iterator[Iterator[dict[str, Any]]]:
    command = [sys.executable, "-m", "strata_pack.llama.activations_child"]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=quiet_threads()) as process,
    ):
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(settings).encode())
                process.stdin.close()
            yield _lines(process, log, model)
        finally:
            process.kill()


def _lines(process: subprocess.Popen[bytes], log: IO[bytes], model: Path) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        value: dict[str, Any] = json.loads(line)
        if "error" in value:
            problem = str(value["error"])
            raise ERRORS[value["kind"]](problem, where=None if str(model) in problem else model)
        yield value
    if process.wait() != 0:
        raise child_died(process.returncode, log, model)
