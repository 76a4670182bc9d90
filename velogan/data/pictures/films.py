"""Films, frame by frame: decoded, changed, and encoded again beside their sound, which is copied as it is.

PyAV, which knows them, is loaded when there is such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from velogan.data.pictures.picture import check_size, convert_decode_errors

if TYPE_CHECKING:
    from av import AudioStream, VideoFrame, VideoStream
    from av.container import InputContainer, OutputContainer

SUFFIXES = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
"""What the names of films end in, with the format that is written."""

Change = Callable[[Iterator[np.ndarray]], Iterable[np.ndarray]]
"""Frames `(H, W, 3)` uint8 to as many of the same size, in order; it may look a few ahead."""

_READ = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"}  # none that would open other files
_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "webm": ("libvpx-vp9", {"crf": "24", "b": "0", "row-mt": "1", "cpu-used": "4"})
}
_MATRICES = {1: 1, 2: 5, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9}
"""Codes of H.273 for how RGB becomes luma and two differences: those that are converted, each with its equal."""
_LIMITED, _FULL = 1, 2  # black is 16 and white 235 of 255, or 0 and 255
_X264: tuple[str, dict[str, str]] = ("libx264", {"crf": "17", "preset": "medium"})


def is_film(path: Path) -> bool:
    """Whether a file's name is that of a film."""
    return path.suffix.lower() in SUFFIXES


def count_frames(path: Path) -> int:
    """How many frames a film says that it has, or its length and rate do; 0 where nothing says it."""
    import av

    with convert_decode_errors("film"), path.open("rb") as file, av.open(file, "r", options=_READ) as film:
        video = film.streams.video[0] if film.streams.video else None
        if video is None:
            raise ValueError("it has no pictures")
        seconds = (film.duration or 0) / 1e6
        return video.frames or int(seconds * float(video.average_rate or 0))


def rewrite_film(source: Path, target: Path, change: Change, *, suffix: str, comment: str) -> int:
    """Write `source` to `target` with its frames changed; gives how many. `suffix` names the format.

    Times of frames are kept, constant rate or not, and sound is copied without coding it again. Frames are turned
    upright. Memory holds a few frames. `comment` goes into the file's comment. ValueError with the reason where the
    film is damaged, its frames change size, or the format cannot hold its sound.
    """
    import av

    with source.open("rb") as read, target.open("w+b") as write:
        with convert_decode_errors("film"):
            film = av.open(read, "r", options=_READ)
        with film:
            with convert_decode_errors("film"):
                out = av.open(write, "w", format=SUFFIXES[suffix])
            try:
                with convert_decode_errors("film"):
                    copy = _FilmWriter(film, out, suffix, comment)
                done = copy.all(change)
                with convert_decode_errors("film"):
                    out.close()
                return done
            except BaseException:
                with suppress(Exception):
                    out.close()
                raise


class _FilmWriter:
    """One film on its way into another file."""

    def __init__(self, film: InputContainer, out: OutputContainer, suffix: str, comment: str):
        from av.video.reformatter import VideoReformatter

        self._film, self._out, self._suffix = film, out, suffix
        if not film.streams.video:
            raise ValueError("it has no pictures")
        self._video: VideoStream = film.streams.video[0]
        self._video.thread_type = "AUTO"
        check_size(self._video.height, self._video.width, 3, working=9)
        self._sound: dict[int, AudioStream] = {}
        self._made: VideoStream | None = None
        self._early: list[Any] = []  # sound before the first frame: a file begins with all its streams
        self._shown: list[VideoFrame] = []  # read, and not yet written
        self._coder = VideoReformatter()
        self._coded = (0, 0)  # matrix and range of the values, which are the first frame's

        out.metadata.update({**film.metadata, "comment": comment})
        for stream in film.streams.audio:
            try:
                self._sound[stream.index] = out.add_stream_from_template(stream)
            except Exception as error:
                raise self._no_sound(stream) from error
            told = {key: stream.metadata[key] for key in ("language", "title") if key in stream.metadata}
            self._sound[stream.index].metadata.update(told)

    def all(self, change: Change) -> int:
        """Play it through."""
        count = 0
        for picture in change(self._pictures()):
            frame = self._shown.pop(0)
            self._write(frame, picture)
            count += 1
        if self._made is None:
            raise ValueError("it has no pictures that can be read")
        with convert_decode_errors("film"):
            self._out.mux(self._made.encode(None))
        return count

    def _pictures(self) -> Iterator[np.ndarray]:
        """The frames; sound is copied on the way."""
        size: tuple[int, ...] | None = None
        packets = self._film.demux([self._video, *self._film.streams.audio])
        while True:
            with convert_decode_errors("film"):
                packet = next(packets, None)
                frames: list[Any] = list(packet.decode()) if packet and packet.stream is self._video else []
            if packet is None:
                return
            if packet.stream is not self._video and packet.dts is not None:
                with convert_decode_errors("film"):
                    self._copy_sound(packet)
            for frame in frames:
                with convert_decode_errors("film"):
                    check_size(frame.height, frame.width, 3, working=9)
                    if frame.interlaced_frame:
                        raise ValueError("its frames are interlaced, of two moments each: make it progressive first")
                    turned, picture = _turn_upright(frame)
                    if size not in (None, picture.shape):
                        raise ValueError(f"its frames change size, to {frame.width}x{frame.height}: cut it there")
                    size = picture.shape
                    self._shown.append(frame)
                    self._start(frame, picture, turned=turned)
                yield picture
                del picture

    def _start(self, frame: VideoFrame, picture: np.ndarray, *, turned: bool) -> None:
        """Begin the pictures of the new film, which are of the first frame's size; `turned`: rows were columns."""
        if self._made is not None:
            return
        given, (height, width) = self._video, picture.shape[:2]
        codec, options = _CODECS.get(SUFFIXES[self._suffix], _X264)
        made = cast("VideoStream", self._out.add_stream(codec, rate=given.average_rate or 25, options=options))
        self._made, self._coded = made, _read_colour_coding(frame)
        made.width, made.height = width, height
        made.pix_fmt = "yuv444p" if height % 2 or width % 2 else "yuv420p"
        made.time_base = made.codec_context.time_base = given.time_base or Fraction(1, 90000)
        if shape := given.sample_aspect_ratio:  # of a pixel
            made.codec_context.sample_aspect_ratio = 1 / shape if turned else shape
        made.codec_context.color_primaries = given.codec_context.color_primaries
        made.codec_context.color_trc = given.codec_context.color_trc
        made.codec_context.colorspace, made.codec_context.color_range = self._coded
        while self._early:
            self._copy_sound(self._early.pop(0))

    def _write(self, shown: VideoFrame, picture: np.ndarray) -> None:
        from av import VideoFrame

        assert self._made is not None
        assert self._made.pix_fmt is not None
        with convert_decode_errors("film"):
            matrix, span = self._coded
            frame = VideoFrame.from_ndarray(picture, format="rgb24")
            frame = self._coder.reformat(
                frame,
                format=self._made.pix_fmt,
                src_color_range=_FULL,
                dst_color_range=span or _LIMITED,
                dst_colorspace=_MATRICES[matrix],
            )
            frame.pts, frame.time_base = shown.pts, shown.time_base
            self._out.mux(self._made.encode(frame))

    def _copy_sound(self, packet: Any) -> None:
        if self._made is None:
            self._early.append(packet)
            return
        stream = packet.stream
        packet.stream = self._sound[stream.index]
        try:
            self._out.mux(packet)
        except Exception as error:
            raise self._no_sound(stream) from error

    def _no_sound(self, stream: AudioStream) -> ValueError:
        name = stream.codec_context.name if stream.codec_context else "unknown"
        return ValueError(f"{self._suffix} cannot hold its sound ({name}): name an output that ends in .mkv")


def _read_colour_coding(frame: VideoFrame) -> tuple[int, int]:
    """How the values of a film like `frame` are coded: matrix and range, as its file says them; those of HD for RGB.

    ValueError for a matrix that is not converted.
    """
    if frame.format.is_rgb:
        return 1, _LIMITED
    matrix, span = int(frame.colorspace), int(frame.color_range)
    if matrix not in _MATRICES:
        raise ValueError(f"its colours are coded in a rare way (matrix {matrix} of H.273): convert it to BT.709 first")
    return matrix, _FULL if frame.format.name.startswith("yuvj") else span


def _turn_upright(frame: VideoFrame) -> tuple[bool, np.ndarray]:
    """A frame `(H, W, 3)` uint8 as players show it, and whether its rows were columns.

    Films of phones are stored as the sensor lies, with a matrix that turns them, and may mirror them. Of a matrix that
    turns by less than a quarter, the nearest quarter is taken.
    """
    picture = frame.to_ndarray(format="rgb24")
    said = frame.side_data.get("DISPLAYMATRIX")
    if said is None:
        return False, picture
    a, b, _, c, d = np.frombuffer(bytes(said), np.int32)[:5]  # x, y there are a x + c y, b x + d y
    turned = abs(int(b)) > abs(int(a))
    if turned:
        picture, right, down = picture.transpose(1, 0, 2), c, b
    else:
        right, down = a, d
    return turned, np.ascontiguousarray(picture[:: -1 if down < 0 else 1, :: -1 if right < 0 else 1])
