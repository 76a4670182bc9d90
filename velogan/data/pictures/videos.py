"""Decode videos frame by frame, change the frames, and encode them again; the sound is copied.

PyAV is imported when the first video is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from io import SEEK_END
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from velogan.data.pictures.picture import check_size, convert_decode_errors

if TYPE_CHECKING:
    from av import AudioStream, VideoFrame, VideoStream
    from av.container import InputContainer, OutputContainer

SUFFIXES = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
"""The suffixes of videos, with the container format that is written."""

Change = Callable[[Iterator[np.ndarray]], Iterable[np.ndarray]]
"""A function that converts frames `(H, W, 3)` uint8, in order, to as many of that size; it may read a few ahead."""

_READ = {"format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm"}  # without formats that open other files
_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "webm": ("libvpx-vp9", {"crf": "24", "b": "0", "row-mt": "1", "cpu-used": "4"})
}
_MATRICES = {1: 1, 2: 5, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9}
"""Matrix coefficients of H.273 that can be converted, each with the code that PyAV takes for it."""
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"  # the two elements of a Matroska file
_LIMITED, _FULL = 1, 2  # black is 16 and white 235 of 255, or 0 and 255
_X264: tuple[str, dict[str, str]] = ("libx264", {"crf": "17", "preset": "medium"})


def is_video(path: Path) -> bool:
    """Return whether a file has the suffix of a video."""
    return path.suffix.lower() in SUFFIXES


def count_frames(path: Path) -> int:
    """Return the number of frames that a video's header states, else its duration times its frame rate, else 0."""
    import av

    with convert_decode_errors("video"), path.open("rb") as file, av.open(file, "r", options=_READ) as container:
        video = container.streams.video[0] if container.streams.video else None
        if video is None:
            raise ValueError("it has no video stream")
        seconds = (container.duration or 0) / 1e6
        return video.frames or int(seconds * float(video.average_rate or 0))


def rewrite_video(source: Path, target: Path, change: Change, *, suffix: str, comment: str) -> int:
    """Write `source` to `target` with changed frames; return the number of frames.

    suffix: selects the container format
    comment: the comment in the metadata of the file

    Presentation times are kept, also at a variable frame rate; sound is copied without re-encoding; frames are turned
    upright. Memory holds a few frames. Raises ValueError with the reason if the video is damaged, its frames change
    size, or the format cannot hold its sound.
    """
    import av

    with source.open("rb") as read, target.open("w+b") as write:
        with convert_decode_errors("video"):
            _check_complete(read)
            container = av.open(read, "r", options=_READ)
        with container:
            with convert_decode_errors("video"):
                out = av.open(write, "w", format=SUFFIXES[suffix])
            try:
                with convert_decode_errors("video"):
                    writer = _VideoWriter(container, out, suffix, comment)
                count = writer.run(change)
                with convert_decode_errors("video"):
                    out.close()
                return count
            except BaseException:
                with suppress(Exception):
                    out.close()
                raise


def _check_complete(file: BinaryIO) -> None:
    """Raise ValueError if a file is shorter than the media data (MP4) or segment (Matroska) that its header states."""
    size, end = file.seek(0, SEEK_END), 0
    while end < size:
        start = file.seek(end)
        head = file.read(16)
        kind, length = head[4:8], int.from_bytes(head[:4], "big")
        if head[:4] in (_EBML, _SEGMENT):
            width = 9 - head[4].bit_length()  # the first bit that is set says how many bytes the length takes
            kind, length = head[:4], int.from_bytes(head[4 : 4 + width], "big") - (1 << 7 * width)
            length = 0 if length == (1 << 7 * width) - 1 else length + 4 + width  # 0: it was unknown when written
        elif length == 1:
            length = int.from_bytes(head[8:], "big")
        if kind in (b"mdat", _SEGMENT) and start + length > size:
            raise ValueError(f"the file is truncated: it has {size} of {start + length} bytes")
        if length < 8:
            break
        end = start + length
    file.seek(0)


class _VideoWriter:
    """Writes a changed copy of one video."""

    def __init__(self, container: InputContainer, out: OutputContainer, suffix: str, comment: str):
        from av.video.reformatter import VideoReformatter

        self._container, self._out = container, out
        self._suffix = suffix
        if not container.streams.video:
            raise ValueError("it has no video stream")
        self._video: VideoStream = container.streams.video[0]
        self._video.thread_type = "AUTO"
        check_size(self._video.height, self._video.width, 3, working=9)
        self._sound: dict[int, AudioStream] = {}
        self._output_video: VideoStream | None = None
        self._pending_sound: list[Any] = []  # packets that wait until the video stream is added
        self._pending_frames: list[VideoFrame] = []  # decoded, but not yet written
        self._reformatter = VideoReformatter()
        self._colour_coding = (0, 0)  # matrix and range of the first frame
        self._last_time = -(2**62)

        out.metadata.update({**container.metadata, "comment": comment})
        for stream in container.streams.audio:
            try:
                self._sound[stream.index] = out.add_stream_from_template(stream)
            except Exception as error:
                raise self._sound_error(stream) from error
            metadata = {key: stream.metadata[key] for key in ("language", "title") if key in stream.metadata}
            self._sound[stream.index].metadata.update(metadata)

    def run(self, change: Change) -> int:
        """Change and write all frames; return their number."""
        count = 0
        for pixels in change(self._decode_frames()):
            frame = self._pending_frames.pop(0)
            self._write(frame, pixels)
            count += 1
        if self._output_video is None:
            raise ValueError("it has no frames that can be read")
        with convert_decode_errors("video"):
            self._out.mux(self._output_video.encode(None))
        return count

    def _decode_frames(self) -> Iterator[np.ndarray]:
        """Yield the upright frames `(H, W, 3)` uint8, and copy the packets of sound between them."""
        size: tuple[int, ...] | None = None
        packets = self._container.demux([self._video, *self._container.streams.audio])
        while True:
            with convert_decode_errors("video"):
                packet = next(packets, None)
                frames: list[Any] = list(packet.decode()) if packet and packet.stream is self._video else []
            if packet is None:
                return
            if packet.stream is not self._video and packet.dts is not None:
                with convert_decode_errors("video"):
                    self._copy_sound(packet)
            for frame in frames:
                with convert_decode_errors("video"):
                    check_size(frame.height, frame.width, 3, working=9)
                    if frame.interlaced_frame:
                        raise ValueError("its frames are interlaced: deinterlace it first")
                    is_turned, pixels = _turn_upright(frame)
                    if size not in (None, pixels.shape):
                        raise ValueError(f"its frames change size, to {frame.width}x{frame.height}: cut it there")
                    size = pixels.shape
                    self._pending_frames.append(frame)
                    self._start(frame, pixels, is_turned=is_turned)
                yield pixels
                del pixels

    def _start(self, frame: VideoFrame, pixels: np.ndarray, *, is_turned: bool) -> None:
        """Add the video stream in the size of the first frame. `is_turned`: rows and columns were exchanged."""
        if self._output_video is not None:
            return
        source, (height, width) = self._video, pixels.shape[:2]
        codec, options = _CODECS.get(SUFFIXES[self._suffix], _X264)
        output = cast("VideoStream", self._out.add_stream(codec, rate=source.average_rate or 25, options=options))
        self._output_video, self._colour_coding = output, _read_colour_coding(frame)
        output.width, output.height = width, height
        output.pix_fmt = "yuv444p" if height % 2 or width % 2 else "yuv420p"
        output.time_base = output.codec_context.time_base = source.time_base or Fraction(1, 90000)
        if shape := source.sample_aspect_ratio:  # of a pixel
            output.codec_context.sample_aspect_ratio = 1 / shape if is_turned else shape
        output.codec_context.color_primaries = source.codec_context.color_primaries
        output.codec_context.color_trc = source.codec_context.color_trc
        output.codec_context.colorspace, output.codec_context.color_range = self._colour_coding
        while self._pending_sound:
            self._copy_sound(self._pending_sound.pop(0))

    def _write(self, source: VideoFrame, pixels: np.ndarray) -> None:
        """Encode a frame's new pixels at the presentation time of the original frame `source`."""
        from av import VideoFrame

        assert self._output_video is not None
        assert self._output_video.pix_fmt is not None
        with convert_decode_errors("video"):
            matrix, colour_range = self._colour_coding
            frame = VideoFrame.from_ndarray(pixels, format="rgb24")
            frame = self._reformatter.reformat(
                frame,
                format=self._output_video.pix_fmt,
                src_color_range=_FULL,
                dst_color_range=colour_range or _LIMITED,
                dst_colorspace=_MATRICES[matrix],
            )
            if source.pts is not None:  # encoders reject equal times: such a frame is delayed by one unit
                frame.pts = self._last_time = max(source.pts, self._last_time + 1)
            frame.time_base = source.time_base
            self._out.mux(self._output_video.encode(frame))

    def _copy_sound(self, packet: Any) -> None:
        if self._output_video is None:
            self._pending_sound.append(packet)
            return
        stream = packet.stream
        packet.stream = self._sound[stream.index]
        try:
            self._out.mux(packet)
        except Exception as error:
            raise self._sound_error(stream) from error

    def _sound_error(self, stream: AudioStream) -> ValueError:
        name = stream.codec_context.name if stream.codec_context else "unknown"
        return ValueError(f"{self._suffix} cannot hold its sound ({name}): name an output that ends in .mkv")


def _read_colour_coding(frame: VideoFrame) -> tuple[int, int]:
    """Return the codes of a frame's colour matrix (RGB: BT.709) and range. Raises ValueError if unsupported."""
    if frame.format.is_rgb:
        return 1, _LIMITED
    matrix, colour_range = int(frame.colorspace), int(frame.color_range)
    if matrix not in _MATRICES:
        raise ValueError(f"its colour matrix ({matrix} of H.273) is not supported: convert it to BT.709 first")
    return matrix, _FULL if frame.format.name.startswith("yuvj") else colour_range


def _turn_upright(frame: VideoFrame) -> tuple[bool, np.ndarray]:
    """Return whether rows and columns were exchanged, and the frame `(H, W, 3)` uint8 as players show it.

    Phones store frames in the orientation of the sensor, with a matrix that rotates and may mirror them. Rotations are
    rounded to multiples of 90 degrees.
    """
    pixels = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False, pixels
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5]  # maps x, y to a x + c y, b x + d y
    is_turned = abs(int(b)) > abs(int(a))
    if is_turned:
        pixels, right = pixels.transpose(1, 0, 2), c
        down = b
    else:
        right, down = a, d
    return is_turned, np.ascontiguousarray(pixels[:: -1 if down < 0 else 1, :: -1 if right < 0 else 1])
