"""Videos through `translate`, translated on the spot."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from velogan.translate.files import translate
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.videos import Smoother

from ..models import Negative, in_memory


@pytest.fixture
def model() -> Translator:
    return in_memory(Negative())


def _frame(index: int, *, size: tuple[int, int]) -> np.ndarray:
    """Smooth colours that move, so that coding loses little."""
    down, across = np.mgrid[: size[0], : size[1]] / max(size)
    return np.stack([down * 200 + 5 * index, across * 200, (down + across) * 80 + 40], axis=-1).astype(np.uint8)


def _video(
    path: Path,
    *,
    count: int = 6,
    size: tuple[int, int] = (32, 48),
    sound: str | None = "aac",
    times: Any = None,
    options: Any = None,
    **of: Any,
) -> Path:
    """Frames at 12.5 a second, or at `times` in hundredths of a second, with a tone beside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=options or {}) as container:
        video: Any = container.add_stream("libx264", rate=Fraction(25, 2), options={"crf": "1", "preset": "ultrafast"})
        video.height, video.width = size
        video.pix_fmt = "yuv444p"
        video.codec_context.time_base = Fraction(1, 100)
        for name, value in of.items():
            setattr(video.codec_context, name, value)
        audio: Any = container.add_stream(sound, rate=16000, layout="mono") if sound else None
        for index in range(count):
            frame = av.VideoFrame.from_ndarray(_frame(index, size=size), format="rgb24")
            frame = frame.reformat(format="yuv444p", dst_colorspace=of.get("colorspace"))
            frame.pts, frame.time_base = times[index] if times else 8 * index, Fraction(1, 100)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if audio:
            tone = np.sin(np.arange(16000 * count * 8 // 100) / 10).astype(np.float32)[None]
            frame = av.AudioFrame.from_ndarray(tone, format="fltp", layout="mono")
            frame.sample_rate = 16000
            container.mux(audio.encode(frame))
            container.mux(audio.encode(None))
    return path


def _read(path: Path) -> tuple[list[np.ndarray], list[float | None]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return [frame.to_ndarray(format="rgb24") for frame in frames], [frame.time for frame in frames]


def _sound(path: Path) -> list[tuple[Any, bytes]]:
    with av.open(str(path)) as container:
        return [(float(one.pts * one.time_base), bytes(one)) for one in container.demux(audio=0) if one.pts is not None]


@pytest.mark.parametrize("name", ["video.mp4", "video.mkv"])
@pytest.mark.parametrize("of", [{}, {"colorspace": 1}])
def test_translates_frames_and_keeps_times_and_sound(
    tmp_path: Path, model: Translator, name: str, of: dict[str, Any]
) -> None:
    video = _video(tmp_path / name, **of)
    progress: list[tuple[int, int]] = []
    summary = translate(model, video, tmp_path / "out" / name, progress=lambda *now: progress.append(now))
    assert (summary.translated, summary.frames, summary.failed, progress[-1]) == (1, 6, (), (6, 6))
    (before, times), (after, times_after) = _read(video), _read(tmp_path / "out" / name)
    assert times_after == pytest.approx(times)
    for given, translated in zip(before, after, strict=True):
        assert np.abs(255.0 - given - translated).mean() < 4
    assert _sound(tmp_path / "out" / name) == _sound(video)
    with av.open(str(tmp_path / "out" / name)) as written:
        assert written.streams.video[0].average_rate == Fraction(25, 2)
        note = {key.lower(): value for key, value in written.metadata.items()}["comment"]
    assert note.startswith("Synthetic: translated by velogan")
    assert translate(model, video, tmp_path / "out").skipped == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("name", ["video.mp4", "video.mkv"])
@pytest.mark.parametrize("faststart", [False, True])
def test_rejects_a_truncated_video(tmp_path: Path, model: Translator, name: str, faststart: bool) -> None:
    options = {"movflags": "faststart"} if faststart and name == "video.mp4" else {}  # the header before the frames
    data = _video(tmp_path / name, count=40, sound=None, options=options).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 6 // 10])
    ((failed, reason),) = translate(model, tmp_path / name, tmp_path / "out").failed
    assert (failed, reason.startswith("the file is truncated")) == (name, True)
    assert not list((tmp_path / "out").iterdir())


def test_frames_of_equal_time_stay_in_order(tmp_path: Path, model: Translator) -> None:
    with av.open(str(tmp_path / "video.mkv"), "w") as container:
        video: Any = container.add_stream("ffv1", rate=Fraction(25, 2))
        video.height, video.width, video.pix_fmt = 32, 48, "yuv444p"
        frames = [av.VideoFrame.from_ndarray(_frame(index, size=(32, 48)), format="rgb24") for index in range(4)]
        packets = [packet for frame in [*frames, None] for packet in video.encode(frame)]
        for packet, time in zip(packets, (0, 80, 80, 160), strict=True):
            packet.pts = packet.dts = time
            packet.time_base = Fraction(1, 1000)
            container.mux(packet)
    assert translate(model, tmp_path / "video.mkv", tmp_path / "out.mkv").frames == 4
    assert _read(tmp_path / "out.mkv")[1] == pytest.approx([0, 0.08, 0.081, 0.16])


def test_keeps_odd_sides_and_uneven_times(tmp_path: Path, model: Translator) -> None:
    video = _video(tmp_path / "video.mp4", size=(31, 45), sound=None, times=[0, 3, 20, 21, 50, 90])
    assert translate(model, video, tmp_path / "out.mkv").frames == 6
    frames, times = _read(tmp_path / "out.mkv")
    assert times == pytest.approx([0, 0.03, 0.2, 0.21, 0.5, 0.9])
    assert frames[0].shape == (31, 45, 3)


MATRICES: list[tuple[tuple[int, int, int, int], Any]] = [
    ((0, 1, -1, 0), lambda frame: np.rot90(frame, -1)),  # as a phone held upright writes it
    ((0, -1, 1, 0), np.rot90),
    ((-1, 0, 0, -1), lambda frame: frame[::-1, ::-1]),
    ((-1, 0, 0, 1), lambda frame: frame[:, ::-1]),  # a mirror
    ((0, 1, 1, 0), lambda frame: frame.transpose(1, 0, 2)),
]


@pytest.mark.parametrize(("matrix", "upright"), MATRICES)
def test_translates_rotated_videos_upright(
    tmp_path: Path, model: Translator, matrix: tuple[int, int, int, int], upright: Any
) -> None:
    video = _video(tmp_path / "video.mp4", sound=None, sample_aspect_ratio=Fraction(4, 3))
    a, b, c, d = (65536 * one for one in matrix)
    plain = struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 2**30)
    data = video.read_bytes()
    track = data.index(b"tkhd")
    place = data.index(plain, track)
    video.write_bytes(data[:place] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 2**30) + data[place + len(plain) :])
    assert translate(model, video, tmp_path / "out.mp4").frames == 6
    (before, _), (after, _) = _read(video), _read(tmp_path / "out.mp4")
    for given, translated in zip(before, after, strict=True):
        assert np.abs(255.0 - upright(given) - translated).mean() < 4
    with av.open(str(tmp_path / "out.mp4")) as written:
        stream = written.streams.video[0]
        assert stream.sample_aspect_ratio == (Fraction(3, 4) if a == 0 else Fraction(4, 3))
        assert all(frame.side_data.get("DISPLAYMATRIX") is None for frame in written.decode(stream))


def test_reports_videos_that_cannot_be_translated(tmp_path: Path, model: Translator) -> None:
    video = _video(tmp_path / "video.mp4")
    (tmp_path / "text.mp4").write_text("#EXTM3U\n#EXTINF:1,\n/etc/passwd\n")
    ((_, reason),) = translate(model, tmp_path / "text.mp4", tmp_path / "out/text.mp4").failed
    assert reason.startswith("damaged or unsupported video"), reason
    ((_, reason),) = translate(model, video, tmp_path / "out/video.webm").failed
    assert ".webm cannot hold its sound (aac): name an output that ends in .mkv" in reason
    (tmp_path / "odd.mp4").write_bytes(video.read_bytes().replace(b"mp4a", b"zzzz").replace(b"\x40\x15", b"\xff\x15"))
    ((_, reason),) = translate(model, tmp_path / "odd.mp4", tmp_path / "out").failed
    assert "sound (unknown)" in reason
    assert not list((tmp_path / "out").iterdir())
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (video, {}, "input itself"),
        (tmp_path / "a.png", {}, "is not a video"),
        (tmp_path / "out", {"format": "png"}, "format=png"),
        (tmp_path / "out", {"smooth": 1.0}, r"smooth=1.0"),
    ]
    for target, extra, words in wrong:
        with pytest.raises(ValueError, match=words):
            translate(model, video, target, TranslateOptions(**extra))


def test_smooths_static_parts_only() -> None:
    random = np.random.default_rng(0)
    scene = np.full((24, 40, 3), 90, np.uint8)

    def play(share: float) -> tuple[float, float]:
        """How much the still half flickers, and how far the other half, where a light goes on, is from its result."""
        smoother, flicker, late, last = Smoother(share), [], 0.0, None
        for index in range(8):
            given = scene.copy()
            given[:, 20:] = 40 if index < 4 else 200
            translated = (given + random.normal(0, 8, given.shape)).clip(0, 255).astype(np.uint8)
            shown = smoother(given, translated).astype(float)
            if last is not None:
                flicker.append(np.abs(shown - last)[:, :17].mean())
            if index == 4:
                late = float(np.abs(shown - translated)[:, 23:].max())
            last = shown
        return float(np.mean(flicker)), late

    assert play(0.8)[0] < 0.5 * play(0)[0]
    assert play(0.8)[1] < 1
    with pytest.raises(ValueError, match="from 0 to less than 1"):
        Smoother(-0.1)
