"""Single images: files to RGB arrays and back."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".tif", ".tiff", ".webp"})

_ORIENTATION = 0x0112
_FULL_16_BIT = 65535


def read_image(path: Path | str) -> np.ndarray:
    """Read a picture file as `(H, W, 3)` uint8 RGB, turned upright, alpha dropped, 16 bits scaled to 8.

    Raises `ValueError` with the reason where the file cannot be read as a picture, `OSError` where it
    cannot be read at all.
    """
    return decode(Path(path).read_bytes())


def decode(data: bytes) -> np.ndarray:
    """Decode the bytes of a picture file; see `read_image`."""
    if not data:
        raise ValueError("the file is empty")
    try:
        with Image.open(io.BytesIO(data)) as picture:
            upright = picture.getexif().get(_ORIENTATION, 1) == 1
            if picture.format == "JPEG" and picture.mode in ("L", "RGB") and upright:
                return _decode_jpeg(data, picture)
            return _to_rgb(ImageOps.exif_transpose(picture))
    except Image.UnidentifiedImageError:
        raise ValueError("not a picture that can be read") from None
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _decode_jpeg(data: bytes, picture: Image.Image) -> np.ndarray:
    try:
        return simplejpeg.decode_jpeg(data, colorspace="RGB")
    except ValueError:  # it refuses harmless warnings as well; Pillow tells broken files from odd ones
        return _to_rgb(picture)


def _to_rgb(picture: Image.Image) -> np.ndarray:
    if picture.mode == "F":
        raise ValueError("floating-point pixels have no known range; convert the file to 8 or 16 bits")
    if picture.mode.startswith("I"):
        grey = np.asarray(picture).astype(np.int64)
        if grey.min() < 0 or grey.max() > _FULL_16_BIT:
            raise ValueError("32-bit pixels outside 0..65535; convert the file to 8 or 16 bits")
        return np.repeat(((grey + 128) // 257).astype(np.uint8)[:, :, None], 3, axis=2)
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")  # Pillow warns about the direct way
    return np.asarray(picture.convert("RGB"))


def save_image(path: Path | str, array: np.ndarray) -> None:
    """Write `(H, W, 3)` RGB or `(H, W)` grey uint8 to a file; the suffix names the format."""
    # Each format takes what it knows: level 3 writes PNG several times faster, 95 keeps JPEG and WebP fine.
    Image.fromarray(array).save(path, compress_level=3, quality=95)
