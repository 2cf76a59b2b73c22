"""Runs ``images``: a model with a projector must distinguish two images, and recognise one again."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from strata_pack.llama.answers import Completion
from strata_pack.llama.client import LlamaClient
from strata_pack.report import Check
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.scenario import Impossible, Scenario

SIDE = 256
"""Side length of an image in pixels: a few dozen tokens, fast on any machine."""

QUESTION = "What does the picture show? It shows"
TOP = 20
SAME = 0.05
"""Log probabilities of the same image differ by less, also with kernels that add in any order."""

APART = 1e-3
"""Log probabilities of different images differ by more."""

Rgb = tuple[int, int, int]


def png(color_of: Callable[[int, int], Rgb], side: int = SIDE) -> bytes:
    """Return a PNG of ``side`` x ``side`` pixels whose colour at (x, y) is ``color_of(x, y)``."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes(part for x in range(side) for part in color_of(x, y)) for y in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )  # fmt: skip


def red(_x: int, _y: int) -> Rgb:
    """Return red for every pixel."""
    return (220, 20, 20)


def board(x: int, y: int) -> Rgb:
    """Return the colour of a chess board's pixel."""
    return (255, 255, 255) if (x // 32 + y // 32) % 2 else (0, 0, 0)


def seen(client: LlamaClient, marker: str, image: bytes | None) -> Completion:
    """Return the model's first token after ``image`` and a question, with the likeliest alternatives."""
    data = [] if image is None else [base64.b64encode(image).decode("ascii")]
    prompt = {"prompt_string": (marker if data else "") + QUESTION, "multimodal_data": data}
    return client.completion(prompt, n_predict=1, n_probs=TOP, temperature=0.0, cache_prompt=False)


def likeliest(answer: Completion) -> Mapping[int, float]:
    """Return the log probabilities of the likeliest first tokens by id; ``Impossible`` if there are none."""
    entries = answer.raw.get("completion_probabilities")
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise Impossible("this build of the server returns no probabilities")
    top = entries[0].get("top_logprobs")
    return {one["id"]: one["logprob"] for one in top or () if _is_number(one.get("logprob"))}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def distance(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of the log probabilities of common tokens; infinite if there are none."""
    return max((abs(one[token] - other[token]) for token in one.keys() & other.keys()), default=math.inf)


def images(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Show the model two images, the first one twice."""
    client = context.client
    props = client.props().raw
    modalities, marker = props.get("modalities"), props.get("media_marker")
    if not isinstance(modalities, dict) or modalities.get("vision") is not True or not isinstance(marker, str):
        yield Check(
            f"{scenario.id}/sees", scenario.proves, "failed", "the server reports that it cannot process images"
        )
        return
    first, second, again = (seen(client, marker, png(what)) for what in (red, board, red))
    tokens = int(first.raw.get("tokens_evaluated") or 0) - len(client.tokenize(QUESTION, add_special=True))
    apart, same = distance(likeliest(first), likeliest(second)), distance(likeliest(first), likeliest(again))
    told = bool(likeliest(first)) and bool(likeliest(second))
    data = {"tokens of a picture": tokens, "two pictures": apart, "one picture twice": same}
    yield Check(
        f"{scenario.id}/apart",
        scenario.proves,
        "passed" if told and apart > max(APART, 2 * same) else "failed",
        f"a picture is {tokens} tokens; the log probabilities of two differ by {apart:.3g}"
        if told
        else "the model gives no finite probability after a picture",
        data=data,
    )
    yield Check(
        f"{scenario.id}/again",
        "the same picture gives the same probabilities",
        "passed" if told and same <= SAME else "failed",
        f"seen twice, the log probabilities differ by {same:.3g}",
        data=data,
    )
