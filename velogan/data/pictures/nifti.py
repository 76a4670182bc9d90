"""Read NIfTI volumes as axial slices, and write slices back with the same affine and header."""

from __future__ import annotations

import gzip
import io
import logging
import math
from typing import Any

import numpy as np
from nibabel import imageglobals
from nibabel.nifti1 import Nifti1Extension, Nifti1Image
from nibabel.nifti2 import Nifti2Header, Nifti2Image
from nibabel.orientations import apply_orientation, io_orientation, ornt_transform

from velogan.data.pictures.picture import MAX_HEADER_BYTES, Picture, assemble, check_size
from velogan.data.pictures.scan_info import Provenance, ScanInfo
from velogan.data.pictures.values import PixelFormat, to_channels

imageglobals.logger.setLevel(logging.CRITICAL)  # nibabel logs flaws that it can ignore

_COMMENT = 6  # the code of header extensions that are text
_AS_STORED = np.array([(0, 1), (1, 1), (2, 1)])


class NiftiScan:
    """A volume or time series as axial slices, from foot to head: anterior at the top, patient's left on the left."""

    def __init__(self, image: Nifti1Image, *, compressed: bool):
        self._image, self._compressed = image, compressed
        self._shape = image.shape
        self._sides = (*self._shape, 1, 1)[:4]
        self._orientation = io_orientation(image.affine)
        if np.isnan(self._orientation).any():
            self._orientation = _AS_STORED
        order = np.argsort(self._orientation[:, 0])
        self._canonical = [self._sides[int(axis)] for axis in order]
        self.bits = np.dtype(image.get_data_dtype()).itemsize * 8

    def __len__(self) -> int:
        return self._canonical[2] * self._sides[3]

    @property
    def info(self) -> ScanInfo:
        """The header: only the number of volumes in time, since NIfTI has no field for the patient."""
        return ScanInfo(times=self._sides[3])

    def picture(self, index: int) -> Picture:
        """Return an axial slice in the volume's units; `index` counts from foot to head, then in time."""
        time, level = divmod(index, self._canonical[2])
        axis = int(np.argwhere(self._orientation[:, 0] == 2)[0, 0])
        position = level if self._orientation[axis, 1] > 0 else self._sides[axis] - 1 - level
        chosen: list[Any] = [slice(None)] * 3 + [time] + [0] * (len(self._shape) - 4)
        chosen[axis] = slice(position, position + 1)
        values = np.asanyarray(self._image.dataobj[tuple(chosen[: len(self._shape)])])
        values = values.reshape([1 if side == axis else self._sides[side] for side in range(3)])
        plane = apply_orientation(values, self._orientation)[:, :, 0]
        return assemble(np.ascontiguousarray(np.rot90(plane)))

    def encode(self, slices: list[np.ndarray], pixel_format: PixelFormat, provenance: Provenance) -> bytes:
        """Return the bytes of the file with new values; `descrip` and a header extension state its provenance."""
        planes = [np.rot90(to_channels(pixels, 1)[..., 0], k=-1) for pixels in slices]
        inverse = ornt_transform(_AS_STORED, self._orientation)
        count = self._canonical[2]
        volumes = [np.stack(planes[start : start + count], axis=2) for start in range(0, len(planes), count)]
        volume = np.stack([apply_orientation(volume, inverse) for volume in volumes], axis=3).reshape(self._shape)
        header = self._image.header.copy()
        header.set_data_dtype(volume.dtype)
        header["scl_slope"], header["scl_inter"] = 1, 0
        header["cal_min"], header["cal_max"] = pixel_format.range or (0, 0)
        header["intent_code"] = header["intent_p1"] = header["intent_p2"] = header["intent_p3"] = 0
        header["intent_name"] = header["aux_file"] = b""  # the meaning of values, and their colours
        for name in {"glmax", "glmin"} & set(header):
            header[name] = 0
        header["descrip"] = f"SYNTHETIC by {provenance.program} {provenance.version}, not for diagnosis"[:79].encode()
        header.extensions.append(Nifti1Extension(_COMMENT, provenance.text.encode()))
        header["vox_offset"] = 0  # recomputed, since the extension moves the data
        data = type(self._image)(volume, self._image.affine, header).to_bytes()
        return gzip.compress(data, compresslevel=6, mtime=0) if self._compressed else data


def read_nifti(data: bytes, *, compressed: bool) -> NiftiScan:
    """Read a NIfTI file's bytes. `compressed`: whether they may be gzip, decompressed as far as the header states."""
    is_gzip = compressed and data[:2] == b"\x1f\x8b"
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(data)) if is_gzip else io.BytesIO(data)
    start = stream.read(Nifti2Header.sizeof_hdr)
    kind = next((kind for kind in (Nifti1Image, Nifti2Image) if kind.header_class.may_contain_header(start)), None)
    if kind is None:
        raise ValueError("it has no NIfTI header")
    header: Any = kind.header_class(start[: kind.header_class.sizeof_hdr], check=False)
    shape, dtype = header.get_data_shape(), header.get_data_dtype()
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise ValueError(f"values of type {str(dtype)[:40]} are not real numbers")
    if not 2 <= len(shape) <= 7 or min(shape) < 1 or math.prod(shape[4:]) != 1:
        raise ValueError(f"shape {shape}: a volume has 3 dimensions, or 4 with time")
    sides = [*shape, 1][:3]
    rest = math.prod(shape) // (sides[0] * sides[1])
    check_size(sides[1], sides[0], rest * dtype.itemsize, working=rest / sides[2] * 4 + 16)
    offset, size = float(header["vox_offset"]), math.prod(shape) * dtype.itemsize
    if not int(header["sizeof_hdr"]) <= offset <= MAX_HEADER_BYTES:
        raise ValueError(f"its values begin at byte {offset:.0f}: the file is damaged")
    content = start + stream.read(max(0, int(offset) + size - len(start)))
    if len(content) < int(offset) + size:
        raise ValueError(f"{len(content)} bytes of {int(offset) + size}: the file is truncated")
    return NiftiScan(kind.from_bytes(content), compressed=compressed)
