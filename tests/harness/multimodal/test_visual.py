"""Media from whatever hooks return, told apart by content; what cannot be shown is an error that says why."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fusion_eval.errors import DataError, FusionEvalError, MissingDependencyError
from fusion_eval.harness.engine.vision_picture import notes_of
from fusion_eval.harness.multimodal.messages import conversation_of
from fusion_eval.harness.multimodal.visual import deferred, media_list, media_of, video_frames

RED = Image.new("RGB", (6, 4), "red")


def encoded(image: Image.Image = RED, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_one_picture_in_all_its_forms(tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(encoded())
    forms: list[Any] = [
        RED, RED.convert("RGBA"), str(path), path, f"file://{path}", encoded(), {"bytes": encoded(), "path": None},
        {"path": str(path)}, {"bytes": None, "path": str(path)}, np.asarray(RED), np.moveaxis(np.asarray(RED), 2, 0),
        "data:image/png;base64," + base64.b64encode(encoded()).decode(), {"type": "image", "url": RED},
    ]  # fmt: skip
    found = media_list(forms)
    assert len({(m.kind, m.digest) for m in found}) == 1
    assert all(m.value.mode == "RGB" and m.value.size == (6, 4) for m in found)


def test_nothing_one_and_several() -> None:
    assert media_list(None) == media_list([]) == []
    assert [m.kind for m in media_list(RED)] == ["image"]
    assert len(media_list([RED, RED])) == 2
    blue = Image.new("RGB", (6, 4), "blue")
    wide = Image.new("RGB", (4, 6), "red")
    assert len({m.digest for m in media_list([RED, blue, wide])}) == 3


def test_frames_are_a_video() -> None:
    frames = [RED, Image.new("RGB", (6, 4), "blue")]
    (listed,) = media_list([frames])
    array = media_of(np.stack([np.asarray(f) for f in frames]), "x")
    assert listed.kind == array.kind == "video"
    assert listed.digest == array.digest
    assert [frame.size for frame in listed.value] == [(6, 4), (6, 4)]


def test_a_video_is_told_by_its_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a.mp4", tmp_path / "b.mp4"
    one.write_bytes(b"abc")
    other.write_bytes(b"abd")
    first, second, third = media_list([str(one), {"type": "video", "url": str(one)}, str(other)])
    assert first == second
    assert first != third
    assert first.value == str(one)


def test_without_a_decoder_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("av", "cv2"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingDependencyError, match="multimodal"):
        video_frames(tmp_path / "a.mp4", 4)


def test_a_few_frames_of_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion_eval.harness.multimodal import visual

    path = tmp_path / "a.mp4"
    path.write_bytes(b"film")
    reads: list[str] = []
    frames = [np.full((2, 3, 3), i, dtype=np.uint8) for i in range(9)]

    def read(name: str, count: int) -> list[Any]:
        reads.append(name)
        return [frames[place] for place in sorted(visual._picks(len(frames), count))]

    monkeypatch.setattr(visual, "_read_pyav", read)
    whole = media_of(str(path), "x")
    part = visual.sampled(whole, 3)
    assert part.digest not in (whole.digest, visual.sampled(whole, 4).digest)
    assert reads == []
    assert [frame.getpixel((0, 0))[0] for frame in part.value] == [0, 4, 8]
    assert visual.sampled(media_of(RED, "x"), 3).kind == "image"


@pytest.mark.parametrize("reader", ["av", "cv2"])
def test_a_real_video_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    av = pytest.importorskip("av")
    pytest.importorskip(reader)
    path = tmp_path / "grey.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(0, 250, 25):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    if reader == "cv2":
        monkeypatch.setitem(__import__("sys").modules, "av", None)
    first, middle, last = video_frames(path, 3)
    assert first.size == (64, 48)
    levels = [np.asarray(frame).mean() for frame in (first, middle, last)]
    assert levels == pytest.approx([0, 100, 225], abs=6)
    assert len(video_frames(path, 99)) == 10
    (tmp_path / "text.mp4").write_text("no film")
    with pytest.raises(DataError, match=r"text\.mp4"):
        video_frames(tmp_path / "text.mp4", 3)


def test_a_compressed_sound(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.sin(np.arange(800) / 9).astype(np.float32) / 2
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    (sound,) = media_list([str(tmp_path / "a.flac")])
    assert sound.kind == "audio"
    assert sound.value["sampling_rate"] == 8000
    assert sound.value["array"] == pytest.approx(samples, abs=1e-3)


def test_sounds(tmp_path: Path) -> None:
    from scipy.io import wavfile

    samples = (np.sin(np.arange(80)) * 1000).astype(np.int16)
    wavfile.write(tmp_path / "a.wav", 8000, samples)
    (array,) = media_list([{"array": np.zeros(4, dtype=np.float32), "sampling_rate": 16000}])
    (file,) = media_list([str(tmp_path / "a.wav")])
    assert (array.kind, file.kind) == ("audio", "audio")
    assert (array.value["sampling_rate"], file.value["sampling_rate"]) == (16000, 8000)
    assert len(file.value["array"]) == 80


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (lambda p: p / "none.png", "does not exist"),
        (lambda p: "https://example.org/a.png", "lies elsewhere"),
        (lambda p: Image.new("RGB", (0, 4)), "0 x 4 pixels"),
        (lambda p: encoded(RED.resize((300, 300)), "JPEG")[:-900], "cannot be read"),
        (lambda p: b"no picture", "is no picture"),
        (lambda p: Image.fromarray(np.full((2, 2), 70000, dtype=np.int32)), "has the mode I"),
        (lambda p: np.zeros((2, 2), dtype=np.float32), "gives an array float32"),
        (lambda p: 3.5, "gives a float"),
        (lambda p: {"colour": 1}, "gives a mapping with"),
        (lambda p: [], "a video without frames"),
        (lambda p: {"array": [], "sampling_rate": 1}, "a sound of 0 samples"),
    ],
)
def test_what_cannot_be_shown(tmp_path: Path, thing: Any, message: str) -> None:
    with pytest.raises(FusionEvalError, match=message):
        media_list([thing(tmp_path)])


def test_a_huge_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(Image.new("RGB", (40, 40)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DataError, match="huge"):
        media_list([content])


@pytest.mark.parametrize(
    "messages", [None, [], "text", [{"role": "user"}], [{"role": "user", "content": 3}],
                 [{"role": "user", "content": [{"type": "smell"}]}],
                 [{"role": "user", "content": [{"type": "image"}]}]],
)  # fmt: skip
def test_messages_of_another_shape(messages: Any) -> None:
    with pytest.raises(DataError, match="doc_to_messages"):
        conversation_of(messages)


@pytest.mark.parametrize(
    ("mode", "color", "note"),
    [
        ("RGB", 0, ""), ("L", 9, ""), ("1", 1, ""), ("RGBA", (1, 2, 3, 255), ""), ("LA", (9, 255), ""),
        ("RGBA", (1, 2, 3, 254), "picture converted from RGBA to RGB, its transparency left out"),
        ("CMYK", (1, 2, 3, 4), "picture converted from CMYK to RGB"),
        ("YCbCr", 9, "picture converted from YCbCr to RGB"),
    ],
)  # fmt: skip
def test_what_a_picture_loses_in_rgb_is_told(mode: str, color: Any, note: str) -> None:
    (shown,) = media_list(Image.new(mode, (4, 4), color))
    assert (shown.note, shown.value.mode) == (note, "RGB")
    assert shown == media_list(shown.value)[0], "the same pixels are the same picture"
    assert notes_of([shown]) == note
    (again,) = deferred([shown], lambda: [shown])
    assert notes_of([again]) == note
