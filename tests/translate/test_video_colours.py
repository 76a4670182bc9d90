"""Videos whose colours are coded in every usual way, through a translation that changes nothing.

Planes are made and read by the formulas of H.273 here, so that no library's conversion is compared with itself.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from velogan.translate.files import translate

from ..models import in_memory

COLOURS = [[0, 0, 0], [255, 255, 255], [128, 128, 128], [255, 0, 0], [0, 255, 0], [0, 0, 255], [200, 120, 40]]
SHARES = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 9: (0.2627, 0.0593)}
"""Of red and blue in luma, by the matrix's code: BT.709, none told, BT.601, BT.2020."""
SIDE = 32
FULL, LIMITED = 2, 1
LOSS = 6
"""Levels of 255 that a coding as H.264 or MJPEG may lose of a saturated colour; a wrong range loses 16 to 20."""


def _coded(rgb: np.ndarray, matrix: int, span: int, bits: int) -> list[np.ndarray]:
    """The planes of RGB in [0, 1]."""
    red, blue = SHARES[matrix]
    y = rgb @ np.array([red, 1 - red - blue, blue])
    differences = [(rgb[..., 2] - y) / (2 - 2 * blue), (rgb[..., 0] - y) / (2 - 2 * red)]
    more, most = 2 ** (bits - 8), 2**bits - 1
    if span == FULL:
        made = [y * most, *(one * most + 128 * more for one in differences)]
    else:
        made = [(16 + 219 * y) * more, *((128 + 224 * one) * more for one in differences)]
    return [one.round().clip(0, most) for one in made]


def _meant(planes: list[np.ndarray], matrix: int, span: int, bits: int) -> np.ndarray:
    """RGB in [0, 1] of planes."""
    red, blue = SHARES[matrix]
    more, most = 2 ** (bits - 8), 2**bits - 1
    y, b, r = (one.astype(float) for one in planes)
    if span == FULL:
        y, b, r = y / most, (b - 128 * more) / most, (r - 128 * more) / most
    else:
        y, b, r = (y / more - 16) / 219, (b / more - 128) / 224, (r / more - 128) / 224
    first, last = y + (2 - 2 * red) * r, y + (2 - 2 * blue) * b
    return np.stack([first, (y - red * first - blue * last) / (1 - red - blue), last], axis=-1).clip(0, 1)


def _write(path: Path, codec: str, form: str, matrix: int, span: int) -> None:
    bits = 10 if "10" in form else 8
    picture = np.repeat(np.array(COLOURS) / 255, SIDE, axis=0)[None].repeat(32, axis=0)
    planes = _coded(picture, matrix, span, bits)
    options = {"qscale": "1"} if codec == "mjpeg" else {"crf": "1"}
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream(codec, rate=10, options=options)
        video.width, video.height, video.pix_fmt = SIDE * len(COLOURS), 32, form
        video.codec_context.color_range, video.codec_context.colorspace = span, matrix
        for index in range(2):
            frame: Any = av.VideoFrame(video.width, video.height, form)
            for plane, values in zip(frame.planes, planes):
                values = values[:: 32 // plane.height, :: video.width // plane.width].astype(f"<u{1 + (bits > 8)}")
                rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
                rows[:, : plane.width] = values
                plane.update(rows)
            frame.color_range, frame.colorspace, frame.pts, frame.time_base = span, matrix, index, Fraction(1, 10)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))


def _colours(path: Path) -> np.ndarray:
    """What the first frame's planes and tags together mean: the mean of each colour's middle, in levels of 255."""
    with av.open(str(path)) as container:
        frame: Any = next(container.decode(video=0))
    bits = 10 if "10" in frame.format.name else 8
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(bytes(plane), f"<u{1 + (bits > 8)}").reshape(plane.height, -1)[:, : plane.width]
        planes.append(rows.repeat(frame.height // plane.height, axis=0).repeat(frame.width // plane.width, axis=1))
    span = FULL if frame.format.name.startswith("yuvj") else int(frame.color_range)
    picture = _meant(planes, int(frame.colorspace), span, bits) * 255
    middle = picture[4:-4].reshape(-1, len(COLOURS), SIDE, 3)[:, :, 12:-12]
    return middle.mean(axis=(0, 2))


CODED = [("libx264", form, matrix, span) for form in ("yuv420p", "yuv444p", "yuv420p10le") for matrix in (1, 5, 9, 2)
         for span in (LIMITED, FULL)]  # fmt: skip
CODED += [("libx264", "yuvj420p", 1, FULL), ("libx264", "yuvj420p", 5, FULL), ("mjpeg", "yuvj420p", 5, FULL)]


@pytest.mark.parametrize(("codec", "form", "matrix", "span"), CODED)
def test_keeps_colours(tmp_path: Path, codec: str, form: str, matrix: int, span: int) -> None:
    video, out = tmp_path / "video.mov", tmp_path / "out.mov"
    _write(video, codec, form, matrix, span)
    given = _colours(video)
    assert given == pytest.approx(np.array(COLOURS), abs=LOSS)
    model = in_memory()
    assert translate(model, video, out).failed == ()
    assert _colours(out) == pytest.approx(given, abs=LOSS)


def test_writes_rgb_videos_as_bt709(tmp_path: Path) -> None:
    source, out = tmp_path / "video.mkv", tmp_path / "out.mkv"
    picture = np.repeat(np.array(COLOURS, np.uint8), SIDE, axis=0)[None].repeat(32, axis=0)
    with av.open(str(source), "w") as container:
        video: Any = container.add_stream("ffv1", rate=10)
        video.width, video.height, video.pix_fmt = picture.shape[1], 32, "bgr0"
        container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode(None))
    assert translate(in_memory(), source, out).failed == ()
    with av.open(str(out)) as container:
        frame = next(container.decode(video=0))
        assert (int(frame.colorspace), int(frame.color_range)) == (1, LIMITED)
    assert _colours(out) == pytest.approx(np.array(COLOURS), abs=LOSS)
