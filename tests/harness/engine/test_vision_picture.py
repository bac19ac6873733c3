"""Pictures that are not what they should be: an error that says which, or a note."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fusion_eval.errors import DataError
from fusion_eval.harness.engine.vision_picture import check_size, note_of, rgb

SIXTEEN = np.linspace(0, 65535, 48).reshape(6, 8)


def encoded(kind: str, size: tuple[int, int] = (40, 30)) -> bytes:
    target = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(target, format=kind)
    return target.getvalue()


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "LAB"])
def test_other_modes_are_converted(mode: str) -> None:
    plain = Image.open(io.BytesIO(encoded("PNG")))
    picture = Image.merge("LAB", plain.split()) if mode == "LAB" else plain.convert(mode)
    found = rgb(picture, "x")
    assert found.mode == "RGB"
    assert found.size == (40, 30)
    assert note_of(picture) == ("" if mode == "L" else f"picture converted from {mode} to RGB")


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_sixteen_bits_are_scaled_not_clipped(mode: str) -> None:
    picture = Image.fromarray(SIXTEEN.astype(np.uint16 if mode == "I;16" else np.int32))
    assert picture.mode == mode
    assert np.array_equal(np.asarray(rgb(picture, "x"))[..., 0], (SIXTEEN / 257).round())


def test_small_integers_stay_what_they_are() -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.int32).reshape(6, 8))
    assert np.array_equal(np.asarray(rgb(picture, "x"))[..., 1], np.arange(48).reshape(6, 8))


def test_pictures_come_in_many_shapes(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(encoded("PNG"))
    expected = np.asarray(Image.open(file))
    for value in (str(file), file, file.read_bytes(), {"bytes": file.read_bytes()}, {"path": str(file)}, expected):
        assert np.array_equal(np.asarray(rgb(value, "x")), expected)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, r"no picture \(None\)"),
        ({"bytes": None, "path": None}, "a dict"),
        ("no/such.png", "does not exist"),
        (b"not a picture", "is not a picture"),
        (encoded("JPEG")[:900], "cannot be decoded"),
        (encoded("PNG")[:300], "cannot be decoded"),
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "an array of uint8"),
        (Image.new("RGB", (0, 5)), "0 x 5 pixels; expected at least one pixel"),
        (Image.new("F", (4, 4)), "floats"),
        (3, "a int"),
    ],
)
def test_what_is_no_picture_is_refused(value: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"image abc.*{said}"):
        rgb(value, "image abc")


def test_huge_pictures_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    file = tmp_path / "huge.png"
    Image.new("1", (30_000, 30_000)).save(file)
    with pytest.raises(DataError, match="exceeds limit"):
        rgb(file, "x")
    with pytest.raises(DataError, match=r"40 x 30 pixels; expected at most 1000 pixels.*max_pixels"):
        check_size(Image.open(io.BytesIO(encoded("JPEG"))), "x", 1000)
