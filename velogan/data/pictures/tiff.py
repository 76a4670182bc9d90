"""TIFF files as pictures: one page, or equal grey pages as channels."""

from __future__ import annotations

import io
import logging
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tifffile
from PIL import Image
from tifffile import TiffFile, TiffPage

from velogan.data.pictures.about import About
from velogan.data.pictures.geography import fill, geography_of
from velogan.data.pictures.jpeg import read_jpeg_header
from velogan.data.pictures.notes import Notes, told
from velogan.data.pictures.picture import MAX_BYTES, Picture, assemble, check_size, merged, pixel_bytes, plain
from velogan.data.pictures.provenance import Provenance
from velogan.data.pictures.values import PixelFormat
from velogan.files import counted

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it logs flaws that it can repair

_MAX_PAGES = 4096
_ROWS = 256
_UNPACKED = 1
_JPEG = 7
_COMPRESSIONS = {_UNPACKED, 2, 3, 4, 5, _JPEG, 8, 32773, 32946, 34925, 50000}
"""None, fax (CCITT), LZW, JPEG, deflate, PackBits, LZMA, Zstandard: their decoders never exceed the given size."""

_WHITE_IS_ZERO, _GREY, _RGB, _PALETTE, _CMYK, _YCBCR, _LAB = 0, 1, 2, 3, 5, 6, 8
_COLOURS = {_RGB: 3, _CMYK: 4, _YCBCR: 3, _LAB: 3}
_ONE_FILE: dict[str, Any] = {f"is_{form}": False for form in ("ome", "lsm", "ndpi", "scanimage", "imagej")}
"""Formats of microscopes: for these, tifffile may open other files or regroup the pages."""

_APART = "translate each alone by --pages slices, in training by --data.pages slices"
_COUNTS = {
    "channels": r'\bSizeC="(\d+)"|^channels=(\d+)',
    "slices": r'\bSizeZ="(\d+)"|^slices=(\d+)',
    "times": r'\bSizeT="(\d+)"|^frames=(\d+)',
}
_MARKS = re.compile(r"<OME\b|^ImageJ=")
_AXES = re.compile(r'^\{.*"axes": "([A-Z])YXS?"')  # as tifffile writes it
_LONGEST_TEXT = 2**16
_FOR_A_CENTIMETRE = dict.fromkeys(("micron", "um", "µm", r"\u00B5m"), 10**4) | {"nm": 10**7, "mm": 10, "cm": 1}
_NO_UNIT = 1

_ORIENTATION, _ICC = 274, 34675
_RESOLUTION = (282, 283, 296)


def decode_tiff(data: bytes, *, channels: bool = False, filled: bool = True) -> Picture:
    """Decode the bytes of a TIFF file; raises `ValueError` for unsupported kinds and false sizes.

    Grey, RGB, palette, CMYK, Lab (8 bits) and JPEG's YCbCr; the last four become RGB. Smaller pages (previews, pyramid
    levels) are skipped. 1 to 7 bits are scaled to 8; 9 to 15 bits stay unchanged, in uint16. `channels`: several pages
    are that, where the file does not say what they are. `filled`: as of `images.read_picture`.
    """
    with TiffFile(io.BytesIO(data), **_ONE_FILE) as file:
        pages = _checked(file, data)
        said = _said(pages[0].description)
        if len(pages) > 1:
            if any(page.photometric not in (_WHITE_IS_ZERO, _GREY) or page.samplesperpixel > 1 for page in pages):
                raise ValueError(f"{len(pages)} colour pages; only grey pages can be channels: {_APART}")
            if said.apart > 1:
                raise ValueError(f"its {len(pages)} pages are {said.what}, as its description says: {_APART}")
            if said.channels != len(pages) and not (channels and not said.channels):
                raise ValueError(
                    f"{len(pages)} pages, and nothing says whether they are channels, slices or times: say it by "
                    "--pages channels or --pages slices, in training by --data.pages"
                )
        return _picture(pages, filled=filled)


class TiffStack:
    """A TIFF file whose pages are pictures of their own, slices or times, for several threads.

    Made of the file's bytes; raises `ValueError` as `decode_tiff` does.
    """

    def __init__(self, data: bytes):
        self._file = TiffFile(io.BytesIO(data), **_ONE_FILE)
        self._file.filehandle.set_lock(True)  # else one thread seeks between another's seek and read
        self._pages = _checked(self._file, data)
        first = self._pages[0]
        self.bits = first.dtype.itemsize * 8 if first.dtype else 0

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def about(self) -> About:
        """Nothing is known."""
        return About()

    def picture(self, index: int) -> Picture:
        """A page."""
        return _picture([self._pages[index]])

    def written(self, slices: list[np.ndarray], form: PixelFormat, made: Provenance) -> bytes:
        """Such a file, with alpha, resolution and place on the Earth as they were."""
        given = [self.picture(index) for index in range(len(self))]
        pages = [replace(one, pixels=pixels, icc=None) for one, pixels in zip(given, slices)]
        if pages[0].alpha is not None and pages[0].alpha.dtype != slices[0].dtype:
            raise ValueError("pages with alpha become values of another type: save them without alpha")
        axis = "T" if _said(self._pages[0].description).times > 1 else "Z"
        return _encoded(pages, axis=axis)


def _checked(file: TiffFile, data: bytes) -> list[TiffPage]:
    """The pages of a file, whose sizes are those of their headers."""
    pages = _pages(file)
    for page in pages:
        _check(page, data, len(pages))
    said = _said(pages[0].description)
    if said.images > max(1, len(pages)):
        raise ValueError(
            f"{said.images} images behind {counted(len(pages), 'page')}, as ImageJ stores large stacks: save each as "
            "a file of its own"
        )
    if said.channels > 1 and said.apart > 1 and len(pages) > 1:
        raise ValueError(
            f"its {len(pages)} pages are {said.apart} {said.what} of {said.channels} channels, as it says itself: "
            "save each channel as a file of its own"
        )
    return pages


def _picture(pages: list[TiffPage], *, filled: bool = True) -> Picture:
    """A page, or grey pages as channels."""
    first = pages[0]
    if len(pages) > 1:
        array, alpha = np.stack([_values(page)[..., 0] for page in pages], axis=-1), None
    else:
        array, alpha = _colours(first, _values(first))
    own = first.photometric in (_WHITE_IS_ZERO, _GREY, _RGB, _PALETTE)
    icc = first.tags.valueof(_ICC) if own else None
    turned = first.tags.valueof(_ORIENTATION)
    across, down, unit = (first.tags.valueof(tag) for tag in _RESOLUTION)
    notes = _measured(told(across, down, int(unit) if isinstance(unit, int) else 2), first.description)
    if turned in (None, 1):  # nobody turns what lies on a map
        known = geography_of(first)
        if array.dtype.kind == "f" or (filled and known.nodata is not None):
            colours = [channel for channel in range(array.shape[2]) if channel != alpha]
            array[..., colours], known = fill(array[..., colours], known)
        notes = replace(notes, geography=known)
    return assemble(
        array,
        alpha=alpha,
        icc=icc if isinstance(icc, bytes) else None,
        orientation=turned if isinstance(turned, int) else 1,
        notes=notes,
    )


@dataclass(frozen=True)
class _Said:
    """What a description says that pages are: how many channels, slices and times; `channels` 0 where it says nothing.

    `images`: how many ImageJ says there are.
    """

    channels: int = 0
    slices: int = 1
    times: int = 1
    images: int = 0

    @property
    def apart(self) -> int:
        """How many pictures the pages are."""
        return self.slices * self.times

    @property
    def what(self) -> str:
        """What these are."""
        return "slices" if self.times == 1 else "times" if self.slices == 1 else "slices and times"


def _said(description: str) -> _Said:
    """What OME-XML, ImageJ or tifffile wrote of the pages."""
    text = description[:_LONGEST_TEXT]
    if axis := _AXES.match(text):
        shape = re.search(r'"shape": \[(\d{1,6}),', text)
        count = int(shape[1]) if shape else 0
        return {"C": _Said(count), "T": _Said(1, times=count)}.get(axis[1], _Said(1, slices=count))
    if not _MARKS.search(text):
        return _Said()
    counts = {name: re.search(pattern, text, re.MULTILINE) for name, pattern in _COUNTS.items()}
    found = {name: int((one[1] or one[2])[:6]) for name, one in counts.items() if one}
    images = re.search(r"^images=(\d{1,6})", text, re.MULTILINE)
    known = {"channels": 1} if found else {}
    return _Said(**(known | found), images=int(images[1]) if images else 0)


def _measured(notes: Notes, description: str) -> Notes:
    """Notes with the resolution for a centimetre where ImageJ's description, which is not kept, has its unit."""
    unit = re.search(r"^unit=(\S+)", description[:_LONGEST_TEXT], re.MULTILINE)
    by = _FOR_A_CENTIMETRE.get(unit[1]) if unit else None
    if notes.resolution is None or notes.unit != _NO_UNIT or by is None:
        return notes
    across, down = ((one * by).limit_denominator(2**8) for one in notes.resolution)
    return Notes(resolution=(across, down), unit=3) if max(across, down) < 2**24 else Notes()


def _pages(file: TiffFile) -> list[TiffPage]:
    """Give the first page and those like it, in order."""
    found: list[TiffPage] = []
    seen: set[int] = set()
    for index in range(_MAX_PAGES + 1):
        try:
            page = file.pages[index]
        except IndexError:
            break
        if index == _MAX_PAGES:
            raise ValueError(f"more than {_MAX_PAGES} pages")
        assert isinstance(page, TiffPage)
        if page.offset in seen:
            raise ValueError("its pages follow each other in a circle")
        seen.add(page.offset)
        reduced_or_mask = page.subfiletype & 0b101
        if not found or (not reduced_or_mask and (page.shaped, page.dtype) == (found[0].shaped, found[0].dtype)):
            found.append(page)
    if not found:
        raise ValueError("it has no page")
    return found


def _check(page: TiffPage, data: bytes, pages: int) -> None:
    """Check a page's header against the limits and the file's length, before pixels are allocated."""
    if page.dtype is None or page.shaped[1] != 1:
        raise ValueError(f"{page.bitspersample}-bit samples or volumes of this kind are not supported")
    samples, _, height, width, contiguous = page.shaped
    itemsize = page.dtype.itemsize
    values = samples * contiguous * pages
    own, before = pixel_bytes(page.dtype)
    direct = page.photometric in (_GREY, _RGB) and samples == pages == 1
    check_size(
        height,
        width,
        values * own * (3 if page.photometric == _PALETTE else 1),
        working=values * (before if direct else max(before, own)),
    )
    if page.compression not in _COMPRESSIONS:
        raise ValueError(f"its compression ({int(page.compression)}) is not supported; save it with deflate or none")
    if math.prod(page.chunks) * itemsize > MAX_BYTES:
        raise ValueError(f"tiles or strips of {page.chunks} are larger than the limit")
    offsets, counts = page.dataoffsets, page.databytecounts
    if len(offsets) != math.prod(page.chunked) or len(counts) != len(offsets):
        raise ValueError("its table of strips or tiles does not fit its size")
    if any(count <= 0 or start + count > len(data) for start, count in zip(offsets, counts)):
        raise ValueError("pixels are missing: the file is truncated")
    if page.compression == _UNPACKED and sum(counts) * 8 < math.prod(page.shaped) * page.bitspersample:
        raise ValueError("fewer pixels than its size says: the file is truncated")
    if page.compression == _JPEG:
        _check_jpegs(page, data)


def _check_jpegs(page: TiffPage, data: bytes) -> None:
    """Check the sizes in the headers of JPEG tiles or strips against the page's."""
    high, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
    for start, count in zip(page.dataoffsets, page.databytecounts):
        inner = read_jpeg_header(data[start : start + count])
        if inner.height > high or inner.width > wide:
            raise ValueError(f"a JPEG of {inner.width}x{inner.height} in a tile or strip of {wide}x{high}")


def _values(page: TiffPage) -> np.ndarray:
    """Give `(H, W, C)` values, fewer than 8 bits scaled to 8, white-is-zero inverted."""
    array = page.asarray(squeeze=False, maxworkers=1)[:, 0]
    array = array[0] if array.shape[0] == 1 else np.moveaxis(array[..., 0], 0, -1)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 4 and array.min() >= 0 and array.max() <= 65535:
        array = array.astype(np.uint16)
    if page.photometric == _PALETTE and array.dtype.kind == "b":
        return np.ascontiguousarray(array, np.uint8)  # places in the palette
    array = np.ascontiguousarray(plain(array, finite=False))  # NaN may mean that there are no data
    if page.photometric == _PALETTE or array.dtype.kind == "f":
        return array
    bits = 8 if page.bitspersample == 1 else page.bitspersample  # `plain` has made 1 bit 0 and 255
    if bits < 8:
        array = (np.arange(256) * 255 / (2**bits - 1)).round().astype(np.uint8)[array]
    if page.photometric == _WHITE_IS_ZERO:
        extra = array.shape[2] - len(page.extrasamples)  # where alpha begins
        white = 255 if array.dtype == np.uint8 else 2 ** min(bits, 16) - 1
        array = np.concatenate([np.subtract(white, array[..., :extra], dtype=array.dtype), array[..., extra:]], axis=2)
    return array


def _colours(page: TiffPage, array: np.ndarray) -> tuple[np.ndarray, int | None]:
    """Give the values as grey, RGB or n channels, with the index of alpha among them."""
    kind = page.photometric
    if kind == _PALETTE:
        return _from_palette(page, array), None
    if kind not in (_WHITE_IS_ZERO, _GREY, _RGB, _CMYK, _YCBCR, _LAB):
        raise ValueError(f"its kind of colour ({kind}) is not supported; save it as grey or RGB")
    colours = _COLOURS.get(kind, 1)
    if array.shape[2] < colours:
        raise ValueError(f"{counted(array.shape[2], 'channel')} where its kind of colour has {colours}")
    kinds = [int(extra) for extra in page.extrasamples]
    alpha = next((index for index, extra in enumerate(kinds, array.shape[2] - len(kinds)) if extra in (1, 2)), None)
    if alpha is not None and kinds[alpha - array.shape[2]] == 1:
        array = _unmultiplied(array, alpha)
    if kind in (_CMYK, _LAB) or (kind == _YCBCR and page.compression != _JPEG):
        array = np.concatenate([_to_rgb(kind, array[..., :colours]), array[..., colours:]], axis=-1)
        alpha = None if alpha is None else alpha - colours + 3
    return array, alpha


def _from_palette(page: TiffPage, array: np.ndarray) -> np.ndarray:
    table = page.colormap
    if table is None or table.ndim != 2 or array.shape[2] != 1 or array.max() >= table.shape[1]:
        raise ValueError("its palette does not fit its pixels")
    table = table >> 8 if table.max() > 255 else table  # some writers use 8 of the 16 bits
    return table.astype(np.uint8).T[array[..., 0]]


def _to_rgb(kind: int, array: np.ndarray) -> np.ndarray:
    """Convert `(H, W, C)` CMYK, YCbCr or Lab, a few rows at a time to save memory."""
    if not (array.dtype == np.uint8 or (kind == _CMYK and array.dtype == np.uint16)):
        raise ValueError(f"{array.dtype} pixels in this kind of colour are not supported; save it as RGB")
    mode = {_CMYK: "CMYK", _LAB: "LAB", _YCBCR: "YCbCr"}[kind]
    result = np.empty((*array.shape[:2], 3), array.dtype)
    for top in range(0, array.shape[0], _ROWS):
        rows = array[top : top + _ROWS]
        if array.dtype == np.uint16:
            light = 65535 - rows.astype(np.uint32)
            result[top : top + _ROWS] = (light[..., :3] * light[..., 3:] + 32767) // 65535
        else:
            image = Image.frombytes(mode, (rows.shape[1], rows.shape[0]), rows.tobytes())
            result[top : top + _ROWS] = np.asarray(image.convert("RGB"))
    return result


def _unmultiplied(array: np.ndarray, alpha: int) -> np.ndarray:
    """Divide the colours by alpha, for files that store them multiplied by it."""
    whole = 1.0 if array.dtype.kind == "f" else float(np.iinfo(array.dtype).max)
    opacity = array[..., alpha].astype(np.float32)
    factor = np.divide(whole, opacity, out=np.zeros_like(opacity), where=opacity > 0)
    for channel in (index for index in range(array.shape[2]) if index != alpha):
        values = array[..., channel] * factor
        array[..., channel] = values if array.dtype.kind == "f" else np.minimum(np.rint(values), whole)
    return array


def encode_tiff(picture: Picture) -> bytes:
    """Encode any picture with deflate: 1 channel as grey, 3 as RGB, others as grey with extra samples; alpha last."""
    return _encoded([picture])


def _encoded(pages: list[Picture], *, axis: str = "") -> bytes:
    """Pages of one size, which `axis` names: Z slices, T times."""
    first = pages[0]
    shown = [merged(replace(one, pixels=one.notes.geography.put_back(one.pixels))) for one in pages]
    array, channels = np.stack(shown) if axis else shown[0], first.pixels.shape[2]
    extras = ["unspecified"] * (0 if channels == 3 else channels - 1)
    extras += ["unassalpha"] if first.alpha is not None else []
    file, resolution = io.BytesIO(), first.notes.resolution
    single = array.shape[-1] == 1
    tifffile.imwrite(
        file,
        array[..., 0] if single else array,
        photometric="rgb" if channels == 3 else "minisblack",
        planarconfig=None if single else "contig",
        extrasamples=extras or None,
        compression="adobe_deflate",
        compressionargs={"level": 4},
        predictor=True,
        iccprofile=first.icc,
        resolution=resolution and (resolution[0].as_integer_ratio(), resolution[1].as_integer_ratio()),
        resolutionunit=None if resolution is None else first.notes.unit,
        extratags=first.notes.geography.tags(array.dtype),
        metadata={"axes": f"{axis}YX{'' if single else 'S'}"} if axis else None,
        maxworkers=1,
    )
    return file.getvalue()
