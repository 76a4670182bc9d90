"""The prepared pixels of a domain, read from their file as they are needed.

The file is not mapped into memory. If a mapped file is cut short, or its disk fails, the process dies by a signal
(SIGBUS). A read gives an error instead, and costs the same.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Shape = tuple[int, int, int]
"""A picture's height, width and channels."""


def offsets(shapes: Sequence[Shape]) -> np.ndarray:
    """Give the place of each picture's first value, and the count of all values."""
    sizes = np.fromiter((height * width * channels for height, width, channels in shapes), np.int64, len(shapes))
    return np.concatenate([[0], np.cumsum(sizes)])


class PixelFile:
    """A flat array of `dtype` on disk. Only the slice that is asked for is read into memory."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._path, self.dtype = path, dtype
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self.nbytes = os.fstat(self._file).st_size

    def __getitem__(self, part: slice) -> np.ndarray:
        """Read the values from `part.start` to `part.stop`; `OSError` names the file and the mend."""
        values = np.empty(part.stop - part.start, self.dtype)
        room, at = values.data.cast("B"), int(part.start) * self.dtype.itemsize
        while room:
            try:
                count = os.preadv(self._file, [room], at)
            except OSError as error:
                raise self._error(error.errno or errno.EIO, error.strerror or "it cannot be read") from error
            if not count:
                raise self._error(errno.EIO, "something has cut this file short since it was opened")
            room, at = room[count:], at + count
        return values

    def _error(self, number: int, reason: str) -> OSError:
        mend = "start the command again, and the pictures are prepared anew; or name another folder as data.cache_dir"
        return OSError(number, f"{reason}: {mend}", str(self._path))
