"""Counts tokens with a ``tokenizer.json`` or the vocabulary of a GGUF."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.extras import missing


@contextmanager
def open_tokenizer(path: Path | None) -> Iterator[Callable[[str], Sequence[int]] | None]:
    """Yield a function from text to token ids (special tokens in the text are recognised), or ``None`` without a
    ``path``.

    For a ``.gguf``, llama.cpp runs inside the block; a ``tokenizer.json`` needs the package ``tokenizers``. Raises
    ``BadInput`` for any other file, ``EnvironmentFailure`` if llama.cpp or the package is missing.
    """
    if path is None:
        yield None
    elif path.suffix.lower() == ".gguf":
        from strata_pack.llama.server import LlamaServer

        with LlamaServer.start(path, context=256, warmup=False) as server:
            yield server.client.tokenize
    else:
        yield _from_json(path)


def _from_json(path: Path) -> Callable[[str], Sequence[int]]:
    if not path.is_file():
        raise BadInput("no such file", where=path)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing("tokenizers", "engines", "reading a tokenizer.json") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise BadInput(f"is not a tokenizer ({error})", where=path, remedy="give a tokenizer.json") from error
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
