"""Images for tests, made from numbers: good ones, and those that nobody should unpack."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def picture(width: int = 32, height: int = 32, color: Any = (200, 30, 30), mode: str = "RGB") -> Image.Image:
    """Return a picture of one colour with a darker corner, so that it is not the same upside down."""
    image = Image.new(mode, (width, height), color)
    image.paste(0 if mode in ("L", "P", "1") else tuple(0 for _ in image.getbands()), (0, 0, width // 2, height // 2))
    return image


def encoded(image: Image.Image | None = None, form: str = "PNG", **options: Any) -> bytes:
    """Return an image file."""
    stream = io.BytesIO()
    (image or picture()).save(stream, form, **options)
    return stream.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def data_url(data: bytes | None = None, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(encoded() if data is None else data)}"


def png_claiming(width: int, height: int, pixels: bytes = b"") -> bytes:
    """Return a PNG whose header claims a size; its pixels are ``pixels``, compressed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png_with_text_bomb() -> bytes:
    """Return a small PNG with a comment that unpacks to 200 MB."""
    text = b"Comment\0\0" + zlib.compress(b"a" * (200 << 20), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    data = encoded()
    return data[:33] + chunk + data[33:]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
