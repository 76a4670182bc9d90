from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from itertools import product
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from velogan.data.pictures import picture as limits
from velogan.data.pictures.images import (
    SUFFIXES,
    Picture,
    choose_suffix,
    decode,
    is_picture,
    read_picture,
    save_picture,
)
from velogan.data.pictures.tiff import TiffStack

LOSSY = {".jpg", ".jpeg", ".webp"}
KEEPS_PROFILE = {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff"}
PROFILE = bytes(range(256)) * 300  # longer than one JPEG segment


def values(*shape: int, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return random.normal(0, 1000, shape).astype(np.float32)
    return random.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def pillow(image: Image.Image, kind: str, **settings) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def tiff(array: np.ndarray, **settings) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **settings)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(width: int, height: int, *, depth: int = 8, colour: int = 2, pixels: bytes = b"\0" * 99) -> bytes:
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(pixels)),
    ]
    chunks = [
        struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in [*parts, (b"IEND", b"")]
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# Round trips


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_round_trip(tmp_path: Path, suffix: str, dtype: str) -> None:
    path = tmp_path / f"x{suffix}"
    for shape, channels, alpha in product([(1, 1), (5, 8), (17, 4)], (1, 2, 3, 4, 6), (False, True)):
        picture = Picture(
            values(*shape, channels, dtype=dtype), values(*shape, dtype=dtype) if alpha else None, PROFILE
        )
        if choose_suffix(suffix, picture) != suffix:
            with pytest.raises(ValueError, match=f"cannot hold .* save it as {choose_suffix(suffix, picture)}"):
                save_picture(path, picture)
            continue
        save_picture(path, picture)
        read = read_picture(path)
        assert read.pixels.dtype == picture.pixels.dtype
        assert read.pixels.flags.writeable
        assert (read.alpha is None) == (picture.alpha is None)
        assert read.icc == (PROFILE if suffix in KEEPS_PROFILE else None)
        if suffix not in LOSSY:
            assert np.array_equal(read.pixels, picture.pixels)
        if alpha:  # WebP keeps it exactly too
            assert np.array_equal(read.alpha, picture.alpha)  # pyright: ignore


@pytest.mark.parametrize(
    ("suffix", "channels", "dtype", "alpha", "shape", "chosen"),
    [
        (".JPG", 3, "uint8", False, (2, 2), ".JPG"),
        (".jpg", 3, "uint8", True, (2, 2), ".png"),
        (".jpg", 1, "uint16", False, (2, 2), ".png"),
        (".webp", 1, "uint8", True, (2, 2), ".webp"),
        (".webp", 3, "uint8", False, (16384, 1), ".png"),
        (".bmp", 3, "uint8", True, (2, 2), ".png"),
        (".ppm", 3, "uint16", False, (2, 2), ".png"),
        (".png", 3, "float32", False, (2, 2), ".tiff"),
        (".png", 4, "uint8", False, (2, 2), ".tiff"),
        (".npy", 7, "float32", False, (2, 2), ".npy"),
        (".npy", 1, "uint8", True, (2, 2), ".png"),
        (".gif", 3, "uint8", False, (2, 2), ".png"),
    ],
)
def test_chooses_a_format_that_holds_the_picture(
    suffix: str, channels: int, dtype: str, alpha: bool, shape: tuple[int, int], chosen: str
) -> None:
    picture = Picture(np.zeros((*shape, channels), dtype), np.zeros(shape, dtype) if alpha else None)
    assert choose_suffix(suffix, picture) == chosen


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_lossy_formats_stay_close_and_jpeg_keeps_colour_at_full_resolution(tmp_path: Path, suffix: str) -> None:
    rows, columns = np.mgrid[0:64, 0:48]
    smooth = np.stack([rows * 3, columns * 5, 255 - rows * 2], axis=-1).astype(np.uint8)
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[:, ::2], stripes[:, 1::2] = (255, 0, 0), (0, 0, 255)
    for pixels, loss in ((smooth, 1.5), *([(stripes, 5)] if suffix == ".jpg" else [])):
        save_picture(tmp_path / f"x{suffix}", Picture(pixels))
        assert np.abs(read_picture(tmp_path / f"x{suffix}").pixels.astype(int) - pixels).mean() < loss


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    colours, deep = values(9, 7, 3), values(9, 7, 1, dtype="uint16")
    for suffix in (".png", ".bmp", ".ppm", ".tiff"):
        for pixels in (colours, deep) if suffix in (".png", ".tiff") else (colours,):
            save_picture(tmp_path / f"x{suffix}", Picture(pixels))
            with Image.open(tmp_path / f"x{suffix}") as opened:
                assert np.array_equal(np.asarray(opened), pixels.squeeze())
    save_picture(tmp_path / "x.npy", Picture(values(4, 3, 5, dtype="float32")))
    assert np.array_equal(np.load(tmp_path / "x.npy"), values(4, 3, 5, dtype="float32"))
    strided = np.array([[[1]], [[2]], [[3]]], np.uint8).transpose(1, 2, 0)  # a single pixel
    save_picture(tmp_path / "one.png", Picture(strided))
    assert np.array_equal(read_picture(tmp_path / "one.png").pixels, strided)
    with pytest.raises(ValueError, match=r"\.gif is not the suffix of a picture format: use one of \.bmp"):
        save_picture(tmp_path / "x.gif", Picture(values(2, 2, 3)))


# Conversions


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_equals_pillow(mode: str, progressive: bool) -> None:
    data = pillow(Image.fromarray(values(20, 30, 3)).convert(mode), "JPEG", quality=90, progressive=progressive)
    with Image.open(io.BytesIO(data)) as opened:
        wanted = np.asarray(opened if mode == "L" else opened.convert("RGB"))
    read = decode(data)
    assert np.array_equal(read.pixels, wanted.reshape(20, 30, -1))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_upright(kind: str, orientation: int) -> None:
    shown = np.zeros((16, 32, 4), np.uint8)  # four corners of four colours
    shown[:8, :16], shown[:8, 16:], shown[8:, :16] = (255, 0, 0, 99), (0, 255, 0, 199), (0, 0, 255, 255)
    stored = Image.fromarray(shown[..., :3] if kind == "JPEG" else shown)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # EXIF 2.32, 4.6.4: the inverse as Pillow's transpose
    if orientation in undo:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = decode(pillow(stored, kind, exif=exif, **({"lossless": True, "exact": True} if kind == "WEBP" else {})))
    assert read.pixels.shape == (16, 32, 3)
    assert np.abs(read.pixels.astype(int) - shown[..., :3]).mean() < 8
    assert kind == "JPEG" or np.array_equal(read.alpha, shown[..., 3])  # pyright: ignore


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("byteorder", ["<", ">"])
def test_sixteen_bits_from_other_writers(dtype: str, channels: int, byteorder: str) -> None:
    array = values(6, 5, channels, dtype=dtype)
    kinds = {"photometric": "rgb" if channels >= 3 else "minisblack", "planarconfig": "contig"}
    extra = {"extrasamples": ["unassalpha"]} if channels in (2, 4) else {}
    kinds = kinds if channels > 1 else {"photometric": "minisblack"}
    for data in (imagecodecs.png_encode(array), tiff(array.squeeze(), byteorder=byteorder, **kinds, **extra)):
        read = decode(bytes(data))
        colours = channels - (channels in (2, 4))
        assert np.array_equal(read.pixels, array[..., :colours])
        assert read.pixels.dtype == array.dtype
        assert (read.alpha is None) == (colours == channels)
        if read.alpha is not None:
            assert np.array_equal(read.alpha, array[..., -1])


def test_few_bits_become_eight() -> None:
    bits = np.array([[True, False, True], [False, False, True]])
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        assert np.array_equal(decode(pillow(Image.fromarray(bits), kind)).pixels[..., 0], bits * np.uint8(255)), kind
    fax = pillow(Image.fromarray(bits), "TIFF", compression="group4")
    assert np.array_equal(decode(fax).pixels[..., 0], bits * np.uint8(255))
    two = png(4, 1, depth=2, colour=0, pixels=b"\0\x1b")
    assert decode(two).pixels[0, :, 0].tolist() == [0, 85, 170, 255]


def test_palettes_become_colours() -> None:
    palette = Image.fromarray(values(20, 30, 3)).quantize(8)
    wanted = np.asarray(palette.convert("RGB"))
    for kind in ("PNG", "BMP", "TIFF", "GIF"):
        read = decode(pillow(palette, kind))
        assert np.array_equal(read.pixels, wanted), kind
        assert read.alpha is None
    see_through = decode(pillow(palette, "PNG", transparency=b"\x00\x80"))
    assert see_through.alpha is not None
    assert set(np.unique(see_through.alpha)) == {0, 128, 255}
    assert np.array_equal(see_through.pixels, wanted)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_becomes_alpha(kind: str) -> None:
    grey = np.array([[3, 7, 3]], np.uint8)
    read = decode(pillow(Image.fromarray(grey), kind, transparency=3))
    assert read.alpha is not None
    assert read.alpha.tolist() == [[0, 255, 0]]
    assert np.array_equal(read.pixels[..., 0], grey)


@pytest.mark.parametrize("mode", ["CMYK", "LAB", "YCbCr"])
def test_other_colours_become_rgb(mode: str) -> None:
    stored = Image.frombytes(mode, (6, 300), values(300, 6, 4 if mode == "CMYK" else 3).tobytes())
    if mode == "YCbCr":
        data = tiff(np.asarray(stored), photometric="ycbcr", metadata=None)
    else:
        data = pillow(stored, "TIFF", icc_profile=PROFILE)
    read = decode(data)
    with Image.open(io.BytesIO(data)) as opened:
        assert np.array_equal(read.pixels, np.asarray((stored if mode == "YCbCr" else opened).convert("RGB")))
    assert read.icc is None


def test_an_animation_gives_its_first_frame() -> None:
    colours = np.array([[180, 90, 40], [30, 60, 200]], np.uint8)
    alpha = np.diag([255] * 8).astype(np.uint8)
    for kind in ("PNG", "WEBP", "GIF", "MPO", "AVIF"):
        first, second = (Image.fromarray(np.tile(colour, (8, 8, 1))) for colour in colours)
        for frame in (first, second) if kind != "MPO" else ():
            frame.putalpha(Image.fromarray(alpha))
        read = decode(pillow(first, kind, save_all=True, append_images=[second], lossless=True))
        assert read.metadata.frames == (1 if kind == "MPO" else 2)
        assert np.abs(read.pixels[alpha > 0].astype(int) - colours[0]).max() <= 4, kind
        assert kind == "MPO" or np.abs(read.alpha.astype(int) - alpha).max() <= 4, kind  # pyright: ignore


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "AVIF"])
def test_rejects_a_truncated_animation(kind: str) -> None:
    frames = [Image.fromarray(values(48, 48, 3, seed=index)) for index in range(8)]
    data = pillow(frames[0], kind, save_all=True, append_images=frames[1:])
    assert decode(data).metadata.frames == 8
    assert kind != "GIF" or decode(data + b"written by a program").metadata.frames == 8
    for share in (0.4, 0.7, 0.95):
        with pytest.raises(ValueError, match=r"."):
            decode(data[: int(len(data) * share)])


@pytest.mark.parametrize("saying", [{"metadata": None}, {}, {"imagej": True}, {"ome": True}, {"compression": "zlib"}])
def test_rejects_a_stack_whose_last_pages_are_missing(saying: dict) -> None:
    data = tiff(values(6, 32, 32), photometric="minisblack", **saying)
    assert len(TiffStack(data)) == 6
    for share in (0.4, 0.6, 0.8):
        with pytest.raises(ValueError, match="are missing: the file is truncated"):
            TiffStack(data[: int(len(data) * share)])


def test_ppm_is_scaled_from_its_maximum() -> None:
    assert decode(b"P5\n# made by hand\n3 1\n100\n" + bytes([0, 50, 100])).pixels[0, :, 0].tolist() == [0, 128, 255]
    assert decode(b"P5 2 1 4095 " + struct.pack(">2H", 0, 4095)).pixels[0, :, 0].tolist() == [0, 65535]
    assert decode(b"P3 1 1 255\n1 2 3\n").pixels.tolist() == [[[1, 2, 3]]]
    with pytest.raises(ValueError, match="colour deeper than 8 bits"):
        decode(b"P6 1 1 4095\n" + bytes(6))


def test_npy() -> None:
    for array, wanted in [
        (values(4, 5, 3), values(4, 5, 3)),
        (values(4, 5, dtype="uint16").astype(">u2"), values(4, 5, 1, dtype="uint16")),
        (np.asfortranarray(values(4, 5, 7)), values(4, 5, 7)),
        (np.eye(3, dtype=bool), np.eye(3)[..., None].astype(np.uint8) * np.uint8(255)),
        (np.array([[-1024, 3071]], np.int16), np.array([[[-1024.0], [3071.0]]], np.float32)),
        (np.array([[0.5, -2.0]]), np.array([[[0.5], [-2.0]]], np.float32)),
    ]:
        read = decode(npy(array)).pixels
        assert np.array_equal(read, wanted)
        assert read.dtype == wanted.dtype


SAYING = {"OME-XML": {"ome": True}, "ImageJ": {"imagej": True}, "tifffile": {}}


@pytest.mark.parametrize("writer", SAYING)
@pytest.mark.parametrize(("axis", "meaning"), [("C", "channels"), ("Z", "slices"), ("T", "times")])
def test_tiff_pages_are_what_their_description_states(writer: str, axis: str, meaning: str) -> None:
    pages = values(3, 9, 7, dtype="uint16")
    data = tiff(pages, photometric="minisblack", metadata={"axes": f"{axis}YX"}, **SAYING[writer])
    if axis == "C":
        assert np.array_equal(decode(data).pixels, np.moveaxis(pages, 0, -1))
    else:
        with pytest.raises(ValueError, match=meaning):
            decode(data)


def test_rejects_tiff_pages_without_a_description_or_in_colour() -> None:
    for settings in ({}, {"metadata": None}, {"description": "channels=3", "metadata": None}):
        with pytest.raises(ValueError, match="--pages channels"):
            decode(tiff(values(3, 9, 7, dtype="uint16"), photometric="minisblack", **settings))
    with pytest.raises(ValueError, match="colour"):
        decode(tiff(values(2, 9, 7, 3), photometric="rgb"))


def test_skips_tiff_previews_and_pyramids() -> None:
    large = values(64, 48, 3)
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(large, photometric="rgb", tile=(16, 16))
        writer.write(large[::2, ::2], photometric="rgb", subfiletype=1)
        writer.write(large[::4, ::4], photometric="rgb")
    assert np.array_equal(decode(file.getvalue()).pixels, large)


def test_tiff_kinds_of_values() -> None:
    for array, wanted in [
        (np.array([[-1024, 3071]], np.int16), np.array([[-1024, 3071]], np.float32)),
        (np.array([[-0.5, 1e9]], np.float64), np.array([[-0.5, 1e9]], np.float32)),
        (np.array([[0, 65535]], np.int32), np.array([[0, 65535]], np.uint16)),
        (np.array([[-1, 65535]], np.int32), np.array([[-1, 65535]], np.float32)),
    ]:
        read = decode(tiff(array, photometric="minisblack")).pixels[..., 0]
        assert np.array_equal(read, wanted)
        assert read.dtype == wanted.dtype
    white_is_zero = values(3, 4, dtype="uint16")
    assert np.array_equal(decode(tiff(white_is_zero, photometric="miniswhite")).pixels[..., 0], 65535 - white_is_zero)


def test_alpha_of_tiff_is_divided_out_if_premultiplied_and_not_inverted() -> None:
    stored = np.array([[[100, 50, 0, 128], [9, 9, 9, 0], [7, 8, 9, 255]]], np.uint8)
    read = decode(tiff(stored, photometric="rgb", extrasamples=["assocalpha"]))
    assert read.pixels.tolist() == [[[199, 100, 0], [0, 0, 0], [7, 8, 9]]]
    assert read.alpha is not None
    assert read.alpha.tolist() == [[128, 0, 255]]
    inverted = np.array([[[10, 255], [250, 0]]], np.uint8)
    read = decode(tiff(inverted, photometric="miniswhite", extrasamples=["unassalpha"], metadata=None))
    assert read.alpha is not None
    assert (read.pixels[0, :, 0].tolist(), read.alpha[0].tolist()) == ([245, 5], [255, 0])


# Rejections


def test_rejects_what_is_not_a_picture_or_damaged() -> None:
    jpeg, whole_png = (pillow(Image.fromarray(values(20, 30, 3)), kind) for kind in ("JPEG", "PNG"))
    infinite = np.array([[0.0, np.inf, np.nan]], np.float32)
    damaged = [b"", b"no picture", jpeg[:-300], whole_png[:-300], b"P6 20 30 255\n123", png(0, 5), png(5, 5, depth=5)]
    damaged += [
        npy(np.zeros((2, 2))).replace(b"'<f8'", b"'|O' "),
        npy(values(20, 30))[:-1],
        tiff(values(20, 30))[:-300],
    ]
    odd = (np.array(["a"]), values(40), np.zeros((0, 4), np.uint8), np.array([[1e300]]), np.zeros((2, 2), complex))
    damaged += [npy(array) for array in (*odd, infinite)] + [tiff(infinite, photometric="minisblack")]
    for data in damaged:
        with pytest.raises(ValueError, match=r"."):
            decode(data)
    with pytest.raises(ValueError, match=r"np\.moveaxis"):
        decode(npy(values(3, 40, 50)))


def test_rejects_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path, tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ValueError, match="not a regular file"):
            read_picture(path)
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    for name in ("loop.png", "missing.png"):
        with pytest.raises(OSError, match=name):
            read_picture(tmp_path / name)


def test_rejects_pictures_above_the_limit() -> None:
    limits.check_size(16384, 16384, 3)
    limits.check_size(16384, 16384, 4)
    limits.check_size(65535, 1, 3)
    for height, width, size in [(16384, 16385, 4), (65536, 1, 1), (1, 0, 1)]:
        with pytest.raises(ValueError, match=f"{width}x{height} pixels"):
            limits.check_size(height, width, size)


def test_rejects_headers_of_another_size() -> None:
    jpeg = bytearray(pillow(Image.fromarray(values(16, 16, 3)), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 16000, 16000)
    inside = bytearray(tiff(values(16, 16, 3), photometric="ycbcr", compression="jpeg"))
    frame = inside.index(b"\xff\xc0")
    inside[frame + 5 : frame + 9] = struct.pack(">HH", 24, 24)
    gif = pillow(Image.fromarray(values(16, 16)), "GIF")
    lying_gif = gif[:6] + struct.pack("<HH", 60000, 5000) + gif[10:]
    lying_npy = npy(values(4, 4)).replace(b"(4, 4)", b"(9999, 9999)")
    for data in (bytes(jpeg), bytes(inside), lying_gif, lying_npy, b"P5 30000 30000 255\n", png(65535, 65535)):
        with pytest.raises(ValueError, match=r"."):
            decode(data)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_flaw_in_the_metadata_does_not_hide_the_picture(capfd: pytest.CaptureFixture[str]) -> None:
    colours = values(9, 8, 3)
    broken = b"Exif\0\0II*\0\xff\xff\xff\xff"
    assert np.array_equal(
        decode(pillow(Image.fromarray(colours), "PNG", exif=broken, icc_profile=b"short")).pixels, colours
    )
    assert decode(pillow(Image.fromarray(colours), "JPEG", exif=broken)).pixels.shape == colours.shape
    assert capfd.readouterr() == ("", "")


def test_a_dicom_file_that_begins_like_a_tiff_is_not_a_picture(tmp_path: Path):
    """DICOM leaves the first 128 bytes to others (PS3.10, 7.1), and some write the header of a TIFF there."""
    start = struct.pack("<2sHI", b"II", 42, 8).ljust(128, b"\0")
    for name, then, taken in (("a.dcm", b"DICM", False), ("a", b"DICM", False), ("b", b"\0" * 4, True)):
        (tmp_path / name).write_bytes(start + then + bytes(8))
        assert is_picture(tmp_path / name) is taken


def test_a_stack_gives_each_thread_its_own_page(monkeypatch: pytest.MonkeyPatch) -> None:
    file, pages = io.BytesIO(), np.arange(3, dtype=np.uint8)[:, None, None].repeat(8, axis=1).repeat(8, axis=2)
    tifffile.imwrite(file, pages, photometric="minisblack", metadata={"axes": "ZYX"}, compression="deflate")
    stack = TiffStack(file.getvalue())
    seek, mine = tifffile.FileHandle.seek, threading.get_ident()

    def interrupted(handle: tifffile.FileHandle, *where: int) -> int:
        found = seek(handle, *where)
        if threading.get_ident() == mine:  # another thread reads as far as it is let
            other = threading.Thread(target=stack.picture, args=(2,))
            other.start()
            other.join(0.2)
            others.append(other)
        return found

    others: list[threading.Thread] = []
    monkeypatch.setattr(tifffile.FileHandle, "seek", interrupted)
    assert (stack.picture(1).pixels == 1).all()
    assert others
    for other in others:
        other.join()
