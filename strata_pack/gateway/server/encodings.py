"""Decompress request bodies (``Content-Encoding``), within the size limit of any body."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from strata_pack.gateway.failures import ApiError, bad_request

MAX_ENCODINGS = 2
"""Most encodings applied one after the other."""

ANY_WRAPPER = 32 + zlib.MAX_WBITS
"""zlib's window size for a gzip or a zlib header."""

MAX_WINDOW = 1 << 27
"""Largest zstd window in bytes: that of level 22."""


class _TooLarge(Exception):
    """The content is larger than the limit."""


def decoded(data: bytes, encodings: str, limit: int) -> bytes:
    """Return a decoded body; ``encodings`` is the header's value.

    Raises ``ApiError``: 415 for an unknown encoding, 400 for invalid data, 413 for more than
    ``limit`` bytes.
    """
    names = [name.strip().lower() for name in encodings.split(",")]
    named = [name for name in names if name not in ("", "identity")]
    readers = [READERS.get(name) for name in named]
    if None in readers or len(readers) > MAX_ENCODINGS:
        raise ApiError(
            415,
            f"bodies in the encoding {encodings[:100]!r} are not supported; use gzip, zstd or none",
            kind="bad_encoding",
            headers={"accept-encoding": "gzip, zstd, deflate, identity"},
        )
    for name, read in zip(reversed(named), reversed(readers), strict=True):
        assert read is not None
        try:
            data = read(data, limit)
        except _TooLarge:
            raise ApiError(413, f"the body is larger than {limit} bytes", kind="too_large") from None
        except ValueError as error:
            raise bad_request(f"the body is not in the encoding {name!r} ({error})") from error
    return data


def _deflate(data: bytes, limit: int) -> bytes:
    """Decode HTTP's deflate: with zlib's header, or without it, as some clients send it."""
    headed = data[:1] in (b"\x1f", b"\x78") or (data[:1] and data[0] & 15 == 8 and int.from_bytes(data[:2]) % 31 == 0)
    return _zlib(data, limit, ANY_WRAPPER if headed else -zlib.MAX_WBITS)


def _zlib(data: bytes, limit: int, window: int = ANY_WRAPPER) -> bytes:
    parts: list[bytes] = []
    left = limit
    while data:
        reader = zlib.decompressobj(window)
        try:
            part = reader.decompress(data, left + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(part) > left:
            raise _TooLarge
        if not reader.eof:
            raise ValueError("it ends too early")
        parts.append(part)
        left -= len(part)
        data = reader.unused_data  # another member
    return b"".join(parts)


def _zstd(data: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise ApiError(
            415, "bodies in zstd cannot be read: the package zstandard is missing", kind="bad_encoding",
            headers={"accept-encoding": "gzip, deflate, identity"},
        ) from error  # fmt: skip
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    parts: list[bytes] = []
    try:
        # The bounded reader accepts a truncated frame, and the strict one has no bound, so both are used.
        if len(reader.stream_reader(data, read_across_frames=True).read(limit + 1)) > limit:
            raise _TooLarge
        while data:
            frame = reader.decompressobj()
            parts.append(frame.decompress(data))
            if not frame.eof:
                raise ValueError("it ends too early")
            data = frame.unused_data
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return b"".join(parts)


READERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _zlib,
    "x-gzip": _zlib,
    "deflate": _deflate,
    "zstd": _zstd,
}
