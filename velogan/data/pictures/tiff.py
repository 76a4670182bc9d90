"""Read and write TIFF files: a single page, or pages of one size (tifffile's first series) as channels or slices."""

from __future__ import annotations

import io
import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import tifffile
from PIL import TiffImagePlugin
from tifffile import TiffFile, TiffPage

from velogan.data.pictures.formats import from_pillow
from velogan.data.pictures.geography import fill_nodata, read_geography
from velogan.data.pictures.metadata import FileMetadata, compute_dpi
from velogan.data.pictures.picture import (
    MAX_BYTES,
    Picture,
    assemble,
    check_size,
    pixel_bytes,
    to_supported_dtype,
    with_alpha_channel,
)
from velogan.data.pictures.scan_info import Provenance, ScanInfo
from velogan.data.pictures.values import PixelFormat

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it logs flaws that it repairs

_MAX_PAGES = 4096
_UNPACKED, _JPEG = 1, 7
_COMPRESSIONS = {_UNPACKED, 2, 3, 4, 5, _JPEG, 8, 32773, 32946, 34925, 50000}
"""None, fax (CCITT), LZW, JPEG, deflate, PackBits, LZMA, Zstandard: their decoders never exceed the stated size."""

_WHITE_IS_ZERO, _GREY = 0, 1
_RGB, _PALETTE = 2, 3
_CMYK, _YCBCR = 5, 6
_LAB = 8
_CONVERTED = (_PALETTE, _CMYK, _YCBCR, _LAB)
"""Colour spaces that Pillow converts to 8-bit RGB."""

_TRANSLATE_ALONE = "translate each alone by --pages slices, in training by --data.pages slices"
_UNITS_PER_CENTIMETRE = dict.fromkeys(("micron", "um", "µm", r"\u00B5m"), 10**4) | {"nm": 10**7, "mm": 10, "cm": 1}
_ORIENTATION, _XRESOLUTION = 274, 282
_ICC = 34675


def decode_tiff(data: bytes, *, pages_are_channels: bool = False, filled: bool = True) -> Picture:
    """Decode the bytes of a TIFF file. Raises ValueError for unsupported kinds and wrong sizes.

    Grey and RGB are kept; palette, CMYK, Lab and YCbCr become RGB. Smaller pages (previews, pyramid levels) are
    skipped. 1 to 7 bits are scaled to 8; 9 to 15 bits stay unchanged, in uint16. `pages_are_channels` and `filled`:
    see `images.read_picture`.
    """
    stack = TiffStack(data)
    count = len(stack)
    if count > 1:
        if stack.is_colour:
            raise ValueError(f"{count} colour pages; only grey pages can be channels: {_TRANSLATE_ALONE}")
        if stack.axis in ("Z", "T"):
            kind = {"Z": "slices", "T": "times"}[stack.axis]
            raise ValueError(f"its {count} pages are {kind}, as its description states: {_TRANSLATE_ALONE}")
        if stack.axis != "C" and not pages_are_channels:
            raise ValueError(
                f"{count} pages, and the file does not state whether they are channels, slices or times: set "
                "--pages channels or --pages slices, in training by --data.pages"
            )
    return stack.merge_pages(filled=filled)


class TiffStack:
    """A TIFF file with one image, or with pages of one size; thread-safe.

    `axis`: the meaning of the pages: Z slices, T times, C channels, another code of tifffile if the file does not state
    it, empty for one page. Raises ValueError if the pages have several axes, or their headers state wrong sizes.
    """

    def __init__(self, data: bytes):
        self._data, self._file = data, TiffFile(io.BytesIO(data), _multifile=False)
        self._file.filehandle.set_lock(True)  # else a thread may seek between another's seek and read
        if len(self._file.pages) > _MAX_PAGES:
            raise ValueError(f"more than {_MAX_PAGES} pages")
        self._check_last_page(len(data))
        series = self._file.series[0]
        self._pages = [self._get_page(page.index) for page in series.pages if page is not None]
        first = self._pages[0]
        sides = dict(zip(series.axes, series.shape))
        axes = [axis for axis in series.axes.removesuffix(first.axes) if sides[axis] > 1]
        self.axis = axes[0] if axes else ""
        self.is_colour = first.photometric not in (_WHITE_IS_ZERO, _GREY) or first.samplesperpixel > 1
        if len(axes) > 1:
            raise ValueError(
                f"its pages have the axes {''.join(axes)}: save each channel, or each time, as a file of its own"
            )
        if first.axes not in ("YX", "YXS", "SYX") or len(self._pages) != (sides[self.axis] if axes else 1):
            raise ValueError(
                f"{len(self._pages)} pages of axes {series.axes} are not supported: save each as a file of its own"
            )
        for page in self._pages:
            _check_page(page, len(data), len(self._pages))
        self.bits = first.dtype.itemsize * 8 if first.dtype else 0

    def _check_last_page(self, size: int) -> None:
        """Raise ValueError if pages are missing: the last one links beyond the end of the file, at `size` bytes."""
        handle, offset = self._file.filehandle, self._file.pages.next_page_offset or 0
        handle.seek(offset)
        link = handle.read(self._file.tiff.offsetsize)
        if (
            len(link) < self._file.tiff.offsetsize
            or int.from_bytes(link, "little" if self._file.byteorder == "<" else "big") >= size
        ):
            raise ValueError(f"pages after the first {len(self._file.pages)} are missing: the file is truncated")

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def info(self) -> ScanInfo:
        """An empty header: TIFF has no fields for patient and series."""
        return ScanInfo()

    def picture(self, index: int) -> Picture:
        """Return one page as a picture."""
        return self._build_picture([self._pages[index]], filled=True)

    def merge_pages(self, *, filled: bool) -> Picture:
        """Return a single page, or several grey pages as the channels of one picture."""
        return self._build_picture(self._pages, filled=filled)

    def _build_picture(self, pages: list[TiffPage], *, filled: bool) -> Picture:
        first = pages[0]
        array, has_alpha = self._decode_page(first)
        if len(pages) > 1:
            array, has_alpha = np.stack([self._decode_page(page)[0][..., 0] for page in pages], axis=-1), False
        has_original_colours = first.photometric not in (_CMYK, _YCBCR, _LAB)
        orientation = first.tags.valueof(_ORIENTATION, default=1) if not _needs_pillow(first) else 1
        metadata = FileMetadata(dpi=self._dpi(first), orientation=orientation if orientation in range(1, 9) else 1)
        if metadata.orientation == 1:  # a georeference is valid only for an image that is not turned
            geography, colours = read_geography(first), array.shape[2] - has_alpha
            if array.dtype.kind == "f" or (filled and geography.nodata is not None):
                array[..., :colours], geography = fill_nodata(array[..., :colours], geography)
            metadata = replace(metadata, geography=geography)
        icc = first.tags.valueof(_ICC) if has_original_colours else None
        return assemble(array, has_alpha=has_alpha, icc=icc if isinstance(icc, bytes) else None, metadata=metadata)

    def _get_page(self, index: Any) -> TiffPage:
        page = self._file.pages.get(index, aspage=True)
        assert isinstance(page, TiffPage)
        return page

    def _decode_page(self, page: TiffPage) -> tuple[np.ndarray, bool]:
        """Return the `(H, W, C)` values of a page, grey, RGB or other channels, and whether the last one is alpha."""
        if page.photometric == _PALETTE and page.colormap is not None and page.colormap.max() <= 255:
            table = page.colormap.astype(np.uint8).T  # some writers use only 8 of the 16 bits of a colour
            return table[page.asarray(maxworkers=1).astype(np.uint8)], False
        if _needs_pillow(page):
            with TiffImagePlugin.TiffImageFile(io.BytesIO(self._data)) as image:
                image.seek(page.index)
                return from_pillow(image)
        array = page.asarray(maxworkers=1)
        array = np.moveaxis(array, 0, -1) if page.axes == "SYX" else array.reshape(*array.shape[:2], -1)
        if array.dtype.kind in "iu" and array.dtype.itemsize == 4 and array.min() >= 0 and array.max() <= 65535:
            array = array.astype(np.uint16)
        array = np.ascontiguousarray(to_supported_dtype(array, finite=False))  # NaN may mean no data
        bits = 8 if page.bitspersample == 1 else page.bitspersample  # 1 bit has become 0 and 255 above
        if bits < 8:
            array = (np.arange(256) * 255 / (2**bits - 1)).round().astype(np.uint8)[array]
        extra = len(page.extrasamples)
        if page.photometric == _WHITE_IS_ZERO and array.dtype.kind != "f":
            white, colours = 255 if array.dtype == np.uint8 else 2 ** min(bits, 16) - 1, array.shape[2] - extra
            array[..., :colours] = np.subtract(white, array[..., :colours], dtype=array.dtype)
        kind = int(page.extrasamples[-1]) if extra else 0
        return _unpremultiply(array, array.shape[2] - 1) if kind == 1 else array, kind in (1, 2)

    def _dpi(self, page: TiffPage) -> tuple[float, float] | None:
        """Return the pixels per inch, or None; the description of ImageJ files states the unit of their resolution."""
        if _XRESOLUTION not in page.tags:
            return None
        across, down = page.resolution
        factor = _UNITS_PER_CENTIMETRE.get((self._file.imagej_metadata or {}).get("unit", ""))
        return (
            compute_dpi(across * factor, down * factor, 3) if factor else compute_dpi(across, down, page.resolutionunit)
        )

    def encode(self, slices: list[np.ndarray], pixel_format: PixelFormat, provenance: Provenance) -> bytes:
        """Return the bytes of the file with new pixels and the same alpha, resolution and geography."""
        originals = [self.picture(index) for index in range(len(self))]
        pages = [replace(original, pixels=pixels, icc=None) for original, pixels in zip(originals, slices)]
        if pages[0].alpha is not None and pages[0].alpha.dtype != slices[0].dtype:
            raise ValueError("pages with alpha would change their type: save them without alpha")
        return _encode_pages(pages, axis="T" if self.axis == "T" else "Z")


def _needs_pillow(page: TiffPage) -> bool:
    """Return whether Pillow decodes a page: to convert colours, or for JPEG, whose stated size libtiff checks."""
    return page.photometric in _CONVERTED or page.compression == _JPEG


def _check_page(page: TiffPage, size: int, pages: int) -> None:
    """Check a page's header against the limits for `pages` such pages, and against the file's `size` in bytes."""
    if page.dtype is None:
        raise ValueError(f"{page.bitspersample}-bit samples of this kind are not supported")
    values = page.samplesperpixel * pages
    value_bytes, original_bytes = pixel_bytes(page.dtype)
    check_size(
        page.imagelength,
        page.imagewidth,
        values * value_bytes * (3 if page.photometric == _PALETTE else 1),
        working=values * (original_bytes if pages == 1 else max(original_bytes, value_bytes))
        + (4 if _needs_pillow(page) else 0),
    )
    if page.compression not in _COMPRESSIONS:
        raise ValueError(f"its compression ({int(page.compression)}) is not supported; save it with deflate or none")
    if page.photometric not in (_WHITE_IS_ZERO, _GREY, _RGB, *_CONVERTED):
        raise ValueError(f"its colour space ({page.photometric}) is not supported; save it as grey or RGB")
    if math.prod(page.chunks) * page.dtype.itemsize > MAX_BYTES:
        raise ValueError(f"tiles or strips of {page.chunks} are larger than the limit")
    offsets, counts = page.dataoffsets, page.databytecounts
    if len(offsets) != math.prod(page.chunked) or len(counts) != len(offsets):
        raise ValueError("its table of strips or tiles does not match its size")
    if any(count <= 0 or start + count > size for start, count in zip(offsets, counts)):
        raise ValueError("pixels are missing: the file is truncated")
    if page.compression == _UNPACKED and sum(counts) * 8 < math.prod(page.shaped) * page.bitspersample:
        raise ValueError("fewer pixels than its size requires: the file is truncated")


def _unpremultiply(array: np.ndarray, alpha: int) -> np.ndarray:
    """Divide premultiplied colours, in place, by alpha, which is the channel with the index `alpha`."""
    max_value = 1.0 if array.dtype.kind == "f" else float(np.iinfo(array.dtype).max)
    opacity = array[..., alpha].astype(np.float32)
    factor = np.divide(max_value, opacity, out=np.zeros_like(opacity), where=opacity > 0)
    for channel in (index for index in range(array.shape[2]) if index != alpha):
        values = array[..., channel] * factor
        array[..., channel] = values if array.dtype.kind == "f" else np.minimum(np.rint(values), max_value)
    return array


def encode_tiff(picture: Picture) -> bytes:
    """Encode any picture with deflate: 1 channel as grey, 3 as RGB, others as grey with extra samples; alpha last."""
    return _encode_pages([picture])


def _encode_pages(pages: list[Picture], *, axis: str = "") -> bytes:
    """Encode pages of one size along `axis`: Z slices, T times; empty: a single page."""
    first = pages[0]
    arrays = [
        with_alpha_channel(replace(page, pixels=page.metadata.geography.restore_nodata(page.pixels))) for page in pages
    ]
    array, channels = np.stack(arrays) if axis else arrays[0], first.pixels.shape[2]
    extras = ["unspecified"] * (0 if channels == 3 else channels - 1)
    extras += ["unassalpha"] if first.alpha is not None else []
    file = io.BytesIO()
    is_grey = array.shape[-1] == 1
    tifffile.imwrite(
        file,
        array[..., 0] if is_grey else array,
        photometric="rgb" if channels == 3 else "minisblack",
        planarconfig=None if is_grey else "contig",
        extrasamples=extras or None,
        compression="adobe_deflate",
        compressionargs={"level": 4},
        predictor=True,
        iccprofile=first.icc,
        resolution=first.metadata.dpi,
        resolutionunit=first.metadata.dpi and "INCH",
        extratags=first.metadata.geography.tags(array.dtype),
        metadata={"axes": f"{axis}YX{'' if is_grey else 'S'}"} if axis else None,
        maxworkers=1,
    )
    return file.getvalue()
