"""Decode and check a client's image, and encode it again for llama-server.

llama-server decodes images in its own process, with a decoder that is not made for hostile files. So every image is
decoded here first, with bounds that are checked before decompression, and encoded again
from the pixels. The same bytes always give the same picture, because the server's prompt cache uses the image's hash.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from PIL import Image

MAX_BYTES = 20 << 20
"""Most bytes of one image as sent."""

MAX_PIXELS = 64_000_000
"""Most pixels of one image (8000 x 8000), checked before decompression."""

MAX_PIXELS_TOGETHER = 256_000_000
"""Most pixels of all images of one request as sent: about four seconds of decoding."""

MAX_RATIO = 200
"""Largest ratio of the sides; the image processors of the Qwen-VL models refuse more."""

MAX_SCANNED = 1_500_000_000
"""Most pixels times scans of a progressive JPEG: each scan is a pass over all pixels, and encoders write about ten."""

TOO_MANY_TOGETHER = f"and those before it have more than {MAX_PIXELS_TOGETHER:,} pixels together"

LONGEST_SIDE = 4096
"""Pixels to which larger pictures are scaled down; no tower takes more than about four million in all."""

QUALITY = 95
WHITE = (255, 255, 255, 255)

SIGNATURES: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "PNG"),
    (re.compile(rb"\xff\xd8\xff"), "JPEG"),
    (re.compile(rb"GIF8[79]a"), "GIF"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "WEBP"),
)
"""First bytes of the accepted formats; the declared type is ignored."""

OTHERS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:svg|\?xml|!DOCTYPE svg)", re.IGNORECASE), "SVG"),
    (re.compile(rb"BM"), "BMP"),
    (re.compile(rb"II\*\0|MM\0\*"), "TIFF"),
    (re.compile(rb".{4}ftyp(?:avif|avis|heic|heix|mif1|msf1)", re.DOTALL), "AVIF or HEIC"),
    (re.compile(rb"%PDF-"), "PDF"),
)
"""Known formats that are not accepted, for error messages."""

LOSSY = ("JPEG", "WEBP")
ORIENTATION = 0x0112
START_OF_SCAN, END_OF_JPEG = b"\xff\xda", b"\xff\xd9"
PNG_END = b"IEND\xaeB`\x82"


# Pillow only warns up to twice its own limit, and the warning would be in the gateway's log.
warnings.simplefilter("error", Image.DecompressionBombWarning)


class BadPicture(Exception):
    """Bytes are no acceptable image; the message completes "the image ..."."""


@dataclass(frozen=True)
class Picture:
    """An image for llama-server: ``data`` in base64, ``size`` in pixels (width, height), ``source_pixels`` the pixels
    of the received image."""

    data: str
    size: tuple[int, int]
    source_pixels: int


def read_picture(data: bytes, room: int = MAX_PIXELS_TOGETHER) -> Picture:
    """Return the picture in ``data``: its first frame, upright, transparency on white.

    ``room`` is the number of pixels that its request may still use.
    Raises ``BadPicture``. Takes up to about a second and 0.5 GB for the largest image.
    """
    if len(data) > MAX_BYTES:
        raise BadPicture(f"has {len(data):,} bytes; at most {MAX_BYTES:,} are accepted")
    form = _format(data)
    if not _is_whole(data, form):
        raise BadPicture(f"is a {form} that is cut off")
    try:
        with Image.open(io.BytesIO(data), formats=[form]) as image:
            _check_size(*image.size, room)
            pixels = image.width * image.height
            if form == "JPEG":
                scans = data.count(START_OF_SCAN)
                if scans * image.width * image.height > MAX_SCANNED:
                    raise BadPicture(f"has {scans} scans, too many for its size")
                image.draft("RGB", (LONGEST_SIDE, LONGEST_SIDE))
            image.load()
            return _written(_plain(_upright(image)), form, pixels)
    except BadPicture:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadPicture(f"has too many pixels; at most {MAX_PIXELS:,} are accepted") from None
    except MemoryError:
        raise BadPicture("needs more memory than is available") from None
    except Exception as error:  # the decoders raise many types for damaged files
        raise BadPicture(f"is a {form} that is damaged or cut off") from error


def _format(data: bytes) -> str:
    """Return the format of ``data`` by its first bytes. Raises ``BadPicture`` if it is not accepted."""
    for pattern, form in SIGNATURES:
        if pattern.match(data):
            return form
    known = ", ".join(form for _, form in SIGNATURES)
    for pattern, form in OTHERS:
        if pattern.match(data):
            raise BadPicture(f"is {form}; send one of {known}")
    raise BadPicture(f"is empty; send one of {known}" if not data else f"is in no known format; send one of {known}")


def _is_whole(data: bytes, form: str) -> bool:
    """Return whether a file is complete: the decoders accept a missing end if they have all pixels."""
    if form == "PNG":
        return PNG_END in data
    if form == "JPEG":
        return data.rfind(END_OF_JPEG) > data.rfind(START_OF_SCAN)
    return form != "WEBP" or int.from_bytes(data[4:8], "little") + 8 <= len(data)


def _check_size(width: int, height: int, room: int) -> None:
    if width * height > MAX_PIXELS:
        raise BadPicture(f"has {width} x {height} pixels; at most {MAX_PIXELS:,} in all are accepted")
    if width * height > room:
        raise BadPicture(TOO_MANY_TOGETHER)
    if min(width, height) < 1 or max(width, height) > MAX_RATIO * min(width, height):
        raise BadPicture(f"has {width} x {height} pixels; at most {MAX_RATIO} times longer than wide is accepted")


def _upright(image: Image.Image) -> Image.Image:
    """Return the image rotated by its EXIF orientation; invalid EXIF data is ignored."""
    turns: Mapping[int, Image.Transpose] = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - the reader of EXIF data raises what it likes
        return image
    return image if turn is None else image.transpose(turn)


def _plain(image: Image.Image) -> Image.Image:
    """Return the image as RGB of at most ``LONGEST_SIDE``."""
    scale = LONGEST_SIDE / max(image.size)
    if scale < 1:
        # Colours of a palette cannot be mixed.
        image = image.convert("RGBA") if image.mode == "P" else image
        width, height = (max(1, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if image.has_transparency_data:
        under = Image.new("RGBA", image.size, WHITE)
        under.alpha_composite(image.convert("RGBA"))
        image = under
    return image.convert("RGB")


def _written(image: Image.Image, form: str, source_pixels: int) -> Picture:
    stream = io.BytesIO()
    image.info.clear()  # otherwise comments and profiles would be written too
    if form in LOSSY:
        image.save(stream, "JPEG", quality=QUALITY, subsampling=0)
    else:
        image.save(stream, "PNG", compress_level=1)
    return Picture(base64.b64encode(stream.getvalue()).decode("ascii"), image.size, source_pixels)
