"""Files of one or many slices: DICOM and NIfTI, read with their rescaling and written back as synthetic; TIFF stacks.

The libraries that know them, pydicom and nibabel, are loaded when there is such a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from velogan.data.pictures.picture import (
    DICOM_MAGIC_OFFSET,
    Picture,
    check_file,
    convert_decode_errors,
    read_first_bytes,
)
from velogan.data.pictures.provenance import Provenance
from velogan.data.pictures.scan_info import ScanInfo
from velogan.data.pictures.tiff import TiffStack
from velogan.data.pictures.values import PixelFormat
from velogan.files import require

SUFFIXES = (".dcm", ".dicom", ".ima", ".nii.gz", ".nii")
"""What the names of such files end in. DICOM files without any suffix are found by their bytes."""

POSSIBLE_SUFFIXES = {".dcm", ".dicom", ".ima", ".nii", ".gz", ""}
"""The last suffixes of names that `scan_suffix` may know."""

STACK_SUFFIXES = {".tif", ".tiff"}
"""What the names of pictures of several pages end in, which are files of slices where the user says so."""


class Scan(Protocol):
    """A file of slices. `bits`: how many of a stored value's bits are used."""

    @property
    def bits(self) -> int: ...

    @property
    def info(self) -> ScanInfo: ...

    def __len__(self) -> int:
        """How many slices it has."""
        ...

    def picture(self, index: int) -> Picture:
        """One of them: grey or RGB, in the values that the file means."""
        ...

    def encode(self, slices: list[np.ndarray], form: PixelFormat, made: Provenance) -> bytes:
        """The bytes of such a file with other slices, `(H, W, C)` in `form`, and all else kept; it says who made it.

        Call it once: the scan may be used up. ValueError where the format cannot hold them.
        """
        ...


def scan_suffix(path: Path) -> str | None:
    """What the name of a medical file ends in, `""` for DICOM without a suffix; None for other files."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    if "." in name or name == "dicomdir":
        return None
    return "" if read_first_bytes(path, DICOM_MAGIC_OFFSET + 4)[DICOM_MAGIC_OFFSET:] == b"DICM" else None


def read_scan(path: Path) -> Scan:
    """Read a DICOM or NIfTI file, or a TIFF whose pages are slices.

    Raises `ValueError` with the reason if it is damaged, too large or none of them.
    """
    suffix, stack = scan_suffix(path), path.suffix.lower() in STACK_SUFFIXES
    if suffix is None and not stack:
        raise ValueError(f"no medical file: names of these end in {', '.join(SUFFIXES)}")
    check_file(path)
    data = path.read_bytes()
    if not data:
        raise ValueError("the file is empty")
    if suffix is None:
        with convert_decode_errors("TIFF"):
            return TiffStack(data)
    if suffix.startswith(".nii"):
        from velogan.data.pictures.nifti import read_nifti

        with convert_decode_errors("NIfTI"):
            return read_nifti(data, packed=suffix == ".nii.gz")
    from velogan.data.pictures.dicom import read_dicom

    with convert_decode_errors("DICOM"):
        return read_dicom(data)


def require_library(path: Path) -> None:
    """ValueError, which names the extra, where the library for a medical file is missing."""
    suffix = scan_suffix(path)
    if suffix is not None:
        module = "nibabel" if ".nii" in suffix else "pydicom"
        require("medical", module, user=f"a {suffix or 'DICOM'} file")
