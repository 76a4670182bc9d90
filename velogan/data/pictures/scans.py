"""Files of one or many slices: DICOM, NIfTI and TIFF stacks, read in their units and written back as synthetic.

pydicom and nibabel are imported when the first such file is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from velogan.data.pictures.picture import (
    DICOM_MAGIC_OFFSET,
    check_file,
    convert_decode_errors,
    read_first_bytes,
)
from velogan.data.pictures.tiff import TiffStack
from velogan.files import require

if TYPE_CHECKING:
    from velogan.data.pictures.dicom import DicomScan
    from velogan.data.pictures.nifti import NiftiScan

SUFFIXES = (".dcm", ".dicom", ".ima", ".nii.gz", ".nii")
"""The suffixes of medical files. DICOM files without a suffix are recognised by their bytes."""

POSSIBLE_SUFFIXES = {".dcm", ".dicom", ".ima", ".nii", ".gz", ""}
"""The last suffixes of names that `scan_suffix` may accept."""

STACK_SUFFIXES = {".tif", ".tiff"}
"""The suffixes of TIFF files, whose pages are slices if the user requests it."""


Scan: TypeAlias = "DicomScan | NiftiScan | TiffStack"
"""A file of slices: `len()` is their number, `bits` the number of used bits of a stored value, `info` its header.

- `picture(index)` returns a slice, grey or RGB, in the file's units
- `encode(slices, pixel_format, provenance)` returns the bytes of the file with new slices `(H, W, C)`; medical headers
  state the provenance. Call it once: it may modify the scan. It raises ValueError if the format cannot hold the slices.
"""


def scan_suffix(path: Path) -> str | None:
    """Return the suffix of a medical file, `""` for DICOM without a suffix, or None for other files."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    if "." in name or name == "dicomdir":
        return None
    return "" if read_first_bytes(path, DICOM_MAGIC_OFFSET + 4)[DICOM_MAGIC_OFFSET:] == b"DICM" else None


def read_scan(path: Path) -> Scan:
    """Read DICOM, NIfTI, or a TIFF whose pages are slices. Raises ValueError for other, damaged and too large files."""
    suffix, is_stack = scan_suffix(path), path.suffix.lower() in STACK_SUFFIXES
    if suffix is None and not is_stack:
        raise ValueError(f"not a medical file: their names end in {', '.join(SUFFIXES)}")
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
            return read_nifti(data, compressed=suffix == ".nii.gz")
    from velogan.data.pictures.dicom import read_dicom

    with convert_decode_errors("DICOM"):
        return read_dicom(data)


def require_library(path: Path) -> None:
    """Raise ValueError, with the extra to install, if the library that reads a medical file is missing."""
    suffix = scan_suffix(path)
    if suffix is not None:
        module = "nibabel" if ".nii" in suffix else "pydicom"
        require("medical", module, feature=f"a {suffix or 'DICOM'} file")
