"""What becomes of each thing that a file states besides its pixels: carried, converted or dropped (docs/formats.md).

Each row is held by a real file, which says it, through a translation that changes nothing.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import imagecodecs
import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
from nibabel.nifti1 import Nifti1Extension
from PIL import Image, ImageCms
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, JPEGLosslessSV1, generate_uid
from tifffile import DATATYPE

from velogan.translate.files import translate
from velogan.translate.model import Translator

from ..models import in_memory

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
GREY = PIXELS[..., 0]
SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
OF_GREY, OF_CMYK = (SRGB[:16] + space + SRGB[20:] for space in (b"GRAY", b"CMYK"))
MAKE, ORIENTATION, ACROSS, GPS, CAMERA = 0x010F, 0x0112, 0x011A, 0x8825, 0x8769
RANGE = (-1000.0, 1000.0)

Seen = tuple[Any, Any, Any]
"""What the input says, what the translation says (None: nothing), and what that would be if it were converted."""


def _model(channels: int = 3, dtype: str = "uint8", span: tuple[float, float] | None = None) -> Translator:
    form = {"channels": channels, "dtype": dtype, "range": span}
    return in_memory(input=form, output=form)


def _through(folder: Path, name: str, data: bytes, *, out: str | None = None, model: Translator | None = None) -> Path:
    (folder / name).write_bytes(data)
    done = translate(model or _model(), folder / name, folder / "out" / (out or name))
    assert done.failed == ()
    return next((folder / "out").glob(f"{(out or name).partition('.')[0]}.*"))


def _saved(form: str, pixels: np.ndarray | Image.Image = PIXELS, **how: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).save(file, form, **how)
    return file.getvalue()


def _tiff(pixels: np.ndarray = PIXELS, **how: Any) -> bytes:
    file = io.BytesIO()
    how = {"photometric": "rgb" if pixels.ndim == 3 else "minisblack", "metadata": None, **how}
    tifffile.imwrite(file, pixels, **how)
    return file.getvalue()


def _tags(path: Path) -> dict[int, Any]:
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        assert isinstance(page, tifffile.TiffPage)
        return {tag.code: tag.value for tag in page.tags}


def _exif(orientation: int = 1) -> Image.Exif:
    exif = Image.Exif()
    exif[MAKE], exif[ORIENTATION], exif[ACROSS], exif[ACROSS + 1] = "a maker", orientation, 300.0, 150.0
    exif.get_ifd(GPS)[1] = "N"
    exif.get_ifd(CAMERA).update({0x927C: b"of the maker", 0xA002: 24, 0xA003: 16})
    return exif


def _exif_of(path: Path) -> list[Any]:
    with Image.open(path) as picture:
        exif = picture.getexif()
        camera = exif.get_ifd(CAMERA)
        sides = [exif.get(ACROSS), exif.get(ACROSS + 1), camera.get(0xA002), camera.get(0xA003)]
        words = [exif.get(MAKE), exif.get_ifd(GPS).get(1), camera.get(0x927C)]
        return [*words, exif.get(ORIENTATION), sides, picture.size]


def _of_exif(what: slice | int, meant: Any) -> Callable[[Path], list[Seen]]:
    def case(folder: Path) -> list[Seen]:
        seen = []
        for form, suffix in (("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp")):
            (folder / f"given.{suffix}").write_bytes(_saved(form, exif=_exif(6)))
            after = _through(folder, f"a{suffix}.{suffix}", _saved(form, exif=_exif(6)))
            seen.append((_exif_of(folder / f"given.{suffix}")[what], _exif_of(after)[what], meant))
        return seen

    return case


def _thumbnail(folder: Path) -> list[Seen]:
    small = b"\xff\xd8THUMBNAIL\xff\xd9"
    entries = [(0x0201, 4, 1, 56), (0x0202, 4, 1, len(small))]
    second = struct.pack("<H", 2) + b"".join(struct.pack("<HHII", *one) for one in entries) + bytes(4)
    first = struct.pack("<H", 1) + struct.pack("<HHIHH", ORIENTATION, 3, 1, 1, 0) + struct.pack("<I", 26)
    exif = b"II*\0\x08\0\0\0" + first + second + small
    data = _saved("JPEG", exif=b"Exif\0\0" + exif)
    assert small in data
    return [(small, small if small in _through(folder, "a.jpg", data).read_bytes() else None, None)]


def _icc(path: Path) -> Any:
    with Image.open(path) as picture:
        return picture.info.get("icc_profile")


def _profile(folder: Path) -> list[Seen]:
    files = {"a.jpg": _saved("JPEG", icc_profile=SRGB), "b.png": _saved("PNG", icc_profile=SRGB),
             "c.webp": _saved("WEBP", icc_profile=SRGB), "d.tif": _tiff(iccprofile=SRGB)}  # fmt: skip
    return [(SRGB, _icc(_through(folder, name, data)), None) for name, data in files.items()]


def _profile_of_others(folder: Path) -> list[Seen]:
    cmyk = _saved("JPEG", Image.fromarray(PIXELS).convert("CMYK"), icc_profile=OF_CMYK)
    grey = _saved("PNG", GREY, icc_profile=OF_GREY)
    return [
        (OF_CMYK, _icc(_through(folder, "a.jpg", cmyk)), None),
        (OF_GREY, _icc(_through(folder, "b.png", grey)), None),  # which becomes RGB
        (OF_GREY, _icc(_through(folder, "c.png", grey, out="c.webp", model=_model(1))), None),  # as WebP is
    ]


def _chunks(data: bytes) -> dict[bytes, bytes]:
    found, at = {}, 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        found[kind] = data[at + 8 : at + 8 + size]
        at += 12 + size
    return found


def _with_chunks(chunks: dict[bytes, bytes], pixels: np.ndarray = PIXELS) -> bytes:
    data = _saved("PNG", pixels)
    made = [kind + body for kind, body in chunks.items()]
    more = [struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in made]
    return data[:33] + b"".join(more) + data[33:]


def _of_png(chunks: dict[bytes, bytes]) -> Callable[[Path], list[Seen]]:
    def case(folder: Path) -> list[Seen]:
        after = _chunks(_through(folder, "a.png", _with_chunks(chunks)).read_bytes())
        return [(body, after.get(kind), None) for kind, body in chunks.items()]

    return case


def _palette(folder: Path) -> list[Seen]:
    picture = Image.fromarray(PIXELS).quantize(16)
    with Image.open(_through(folder, "a.png", _saved("PNG", picture, transparency=3))) as after:
        seen = [("P", after.mode, "RGBA")]
        assert np.array_equal(np.asarray(after)[..., :3], np.asarray(picture.convert("RGB")))
    bits = Image.fromarray(GREY > 99)
    with Image.open(_through(folder, "b.png", _saved("PNG", bits), model=_model(1))) as after:
        return [*seen, ("1", after.mode, "L")]


def _resolution(folder: Path) -> list[Seen]:
    seen = []
    for form, name in (("JPEG", "a.jpg"), ("PNG", "b.png"), ("TIFF", "c.tif")):
        with Image.open(_through(folder, name, _saved(form, dpi=(300, 150)))) as after:
            seen.append(((300, 150), tuple(round(one) for one in after.info["dpi"]), None))
    return seen


def _tiff_turned(folder: Path) -> list[Seen]:
    after = _through(folder, "a.tif", _tiff(extratags=[(274, DATATYPE.SHORT, 1, 6, True)]))
    assert np.array_equal(tifffile.imread(after), np.rot90(PIXELS, -1))
    return [(6, _tags(after).get(274, 1), 1)]


def _photometric(folder: Path) -> list[Seen]:
    after = _through(folder, "a.tif", _tiff(255 - GREY, photometric="miniswhite"), model=_model(1))
    assert np.array_equal(tifffile.imread(after), GREY)
    inks = Image.fromarray(PIXELS).convert("CMYK")
    seen = [(0, int(_tags(after)[262]), 1)]
    after = _through(folder, "b.tif", _saved("TIFF", inks))
    assert np.array_equal(tifffile.imread(after), np.asarray(inks.convert("RGB")))
    return [*seen, (5, int(_tags(after)[262]), 2)]


def _twelve_bits(folder: Path) -> list[Seen]:
    values = GREY.astype(np.uint16) * 16
    after = _through(folder, "a.tif", _tiff(values, bitspersample=12), model=_model(1, "uint16"))
    assert np.array_equal(tifffile.imread(after), values)
    return [(12, _tags(after)[258], 16)]


def _multiplied(folder: Path) -> list[Seen]:
    whole = np.concatenate([PIXELS // 2, np.full((16, 24, 1), 128, np.uint8)], axis=2)
    after = _through(folder, "a.tif", _tiff(whole, extrasamples=["assocalpha"]))
    assert np.abs(tifffile.imread(after)[..., :3].astype(int) - PIXELS).max() <= 2
    return [(1, int(_tags(after)[338][0]), 2)]


def _imagej(folder: Path) -> list[Seen]:
    file = io.BytesIO()
    tifffile.imwrite(file, GREY, imagej=True, resolution=(4, 2), metadata={"unit": "um"})
    tags = _tags(_through(folder, "a.tif", file.getvalue(), model=_model(1)))
    return [(((4, 1), (2, 1), 1), (tags[282], tags[283], int(tags[296])), ((101600, 1), (50800, 1), 2))]


def _places(folder: Path) -> list[Seen]:
    given: list[Any] = [
        (33550, DATATYPE.DOUBLE, 3, (10.0, 10.0, 0.0), True),
        (33922, DATATYPE.DOUBLE, 6, (0.0, 0.0, 0.0, 399960.0, 5300040.0, 0.0), True),
        (34264, DATATYPE.DOUBLE, 16, tuple(map(float, range(16))), True),
        (34735, DATATYPE.SHORT, 4, (1, 1, 0, 0), True),
        (34736, DATATYPE.DOUBLE, 1, 6378137.0, True),
        (34737, DATATYPE.ASCII, 0, "WGS 84|", True),
        (50844, DATATYPE.DOUBLE, 92, tuple(map(float, range(92))), True),
        (42113, DATATYPE.ASCII, 0, "0", True),
    ]
    after = _tags(_through(folder, "a.tif", _tiff(extratags=given)))
    return [(one[3], value[0] if isinstance(value := after.get(one[0]), tuple) and one[2] == 1 else value, None)
            for one in given]  # fmt: skip


def _ppm(folder: Path) -> list[Seen]:
    after = _through(folder, "a.ppm", b"P6\n4 4\n15\n" + bytes([15, 0, 5] * 16))
    head, _, body = after.read_bytes().partition(b"\n255\n")
    return [(15, 255 if head and body[:3] == bytes([255, 0, 85]) else None, 255)]


def _of_phones(pixels: np.ndarray = PIXELS) -> dict[str, bytes]:
    """An AVIF file; a HEIC file, too, where the extra is there."""
    found = {"a.avif": _saved("AVIF", exif=_exif(6), icc_profile=SRGB)}
    if find_spec("pillow_heif") is not None:
        import pillow_heif

        file = io.BytesIO()
        picture = pillow_heif.from_pillow(Image.fromarray(pixels))
        picture.save(file, exif=_exif(6).tobytes(), icc_profile=SRGB)
        found["b.heic"] = file.getvalue()
    return found


def _phone(folder: Path) -> list[Seen]:
    seen: list[Seen] = []
    for name, data in _of_phones().items():
        after = _through(folder, name, data, out=f"{name[0]}.png")
        seen += [(SRGB, _icc(after), None), ("a maker", _exif_of(after)[0], None)]
    return seen


def _phone_upright(folder: Path) -> list[Seen]:
    found = [_exif_of(_through(folder, name, data, out=f"{name[0]}.png")) for name, data in _of_phones().items()]
    assert all(one[-1] == (16, 24) for one in found)
    return [(6, one[3], 1) for one in found]


def _dicom(
    folder: Path, *, stored: np.ndarray | None = None, syntax: Any = ExplicitVRLittleEndian, **values: Any
) -> Any:
    """The header of a slice, and that of its translation."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, syntax
    meta.MediaStorageSOPInstanceUID = generate_uid()
    scan = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    scan.SOPClassUID, scan.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    scan.StudyInstanceUID, scan.SeriesInstanceUID = generate_uid(), generate_uid()
    scan.PatientID, scan.Modality, scan.PixelSpacing, scan.SliceThickness = "7", "CT", [0.7, 0.8], 2.5
    scan.ImagePositionPatient, scan.ImageOrientationPatient = [1, 2, 3], [1, 0, 0, 0, 1, 0]
    scan.FrameOfReferenceUID = generate_uid()
    scan.RescaleSlope, scan.RescaleIntercept, scan.WindowCenter, scan.WindowWidth = 2, -900, 40, 400
    stored = GREY.astype(np.int16) if stored is None else stored
    scan.Rows, scan.Columns = stored.shape[:2]
    scan.SamplesPerPixel, scan.PhotometricInterpretation = 1, "MONOCHROME2"
    scan.BitsAllocated, scan.BitsStored, scan.HighBit = 16, 16, 15
    scan.PixelRepresentation = int(stored.dtype.kind == "i")
    scan.PixelData = stored.tobytes()
    if syntax == JPEGLosslessSV1:
        data = imagecodecs.ljpeg_encode(stored.view(np.uint16))
        assert data is not None
        scan.PixelData = encapsulate([bytes(data)])
        scan["PixelData"].is_undefined_length = True
    scan["PixelData"].VR = "OW"
    for name, value in values.items():
        setattr(scan, name, value)
    pydicom.dcmwrite(folder / "a.dcm", scan, enforce_file_format=True)
    given = pydicom.dcmread(folder / "a.dcm")
    after = pydicom.dcmread(
        _through(folder, "a.dcm", (folder / "a.dcm").read_bytes(), model=_model(1, "float32", RANGE))
    )
    return given, after


def _of_dicom(*names: str, meant: dict[str, Any] | None = None, **values: Any) -> Callable[[Path], list[Seen]]:
    def case(folder: Path) -> list[Seen]:
        given, after = _dicom(folder, **values)
        assert all(name in given for name in names)
        wanted = meant or {}
        return [(given[name].value, after[name].value if name in after else None, wanted.get(name)) for name in names]

    return case


def _kept_of_dicom(folder: Path) -> list[Seen]:
    given, after = _dicom(folder, LossyImageCompression="01", BurnedInAnnotation="YES")
    names = ["PatientID", "StudyInstanceUID", "PixelSpacing", "SliceThickness", "ImagePositionPatient", "Modality"]
    names += ["ImageOrientationPatient", "FrameOfReferenceUID", "LossyImageCompression", "BurnedInAnnotation"]
    seen = [(given[name].value, after[name].value, None) for name in names]
    private = FileDataset("", {})
    private.private_block(0x11, "velogan tests", create=True).add_new(1, "LO", "theirs")
    _, after = _with_elements(folder, private)
    return [*seen, ("theirs", after.get_private_item(0x11, 1, "velogan tests").value, None)]


def _overlay(folder: Path, *, inside: bool) -> list[Seen]:
    words: dict[str, Any] = {"OverlayRows": 16, "OverlayColumns": 24, "OverlayType": "G", "OverlayOrigin": [1, 1]}
    words |= {"OverlayBitsAllocated": 16 if inside else 1, "OverlayBitPosition": 12 if inside else 0}
    words |= {} if inside else {"OverlayData": bytes(48)}
    meta = FileDataset("", {})
    for number, (name, vr) in enumerate({"OverlayRows": "US", "OverlayColumns": "US"}.items()):
        meta.add_new(0x60000010 + number, vr, words[name])
    meta.add_new(0x60000040, "CS", "G")
    meta.add_new(0x60000050, "SS", [1, 1])
    meta.add_new(0x60000100, "US", words["OverlayBitsAllocated"])
    meta.add_new(0x60000102, "US", words["OverlayBitPosition"])
    if not inside:
        meta.add_new(0x60003000, "OW", words["OverlayData"])
    given, after = _with_elements(folder, meta)
    return [
        (one.value, after[one.tag].value if one.tag in after else None, None) for one in given.group_dataset(0x6000)
    ]


def _with_elements(folder: Path, more: Any) -> Any:
    scan, _ = _dicom(folder)
    scan.update(more)
    pydicom.dcmwrite(folder / "b.dcm", scan)
    after = _through(folder, "b.dcm", (folder / "b.dcm").read_bytes(), model=_model(1, "float32", RANGE))
    return scan, pydicom.dcmread(after)


def _nifti(folder: Path) -> tuple[Any, Any]:
    values = GREY[..., None].repeat(3, axis=2).astype(np.int16)
    image = nibabel.Nifti1Image(values, np.array([[0, -2.0, 0, 9], [1.5, 0, 0, 8], [0, 0, 3, 7], [0, 0, 0, 1]]))
    header: Any = image.header
    image.set_sform(image.affine, 4)
    image.set_qform(np.diag([1.5, 2, 3, 1]), 1)
    header.set_xyzt_units("mm", "sec")
    header.set_slope_inter(2, -50)
    header["cal_min"], header["cal_max"], header["glmax"], header["aux_file"] = 1, 99, 255, b"colours"
    header["slice_duration"], header["toffset"] = 0.5, 3
    header.set_intent("t test", (7,), name="a test")
    header.extensions.append(Nifti1Extension(6, b"a note"))
    data = image.to_bytes()
    after = nibabel.load(_through(folder, "a.nii", data, model=_model(1, "float32", RANGE)))
    return nibabel.Nifti1Image.from_bytes(data), after


def _volume(folder: Path) -> list[Seen]:
    given, after = _nifti(folder)
    seen = [(given.get_sform().tolist(), after.get_sform().tolist(), None)]
    seen.append((given.get_qform().tolist(), after.get_qform().tolist(), None))
    for name in ("sform_code", "qform_code", "pixdim", "xyzt_units", "slice_duration", "toffset"):
        seen.append((given.header[name].tolist(), after.header[name].tolist(), None))
    texts = [one.get_content() for one in after.header.extensions]
    return [*seen, (given.header.extensions[0].get_content(), texts[0], None)]


def _volume_values(folder: Path) -> list[Seen]:
    given, after = _nifti(folder)
    np.testing.assert_allclose(after.get_fdata(), given.get_fdata().clip(*RANGE), atol=0.05)
    meant = {"datatype": 16, "bitpix": 32, "cal_min": -1000, "cal_max": 1000}
    seen = [(given.header[name].tolist(), after.header[name].tolist(), value) for name, value in meant.items()]
    return [*seen, ((2.0, -50.0), after.dataobj.slope + 0.0 == 1 and (1.0, 0.0), (1.0, 0.0))]


def _volume_meaning(folder: Path) -> list[Seen]:
    given, after = _nifti(folder)
    return [
        (given.header[name].tolist(), after.header[name].tolist() or None, None)
        for name in ("intent_code", "intent_p1", "intent_name", "aux_file", "glmax")
    ]


def _video(folder: Path, *, name: str = "a.mp4", form: str = "yuv420p", codec: str = "libx264", **of: Any) -> Any:
    """A video, its translation, and both open streams' facts."""
    title = of.pop("title", "")
    with av.open(str(folder / name), "w") as container:
        container.metadata.update({"title": title, "comment": "mine"})
        video: Any = container.add_stream(codec, rate=Fraction(25, 2), options=of.pop("options", {}))
        video.width, video.height, video.pix_fmt = 48, 32, form
        for key, value in of.items():
            setattr(video.codec_context, key, value)
        sound: Any = container.add_stream("aac", rate=16000, layout="mono")
        sound.metadata["language"] = "deu"
        for index in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), 40 * index, np.uint8), format="rgb24")
            container.mux(video.encode(frame.reformat(format=form)))
        container.mux(video.encode(None))
        tone = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        tone.sample_rate = 16000
        container.mux(sound.encode(tone))
        container.mux(sound.encode(None))
    return _facts(folder / name), _facts(_through(folder, name, (folder / name).read_bytes()))


def _facts(path: Path) -> dict[str, Any]:
    with av.open(str(path)) as container:
        video, sound = container.streams.video[0], container.streams.audio[0]
        facts = {key: getattr(video.codec_context, key) for key in ("colorspace", "color_primaries", "color_trc")}
        facts |= {"range": video.codec_context.color_range, "shape": video.sample_aspect_ratio}
        facts |= {
            "rate": video.average_rate,
            "title": container.metadata.get("title"),
            "comment": container.metadata.get("comment"),
        }
        facts |= {"language": sound.metadata.get("language"), "form": video.pix_fmt}
        facts |= {"sound": [bytes(packet) for packet in container.demux(sound)]}
    return facts


def _of_video(*keys: str, meant: dict[str, Any] | None = None, **how: Any) -> Callable[[Path], list[Seen]]:
    def case(folder: Path) -> list[Seen]:
        given, after = _video(folder, **how)
        return [(given[key], after[key], (meant or {}).get(key)) for key in keys]

    return case


TABLE: dict[tuple[str, str, str], Callable[[Path], list[Seen]]] = {
    ("JPEG, PNG, WebP", "EXIF: camera, place, time, maker's notes", "kept"): _of_exif(slice(0, 3), None),
    ("JPEG, PNG, WebP", "EXIF: orientation", "converted"): _of_exif(3, 1),
    ("JPEG, PNG, WebP", "EXIF: sides and resolution of a picture that is turned", "converted"): _of_exif(
        4, [150.0, 300.0, 16, 24]
    ),
    ("JPEG, PNG, WebP", "EXIF: thumbnail", "dropped"): _thumbnail,
    ("JPEG, PNG, WebP, TIFF", "colour profile (ICC)", "kept"): _profile,
    ("JPEG, PNG, WebP, TIFF", "profile of CMYK, or where numbers of channels differ", "dropped"): _profile_of_others,
    ("JPEG, PNG, TIFF", "pixels per inch or centimetre", "kept"): _resolution,
    ("PNG", "`gAMA`, `sRGB`", "dropped"): _of_png({b"gAMA": struct.pack(">I", 100000), b"sRGB": b"\0"}),
    ("PNG", "palette, 1 to 4 bits", "converted"): _palette,
    ("TIFF", "orientation", "converted"): _tiff_turned,
    ("TIFF", "white is zero, palette, CMYK, Lab", "converted"): _photometric,
    ("TIFF", "9 to 15 bits", "converted"): _twelve_bits,
    ("TIFF", "alpha that is multiplied in", "converted"): _multiplied,
    ("TIFF", "ImageJ's unit of length", "converted"): _imagej,
    ("TIFF", "places on the Earth, no data (33550, 33922, 34264, 34735 to 34737, 50844, 42113)", "kept"): _places,
    ("PPM", "highest value", "converted"): _ppm,
    ("AVIF, HEIC", "EXIF, colour profile", "kept"): _phone,
    ("AVIF, HEIC", "orientation", "converted"): _phone_upright,
    ("DICOM", "patient, study, geometry, modality, lossy, burned in, private tags", "kept"): _kept_of_dicom,
    ("DICOM", "`Units`", "converted"): _of_dicom("Units", Units="BQML", meant={"Units": "NONE"}),
    ("DICOM", "smallest, largest and padding value, tables, histogram, icon, signatures", "dropped"): _of_dicom(
        "SmallestImagePixelValue", "LargestImagePixelValue", "PixelPaddingValue", "VOILUTFunction",
        SmallestImagePixelValue=0, LargestImagePixelValue=255, PixelPaddingValue=0, VOILUTFunction="SIGMOID",
    ),
    ("DICOM", "overlay", "kept"): partial(_overlay, inside=False),
    ("DICOM", "overlay in unused bits of pixels", "dropped"): partial(_overlay, inside=True),
    ("NIfTI", "affine, qform, sform, units, times, extensions", "kept"): _volume,
    ("NIfTI", "type, `scl_slope`, `cal_min`, `cal_max`", "converted"): _volume_values,
    ("NIfTI", "intent, `aux_file`, `glmax`", "dropped"): _volume_meaning,
    ("videos", "matrix, range, primaries, transfer of colours", "kept"): _of_video(
        "colorspace", "color_primaries", "color_trc", "range",
        colorspace=9, color_primaries=9, color_trc=16, color_range=2,
    ),
    ("videos", "rate, pixel aspect, title, sound with its language", "kept"): _of_video(
        "rate", "shape", "title", "sound", "language", title="a video", sample_aspect_ratio=Fraction(4, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fact", "outcome"), TABLE)
def test_tag(kind: str, fact: str, outcome: str, tmp_path: Path) -> None:
    for before, after, converted in TABLE[kind, fact, outcome](tmp_path):
        assert before is not None
        assert after == {"kept": before, "converted": converted, "dropped": None}[outcome], (before, after)
        assert (after == before) == (outcome == "kept")


def test_reports_interlaced_videos(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="interlaced"):
        _video(tmp_path, name="a.mkv", options={"x264-params": "interlaced=1"})


def test_reports_the_extra_that_heic_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.files.find_spec", lambda _: None)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.HEIC").write_bytes(b"\0\0\0\x1cftypheic" + bytes(99))
    ((_, reason),) = translate(_model(), tmp_path / "in", tmp_path / "out").failed
    assert "needs pillow_heif" in reason
