"""What becomes of the bytes of an image: a picture written anew, or one sentence."""

from __future__ import annotations

import base64
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from strata_pack.gateway import pictures
from strata_pack.gateway.pictures import BadPicture, read_picture
from tests.gateway.images import SVG, encoded, picture, png_claiming, png_with_text_bomb


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(read_picture(data).data)))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_formats_of_the_apis_are_taken(form: str) -> None:
    image = opened(encoded(form=form))
    assert image.size == (32, 32)
    assert image.mode == "RGB"
    red, green, blue = image.getpixel((30, 30))  # type: ignore[misc]
    assert (abs(red - 200) < 12, green < 60, blue < 60) == (True, True, True)


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_what_is_lossless_stays_as_it_is(form: str) -> None:
    assert opened(encoded(form=form)).tobytes() == picture().tobytes()


def test_the_same_bytes_give_the_same_picture() -> None:
    data = encoded(form="JPEG")
    assert read_picture(data) == read_picture(data)


@pytest.mark.parametrize(
    ("image", "options"),
    [
        (picture(color=(0, 0, 0, 0), mode="RGBA"), {}),
        (picture(color=(0, 0), mode="LA"), {}),
        (picture(color=0, mode="L"), {"transparency": 0}),
        (picture(color=0, mode="P"), {"transparency": 0}),
    ],
    ids=["RGBA", "LA", "L", "P"],
)
def test_what_is_transparent_is_white(image: Image.Image, options: dict[str, Any]) -> None:
    assert opened(encoded(image, **options)).getpixel((31, 31)) == (255, 255, 255)


def test_sixteen_bits_become_eight() -> None:
    image = opened(encoded(Image.new("I;16", (32, 32), 0x8000)))
    assert image.getpixel((3, 3)) == (128, 128, 128)


def test_a_jpeg_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert opened(encoded(picture(64, 32), "JPEG", exif=exif)).size == (32, 64)


def test_the_first_frame_of_an_animation_counts() -> None:
    frames = [picture(color=(0, 0, 255)), picture(color=(0, 255, 0))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert opened(data).getpixel((31, 31)) == (0, 0, 255)


def test_a_large_picture_is_scaled_down() -> None:
    assert read_picture(encoded(picture(6000, 300))).size == (4096, 205)


def test_what_upstream_gets_has_nothing_but_pixels() -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    data = encoded(picture(), "JPEG", exif=exif, comment=b"secret")
    assert b"where I live" in data
    written = base64.b64decode(read_picture(data).data)
    assert b"where I live" not in written
    assert b"secret" not in written


LARGE = encoded(picture(2000, 2000), "JPEG", progressive=True)
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "is empty"),
    "text": (lambda: b"hello", "is in no known format"),
    "SVG": (lambda: SVG, "is SVG"),
    "SVG with a head": (lambda: b'\xef\xbb\xbf<?xml version="1.0"?>' + SVG, "is SVG"),
    "BMP": (lambda: encoded(form="BMP"), "is BMP"),
    "TIFF": (lambda: encoded(form="TIFF"), "is TIFF"),
    "PDF": (lambda: b"%PDF-1.7", "is PDF"),
    "PNG of its signature alone": (lambda: encoded()[:8], "damaged|cut off"),
    "truncated PNG": (lambda: encoded()[:-40], "damaged|cut off"),
    "truncated JPEG": (lambda: encoded(picture(256, 256), "JPEG")[:700], "damaged|cut off"),
    "PNG without its last byte": (lambda: encoded()[:-1], "cut off"),
    "JPEG without its last byte": (lambda: encoded(form="JPEG")[:-1], "cut off"),
    "GIF without its last bytes": (lambda: encoded(form="GIF")[:-6], "cut off"),
    "WEBP without its last byte": (lambda: encoded(form="WEBP")[:-1], "cut off"),
    "truncated GIF": (lambda: encoded(form="GIF")[:20], "damaged|cut off"),
    "truncated WEBP": (lambda: encoded(form="WEBP")[:30], "damaged|cut off"),
    "PNG without pixels": (lambda: png_claiming(100, 100), "damaged|cut off"),
    "PNG of no size": (lambda: png_claiming(0, 100), "damaged|cut off"),
    "PNG that claims 8001 x 8001": (lambda: png_claiming(8001, 8001), "8001 x 8001"),
    "PNG that claims 100,000 x 1,000": (lambda: png_claiming(100_000, 1000), "too many|pixels"),
    "PNG that claims 2^31 x 2^31": (lambda: png_claiming(2**31 - 1, 2**31 - 1), "too many pixels"),
    "PNG that unpacks to a gigabyte": (lambda: png_claiming(18_000, 18_000, bytes(1 << 20)), "too many pixels"),
    "PNG with a comment of 200 MB": (png_with_text_bomb, "damaged|cut off"),
    "a line": (lambda: encoded(picture(1, 300)), "times longer than wide"),
    "JPEG of many scans": (lambda: LARGE[:-2] + b"\xff\xda" * 400 + LARGE[-2:], "scans"),
    "too many bytes": (lambda: encoded() + bytes(pictures.MAX_BYTES), "bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_one_sentence(name: str) -> None:
    make, words = BAD[name]
    data = make()
    tracemalloc.start()
    try:
        with pytest.raises(BadPicture, match=words) as refused:
            read_picture(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert "0x" not in str(refused.value)
    assert peak < 80 << 20


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_a_picture_or_a_sentence(form: str, data: st.DataObject) -> None:
    good = bytearray(encoded(form=form))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            read_picture(damaged)
        except BadPicture:
            continue
