"""Some hundreds of malformed and hostile files, small on disk, made the same way every time.

`make_corpus(folder)` writes them and says of each what may become of it:

    "bad"     it must be refused with a reason
    "either"  it may be read (a flaw that costs no pixels, a picture behind a wrong suffix), else refused with a reason
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import tifffile
from PIL import Image

File = tuple[str, bytes, str]
"""Name, content, and "bad" or "either"."""

_GREY = np.arange(24 * 20, dtype=np.uint8).reshape(24, 20)
_COLOUR = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)


def make_corpus(folder: Path) -> dict[str, str]:
    """Write the whole corpus below `folder`; give "bad" or "either" by name relative to it."""
    folder.mkdir(parents=True)
    makers = (cut_short, fuzzed, of_wrong_size, bombs, flawed, flawed_tiff, flawed_npy, of_another_kind)
    expected: dict[str, str] = {}
    for name, content, kind in itertools.chain.from_iterable(maker() for maker in makers):
        name = f"{name}.png" if name.endswith(".gif") else name  # else no command would look at it
        assert name not in expected, name
        (folder / name).write_bytes(content)
        expected[name] = kind
    return expected | _no_regular_files(folder) | _odd_names(folder)


def valid() -> dict[str, bytes]:
    """Small whole files of every format and of the variants that decoders treat apart, by name."""
    colour, grey = Image.fromarray(_COLOUR), Image.fromarray(_GREY)
    frames = [grey.rotate(90 * turn) for turn in range(3)]
    deep = _COLOUR.astype(np.uint16) * 257
    rgba = np.dstack([_COLOUR, _GREY])
    return {
        "rgb.jpg": _pillow(colour, "JPEG", quality=90),
        "grey.jpg": _pillow(grey, "JPEG"),
        "progressive.jpg": _pillow(colour, "JPEG", progressive=True, icc_profile=b"p" * 200),
        "cmyk.jpg": _pillow(colour.convert("CMYK"), "JPEG"),
        "rgb.png": _pillow(colour, "PNG"),
        "sixteen.png": bytes(imagecodecs.png_encode(deep)),
        "palette.png": _pillow(colour.quantize(8), "PNG", transparency=0),
        "bits.png": _pillow(grey.convert("1"), "PNG"),
        "animated.png": _pillow(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "interlaced.png": interlaced_png(_COLOUR),
        "lossy.webp": _pillow(colour, "WEBP"),
        "lossless.webp": _pillow(colour, "WEBP", lossless=True),
        "alpha.webp": _pillow(Image.fromarray(rgba), "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"),
        "animated.webp": _pillow(frames[0].convert("RGB"), "WEBP", save_all=True, append_images=frames[1:]),
        "rgb.bmp": _pillow(colour, "BMP"),
        "palette.bmp": _pillow(colour.quantize(16), "BMP"),
        "rgb.ppm": _pillow(colour, "PPM"),
        "deep.ppm": b"P5\n20 24\n65535\n" + deep[..., 0].astype(">u2").tobytes(),
        "plain.ppm": b"P2\n20 24\n255\n" + b" ".join(b"%d" % value for value in _GREY.ravel()),
        "rgb.tif": tiff(_COLOUR),
        "deflate.tif": tiff(deep, compression="adobe_deflate", predictor=True),
        "lzw.tif": tiff(_GREY, compression="lzw"),
        "jpeg.tif": tiff(_COLOUR, compression="jpeg"),
        "float.tif": tiff(_GREY.astype(np.float32)),
        "tiles.tif": tiff(np.tile(_COLOUR, (2, 2, 1)), tile=(16, 16), compression="adobe_deflate"),
        "pages.tif": tiff(np.stack([_GREY] * 5), photometric="minisblack", metadata={"axes": "CYX"}),
        "big.tif": tiff(_COLOUR, bigtiff=True),
        "u8.npy": npy(_COLOUR),
        "f4.npy": npy(_GREY.astype(np.float32)),
        "first.gif": _pillow(grey, "GIF"),
    }


def _pillow(image: Image.Image, kind: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def tiff(array: np.ndarray, **settings: Any) -> bytes:
    """A TIFF file of `array`."""
    file = io.BytesIO()
    tifffile.imwrite(file, array, **{"metadata": None, **settings})
    return file.getvalue()


def npy(array: np.ndarray, **settings: Any) -> bytes:
    """A .npy file of `array`."""
    file = io.BytesIO()
    np.save(file, array, **settings)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG file, with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, packed: bytes, *, depth: int = 8, colour: int = 2, interlace: int = 0) -> bytes:
    """A PNG file whose header says what is asked for, with `packed` as its pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def interlaced_png(pixels: np.ndarray) -> bytes:
    """An Adam7 PNG of `(H, W, 3)` uint8."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = [b"\0" + row.tobytes() for y, x, dy, dx in passes for row in pixels[y::dy, x::dx] if row.size]
    return png(pixels.shape[1], pixels.shape[0], zlib.compress(b"".join(rows)), interlace=1)


def zlib_zeros(size: int) -> bytes:
    """A zlib stream of `size` zeros (a multiple of a mebibyte), made without compressing that much."""
    block = zlib.compressobj(9, zlib.DEFLATED, -15)
    mebibyte = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    adler = (size % 65521) << 16 | 1
    return b"\x78\xda" + mebibyte * (size >> 20) + b"\x03\0" + struct.pack(">I", adler)


# Truncations


def cut_short() -> Iterator[File]:
    """Every format, cut within its header and in the middle of its pixels."""
    for name, data in valid().items():
        stem, _, suffix = name.partition(".")
        either = (
            stem == "animated" or suffix == "tif"
        )  # a first frame may be whole; a directory stand before its pixels
        for at in (1, 2, 4, 8, 10, 14, 20, 26, 33, 40, 54, 60, 90, 128):
            if at < len(data) // 2:
                yield f"cut-{stem}-{at:04d}.{suffix}", data[:at], "either" if either else "bad"
        yield f"cut-{stem}-half.{suffix}", data[: len(data) // 2], "either" if either else "bad"


# Fuzz


def fuzzed() -> Iterator[File]:
    """Every format with bytes of its header changed, in ways that a fixed seed chooses."""
    for name, data in valid().items():
        for index in range(4):
            yield f"fuzzed-{index}-{name}", fuzz(data, random.Random(f"{name} {index}")), "either"


def fuzz(data: bytes, source: random.Random) -> bytes:
    """Change 1 to 6 bytes, or a 32-bit number, within the first 160."""
    changed = bytearray(data)
    head = min(len(changed), 160)
    for _ in range(source.randint(1, 6)):
        changed[source.randrange(head)] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    if source.random() < 0.5:
        at = source.randrange(head - 4)
        changed[at : at + 4] = struct.pack(source.choice("<>") + "I", source.choice((0, 2**31 - 1, 2**31, 2**32 - 1)))
    return bytes(changed)


# Sizes


def of_wrong_size() -> Iterator[File]:
    """Headers that name no size, a huge one, or another than the pixels have."""
    packed = zlib.compress(bytes(100))
    for width, height in _sides(2**31 - 1, 2**32 - 1, 65536, 65535):
        yield f"size-{width}x{height}.png", png(width, height, packed), "bad"
    jpeg = valid()["rgb.jpg"]
    frame = jpeg.index(b"\xff\xc0") + 5
    for width, height in _sides(65500, 65535):
        yield f"size-{width}x{height}.jpg", _put(jpeg, frame, ">HH", height, width), "bad"
    bmp = valid()["rgb.bmp"]
    for width, height in (*_sides(2**31 - 1, 40000), (20, -(2**31)), (-20, 24)):
        yield f"size-{width}x{height}.bmp", _put(bmp, 18, "<ii", width, height), "bad"
    for width, height in (*_sides(999999, 30000), (10**12, 1), (-3, 4)):
        yield f"size-{width}x{height}.ppm", b"P6 %d %d 255\n" % (width, height) + bytes(99), "bad"
        yield f"size-plain-{width}x{height}.ppm", b"P3 %d %d 255\n" % (width, height) + b"0 " * 99, "bad"
    for width, height in _sides(65535, 30000):
        yield f"size-{width}x{height}.gif.png", _put(valid()["first.gif"], 6, "<HH", width, height), "either"
    for tag, name in ((256, "wide"), (257, "high"), (278, "rows")):
        for value in (0, 65535, 2**31 - 1, 2**32 - 1):
            bad = "either" if name == "rows" else "bad"
            yield f"size-{name}-{value}.tif", _tag(valid()["rgb.tif"], tag, value), bad
    lossless, lossy, extended = (valid()[f"{name}.webp"] for name in ("lossless", "lossy", "alpha"))
    yield "size-lossless.webp", _put(lossless, 21, "<I", 0x0FFFFFFF), "bad"
    yield "size-lossy.webp", _put(lossy, 26, "<HH", 0x3FFF, 0x3FFF), "bad"
    yield "size-lossy-zero.webp", _put(lossy, 26, "<HH", 0, 0), "bad"
    yield "size-extended.webp", extended[:24] + b"\xff" * 6 + extended[30:], "bad"


def _sides(*huge: int) -> list[tuple[int, int]]:
    return [(0, 24), (20, 0), (0, 0), *((side, side) for side in huge)]


def _put(data: bytes, at: int, layout: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, *values)
    return bytes(changed)


def _tag(data: bytes, tag: int, value: int, *, kind: int = 4, count: int = 1) -> bytes:
    """Change the entry of a tag in the first directory of a small little-endian TIFF file."""
    start = struct.unpack_from("<I", data, 4)[0]
    for index in range(struct.unpack_from("<H", data, start)[0]):
        at = start + 2 + 12 * index
        if struct.unpack_from("<H", data, at)[0] == tag:
            return _put(data, at + 2, "<HII", kind, count, value)
    raise KeyError(tag)


# Bombs


def bombs() -> Iterator[File]:
    """Small files that say, or hold, that they are much larger when decoded."""
    mebibytes = 1200
    zeros = zlib_zeros(mebibytes << 20)
    yield "bomb-pixels.png", png(20000, 20000, zeros), "bad"
    yield "bomb-sixteen.png", png(14000, 14000, zeros, depth=16), "bad"
    yield "bomb-behind-pixels.png", png(8, 8, zeros), "either"
    yield "bomb-interlaced.png", png(20000, 20000, zeros, interlace=1), "bad"
    small = valid()["rgb.png"]
    yield "bomb-profile.png", small[:33] + chunk(b"iCCP", b"x\0\0" + zeros) + small[33:], "either"
    yield "bomb-text.png", small[:33] + chunk(b"zTXt", b"x\0\0" + zeros) + small[33:], "either"
    wide: dict[str, Any] = {"width": 20000, "height": 20000}
    yield "bomb-deflate.tif", ifd(**wide, compression=8, data=zeros), "bad"
    yield "bomb-in-strip.tif", ifd(width=16, height=16, compression=8, data=zeros), "either"
    lzma = bytes(imagecodecs.lzma_encode(bytes(64 << 20)))
    yield "bomb-in-strip-lzma.tif", ifd(width=16, height=16, compression=34925, data=lzma), "either"
    yield "bomb-lzma.tif", ifd(**wide, compression=34925, data=lzma), "bad"
    zstd = bytes(imagecodecs.zstd_encode(bytes(256 << 20)))
    yield "bomb-in-strip-zstd.tif", ifd(width=16, height=16, compression=50000, data=zstd), "either"
    yield "bomb-lzw.tif", ifd(**wide, compression=5, data=bytes(imagecodecs.lzw_encode(bytes(1 << 20)))), "bad"
    yield "bomb-packbits.tif", ifd(**wide, compression=32773, data=b"\x81\0" * 5000), "bad"
    yield "bomb-fax.tif", ifd(width=60000, height=60000, compression=4, bits=1, data=b"\0" * 500), "bad"
    yield "bomb-tiles.tif", _tag(_tag(valid()["tiles.tif"], 322, 2**31), 323, 2**31), "bad"
    yield "bomb-samples.tif", ifd(width=16, height=16, samples=65535, data=b"\0" * 999), "bad"
    scans = valid()["progressive.jpg"]
    first = scans.index(b"\xff\xda")
    yield "bomb-scans.jpg", _put(scans, scans.index(b"\xff\xc2") + 5, ">HH", 9000, 9000), "bad"
    yield "bomb-many-scans.jpg", scans[:-2] + scans[first : first + 14] * 3000 + scans[-2:], "either"
    yield "bomb.gif.png", gif_zeros(12000, 12000), "either"
    rle = b"".join(b"\xff\0" for _ in range(3000))
    header = struct.pack("<IiiHHIIiiII", 40, 30000, 30000, 1, 8, 1, len(rle), 0, 0, 0, 0)
    start = b"BM" + struct.pack("<IHHI", 1078 + len(rle), 0, 0, 1078)
    yield "bomb-rle.bmp", start + header + bytes(1024) + rle, "bad"
    canvas = valid()["animated.webp"]
    yield "bomb-canvas.webp", canvas[:24] + b"\xfe\x3f\0" * 2 + canvas[30:], "bad"


def gif_zeros(width: int, height: int) -> bytes:
    """A GIF file whose header names a size, with a few codes for pixels."""
    start = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return start + b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x4c\x01\0\x3b"


def ifd(
    *,
    width: int,
    height: int,
    data: bytes,
    compression: int = 1,
    bits: int = 8,
    samples: int = 1,
    following: int = 0,
    extra: dict[int, int] | None = None,
) -> bytes:
    """A little-endian TIFF file of one directory, with `data` as the only strip; `following`: the next directory."""
    tags = {256: width, 257: height, 258: bits, 259: compression, 262: 1, 277: samples, 278: height} | (extra or {})
    count = len(tags) + 2
    at = 8 + 2 + 12 * count + 4
    tags = dict(sorted((tags | {273: at, 279: len(data)}).items()))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", count) + entries + struct.pack("<I", following) + data


# Flaws of single formats


def flawed() -> Iterator[File]:
    """Chunks, segments and headers that are wrong, missing, repeated or endless."""
    small, jpeg, bmp = (valid()[f"rgb.{suffix}"] for suffix in ("png", "jpg", "bmp"))
    signature, header, rest = small[:8], small[8:33], small[33:]
    for depth, colour in ((0, 2), (3, 0), (8, 7), (255, 255)):
        yield f"flaw-depth-{depth}-{colour}.png", png(4, 4, zlib.compress(bytes(99)), depth=depth, colour=colour), "bad"
    yield "flaw-no-palette.png", png(4, 4, zlib.compress(bytes(99)), colour=3), "either"
    yield "flaw-no-pixels.png", signature + header + chunk(b"IEND", b""), "bad"
    yield "flaw-checksum.png", small[:30] + b"\0" + small[31:], "bad"
    yield "flaw-chunk-length.png", signature + header + struct.pack(">I", 2**32 - 1) + b"IDAT", "bad"
    yield "flaw-many-chunks.png", signature + header + chunk(b"tEXt", b"a\0b") * 20000 + rest, "either"
    yield "flaw-profile.png", signature + header + chunk(b"iCCP", b"x" * 300) + rest, "either"
    yield "flaw-exif.png", signature + header + chunk(b"eXIf", b"II*\0" + b"\xff" * 40) + rest, "either"
    frame = jpeg.index(b"\xff\xc0")
    for count in (0, 2, 255):
        yield f"flaw-components-{count}.jpg", _put(jpeg, frame + 9, "B", count), "bad"
    yield "flaw-sampling.jpg", _put(jpeg, frame + 11, "B", 0), "bad"
    yield "flaw-segment-zero.jpg", b"\xff\xd8" + b"\xff\xe0\0\0" * 500, "bad"
    yield "flaw-only-markers.jpg", b"\xff\xd8" + b"\xff" * 4000, "bad"
    loop = b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + bytes(12) + b"\0\0\0\x08"
    yield "flaw-exif-loop.jpg", jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(loop) + 2) + loop + jpeg[2:], "either"
    yield "flaw-offset.bmp", _put(bmp, 10, "<I", 2**32 - 1), "bad"
    yield "flaw-colours.bmp", _put(valid()["palette.bmp"], 46, "<I", 2**32 - 1), "either"
    yield "flaw-comment.ppm", b"P6\n# endless comment" + b"#" * 20000, "bad"
    yield "flaw-highest-huge.ppm", b"P5 4 4 70000\n" + bytes(32), "bad"
    yield "flaw-length.webp", _put(valid()["lossy.webp"], 16, "<I", 2**32 - 1), "bad"
    yield "flaw-endless.webp", b"RIFF\xff\xff\xff\xffWEBP" + b"EXIF\0\0\0\0" * 9999, "bad"
    yield "flaw-codes.gif.png", gif_zeros(4, 4)[:-4] + b"\xff" * 50, "either"


def flawed_tiff() -> Iterator[File]:
    """TIFF files with circles, wrong offsets and counts, and values that no reader takes."""
    flat: dict[str, Any] = {"width": 20, "height": 24, "data": bytes(480)}
    yield "flaw-circle.tif", ifd(**flat, following=8), "either"
    yield "flaw-subifd-circle.tif", ifd(**flat, extra={330: 8}), "either"
    yield "flaw-exif-circle.tif", ifd(**flat, extra={34665: 8}), "either"
    yield "flaw-many-pages.tif", _many_pages(6000), "bad"
    yield "flaw-next-beyond.tif", ifd(**flat, following=2**32 - 1), "either"
    yield "flaw-directory-beyond.tif", b"II*\0\xff\xff\xff\x7f" + bytes(50), "bad"
    yield "flaw-entries.tif", b"II*\0\x08\0\0\0\xff\xff" + bytes(500), "bad"
    yield "flaw-big-entries.tif", b"II+\0\x08\0\0\0\x10" + bytes(7) + b"\xff" * 8 + bytes(90), "bad"
    for bits in (0, 65535):
        yield f"flaw-bits-{bits}.tif", ifd(**flat, bits=bits), "bad"
    for compression in (0, 9999):
        yield f"flaw-compression-{compression}.tif", ifd(**flat, compression=compression), "bad"
    for photometric in (3, 5, 8, 65535):
        yield f"flaw-photometric-{photometric}.tif", ifd(**flat, extra={262: photometric}), "bad"
    yield "flaw-complex.tif", ifd(width=5, height=6, bits=64, data=bytes(240), extra={339: 6}), "bad"
    yield "flaw-strip-beyond.tif", _tag(ifd(**flat), 273, 2**32 - 1), "bad"
    yield "flaw-strip-count.tif", _tag(ifd(**flat), 273, 8, count=2**32 - 1), "bad"
    yield "flaw-strip-empty.tif", _tag(ifd(**flat), 279, 0), "bad"
    yield "flaw-width-count.tif", _tag(ifd(**flat), 256, 20, count=2**30), "bad"
    yield "flaw-tile-zero.tif", _tag(valid()["tiles.tif"], 322, 0), "bad"
    yield "flaw-nan.tif", tiff(np.full((8, 8), np.nan, np.float32)), "bad"
    larger = _pillow(Image.fromarray(np.zeros((3000, 3000), np.uint8)), "JPEG")
    yield "flaw-jpeg-larger.tif", ifd(width=16, height=16, compression=7, data=larger), "bad"
    yield "flaw-described.tif", tiff(_GREY, description='{"shape": [100000, 100000]}'), "either"


def _many_pages(count: int) -> bytes:
    size = 2 + 12 * 9 + 4
    parts = []
    for index in range(count):
        page = ifd(width=2, height=2, data=b"", following=8 + size * (index + 1) if index + 1 < count else 0)
        parts.append(_tag(_tag(page, 273, 8), 279, 4)[8:])
    return b"II*\0\x08\0\0\0" + b"".join(parts)


def flawed_npy() -> Iterator[File]:
    """.npy files that would run code, lie about their size, or hold no picture."""

    class Payload:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return os.system, ("touch pwned",)

    objects = np.empty((4, 4), object)
    objects[:] = [[Payload()] * 4] * 4
    yield "flaw-objects.npy", npy(objects, allow_pickle=True), "bad"
    yield "flaw-pickle.npy", pickle.dumps(Payload()), "bad"
    for name, array in {
        "complex": np.zeros((8, 8, 3), np.complex64),
        "text": np.full((8, 8), "abc"),
        "fields": np.zeros((8, 8), [("r", "u1"), ("g", "u1")]),
        "scalar": np.array(3),
        "volume": np.zeros((4, 4, 4, 3), np.uint8),
        "empty": np.zeros((0, 8, 3), np.uint8),
        "infinite": np.full((8, 8), 1e300),
    }.items():
        yield f"flaw-{name}.npy", npy(array), "bad"
    shapes = ("(99999, 99999)", "(4294967296, 4294967296)", "(-4, 4)", "[8, 8]", "(8, 8", "(" + "8," * 3000 + ")")
    for index, shape in enumerate(shapes):
        yield f"flaw-shape-{index}.npy", npy_header(shape=shape), "bad"
    code = "__import__('os').system('touch pwned')"
    for index, descr in enumerate(("'|O'", "'<f99'", "'(1000000000,)f8'", code, "[" * 4000 + "]" * 4000)):
        yield f"flaw-type-{index}.npy", npy_header(descr=descr), "bad"
    yield "flaw-header-length.npy", b"\x93NUMPY\x02\0\xff\xff\xff\xff" + bytes(99), "bad"


def npy_header(*, shape: str = "(8, 8)", descr: str = "'|u1'") -> bytes:
    """A .npy file of 64 bytes with any text as its shape or type."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + bytes(64)


def of_another_kind() -> Iterator[File]:
    """Files that are no picture, or another than their suffix says."""
    texts = {
        "empty": b"",
        "text": b"no picture\n",
        "drawing": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\nsystemdict /deletefile\n",
        "pdf": b"%PDF-1.7\n1 0 obj<</Length 999999999>>",
        "archive": b"PK\x03\x04" + b"\xff" * 60,
        "zeros": bytes(4096),
        "noise": random.Random(3).randbytes(4096),
    }
    for suffix, (name, content) in itertools.product((".png", ".jpg", ".npy"), texts.items()):
        yield f"other-{name}{suffix}", content, "bad"
    files = valid()
    for name, suffix in (("rgb.jpg", ".png"), ("rgb.png", ".jpg"), ("rgb.webp", ".tif"), ("first.gif", ".webp")):
        yield f"named-as{suffix}", files.get(name, files["lossy.webp"]), "either"


def _no_regular_files(folder: Path) -> dict[str, str]:
    """Pipes, devices, folders, and links to them, to themselves and to nothing."""
    made: dict[str, str] = {}

    def attempt(name: str, make: Callable[[Path], object], kind: str = "bad") -> None:
        try:
            make(folder / name)
        except (OSError, AttributeError, NotImplementedError):
            return  # this system has no such thing
        if kind:
            made[name] = kind

    attempt("pipe.png", os.mkfifo)
    attempt("link-to-pipe.jpg", lambda path: path.symlink_to("pipe.png"))
    attempt("link-to-nothing.png", lambda path: path.symlink_to("there/is/nothing.png"))
    attempt("link-to-itself.png", lambda path: path.symlink_to(path.name))
    attempt("link-to-zeros.png", lambda path: path.symlink_to("/dev/zero"))
    attempt("link-to-random.npy", lambda path: path.symlink_to("/dev/urandom"))
    attempt("link-to-memory.npy", lambda path: path.symlink_to("/proc/self/mem"))
    attempt("sparse.png", lambda path: _sparse(path, 2**40))
    attempt("sparse.npy", lambda path: _sparse(path, 200 * 2**20))
    attempt("folder.png", Path.mkdir, "")
    attempt("folder.png/inside.png", lambda path: path.write_bytes(b"inside"))
    attempt("circle", lambda path: path.symlink_to(".", target_is_directory=True), "")
    attempt("folder.png/up", lambda path: path.symlink_to("..", target_is_directory=True), "")
    return made


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _odd_names(folder: Path) -> dict[str, str]:
    """Whole and broken files whose names a terminal, a shell or a page may stumble over."""
    names = (
        "new\nline",
        "\x1b[2Jescape",
        "-rf",
        "--help",
        "[bold]markup[/red]",
        "<script>alert(1)</script>".replace("/", "\u2215"),
        "' \" $(touch pwned) `touch pwned`; %s {0}",
        "\u202etxt",
        "ümläut 絵",
        "n" * 240,
        os.fsdecode(b"bytes-\xff\xfe"),
    )
    made: dict[str, str] = {}
    whole = valid()["rgb.png"]
    for name, (suffix, content, kind) in itertools.product(names, ((".png", whole, "good"), (".jpg", b"bad", "bad"))):
        try:
            (folder / f"{name}{suffix}").parent.mkdir(exist_ok=True)
            (folder / f"{name}{suffix}").write_bytes(content)
        except (OSError, ValueError):
            continue  # this system has no such names
        made[f"{name}{suffix}"] = kind
    return made
