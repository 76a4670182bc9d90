"""DICOM and NIfTI files through `translate`, made on the spot and read back by the libraries themselves."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import imagecodecs
import nibabel
import numpy as np
import pydicom
import pytest
from nibabel.nifti1 import Nifti1Extension
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels import convert_color_space
from pydicom.uid import (
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

from velogan.data.pictures.scans import read_scan
from velogan.translate.files import translate
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions

from ..models import Negative, in_memory

STUDY, SERIES = generate_uid(), generate_uid()


def _model(
    *,
    source: tuple[float, float] | None = (-1000, 1000),
    target: tuple[float, float] | None = (-500, 500),
    **extra: Any,
) -> Translator:
    """A to B is the negative: the lowest value of A becomes the highest of B."""
    return in_memory(
        Negative(),
        input={"channels": 1, "dtype": "float32" if source else "uint8", "range": source},
        output={"channels": 1, "dtype": "float32" if target else "uint8", "range": target} | extra,
    )


def _colour_model() -> Translator:
    return in_memory(Negative(), input={"channels": 3}, output={"channels": 3})


def _dicom(path: Path, stored: np.ndarray, *, syntax: Any = ExplicitVRLittleEndian, **values: Any) -> Path:
    """A slice of computed tomography, or of what `values` make of it."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, syntax
    meta.MediaStorageSOPInstanceUID = generate_uid()
    scan = FileDataset(str(path), {}, file_meta=meta, preamble=b"MZ" + bytes(126))
    scan.SOPClassUID, scan.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
    scan.StudyInstanceUID, scan.SeriesInstanceUID = STUDY, SERIES
    scan.PatientID, scan.PatientName, scan.Modality, scan.SeriesNumber = "7", "Doe^Jane", "CT", 3
    scan.SeriesDescription, scan.ImageType = "Thorax " + "x" * 50, ["ORIGINAL", "PRIMARY", "AXIAL"]
    scan.PixelSpacing, scan.SliceThickness, scan.ImagePositionPatient = [0.7, 0.8], 2.5, [1, 2, 3]
    scan.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    scan.WindowCenter, scan.WindowWidth, scan.RescaleSlope, scan.RescaleIntercept = 40, 400, 2, -1024
    scan.RescaleType, scan.SmallestImagePixelValue = "HU", int(stored.min()) if stored.min() > 0 else 0
    colour = stored.ndim == 3 and stored.shape[-1] == 3
    scan.Rows, scan.Columns = stored.shape[:2] if colour or stored.ndim == 2 else stored.shape[1:]
    scan.SamplesPerPixel, scan.PhotometricInterpretation = (3, "RGB") if colour else (1, "MONOCHROME2")
    scan.BitsAllocated = stored.dtype.itemsize * 8
    scan.BitsStored, scan.HighBit = scan.BitsAllocated, scan.BitsAllocated - 1
    scan.PixelRepresentation = int(stored.dtype.kind == "i")
    if colour:
        scan.PlanarConfiguration = 0
    big = syntax == ExplicitVRBigEndian
    scan.PixelData = stored.astype(stored.dtype.newbyteorder(">" if big else "<")).tobytes()
    for name, value in values.items():
        setattr(scan, name, value)
    scan["PixelData"].VR = "OW"
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(
        path, scan, implicit_vr=syntax.is_implicit_VR, little_endian=not big, enforce_file_format=True, overwrite=True
    )
    return path


def _values(path: Path) -> np.ndarray:
    scan = pydicom.dcmread(path)
    return scan.pixel_array * float(scan.RescaleSlope) + float(scan.RescaleIntercept)


def _stored(
    seed: int = 0, *, shape: tuple[int, ...] = (12, 10), dtype: Any = np.uint16, most: int = 1012
) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most + 1, shape).astype(dtype)


def test_a_series_becomes_a_new_one_marked_as_synthetic(tmp_path: Path) -> None:
    slices = [_stored(index) for index in range(3)]
    files = [
        _dicom(tmp_path / "in/deep" / name, stored, InstanceNumber=index, ImagePositionPatient=[0, 0, 2.5 * index])
        for index, (name, stored) in enumerate(zip(("a.IMA", "b.DCM", "IM3"), slices))
    ]
    (tmp_path / "in/notes").write_text("no scan")
    progress: list[tuple[int, int]] = []
    summary = translate(_model(), tmp_path / "in", tmp_path / "out", progress=lambda *now: progress.append(now))
    assert (summary.translated, summary.failed, progress[-1]) == (3, (), (3, 3))
    old = [pydicom.dcmread(file) for file in files]
    new = [pydicom.dcmread(tmp_path / "out/deep" / file.name) for file in files]
    for before, after, stored in zip(old, new, slices):
        kept = "PatientID PatientName StudyInstanceUID PixelSpacing SliceThickness ImagePositionPatient InstanceNumber"
        for name in [*kept.split(), "ImageOrientationPatient", "Modality", "SOPClassUID"]:
            assert after[name].value == before[name].value
        hounsfield = (stored * 2.0 - 1024).clip(-1000, 1000)
        result = after.pixel_array * float(after.RescaleSlope) + float(after.RescaleIntercept)
        np.testing.assert_allclose(result, -hounsfield / 2, atol=1000 / 65535)
        assert after.SOPInstanceUID != before.SOPInstanceUID
        assert after.file_meta.MediaStorageSOPInstanceUID == after.SOPInstanceUID
        assert after.SourceImageSequence[0].ReferencedSOPInstanceUID == before.SOPInstanceUID
        assert list(after.ImageType) == ["DERIVED", "SECONDARY", "AXIAL"]
        assert (after.SyntheticData, after.ContentQualification) == ("YES", "RESEARCH")
        assert after.SeriesDescription.startswith("SYNTHETIC velogan: Thorax")
        assert len(after.SeriesDescription) <= 64
        assert after.DerivationDescription.startswith("Synthetic: computed by velogan")
        assert (after.SeriesNumber, after.RescaleType) == (1003, "US")
        assert (float(after.WindowCenter), float(after.WindowWidth)) == (0, 1000)
        assert "SmallestImagePixelValue" not in after
        assert after.preamble == bytes(128)
    assert len({one.SeriesInstanceUID for one in new} | {SERIES}) == 2
    assert len({one.SOPInstanceUID for one in new}) == 3
    again = translate(_model(), tmp_path / "in", tmp_path / "out")
    assert (again.translated, again.skipped) == (0, 3)


def test_a_missing_slice_joins_the_same_series(tmp_path: Path) -> None:
    for name in ("a.dcm", "b.dcm"):
        _dicom(tmp_path / "in" / name, _stored())
    translate(_model(), tmp_path / "in", tmp_path / "out")
    first = pydicom.dcmread(tmp_path / "out/a.dcm").SeriesInstanceUID
    (tmp_path / "out/a.dcm").unlink()
    assert translate(_model(), tmp_path / "in", tmp_path / "out").translated == 1
    assert pydicom.dcmread(tmp_path / "out/a.dcm").SeriesInstanceUID == first


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian])
def test_keeps_encodings(tmp_path: Path, syntax: Any) -> None:
    stored = _stored(dtype=np.int16) - 300
    file = _dicom(tmp_path / "a.dcm", stored.astype(np.int16), syntax=syntax, RescaleSlope=1, RescaleIntercept=-5)
    translate(_model(), file, tmp_path / "out.dcm")
    assert pydicom.dcmread(tmp_path / "out.dcm").file_meta.TransferSyntaxUID == syntax
    np.testing.assert_allclose(_values(tmp_path / "out.dcm"), -(stored - 5.0) / 2, atol=1000 / 65535)


def test_reads_run_lengths(tmp_path: Path) -> None:
    stored = np.repeat(_stored(), 3, axis=1)
    scan = pydicom.dcmread(_dicom(tmp_path / "a.dcm", stored))
    scan.compress(RLELossless)
    scan.save_as(tmp_path / "packed.dcm", overwrite=True)
    np.testing.assert_array_equal(read_scan(tmp_path / "packed.dcm").picture(0).pixels[..., 0], stored * 2.0 - 1024)


@pytest.mark.parametrize(
    ("syntax", "encode", "loss"),
    [
        (JPEG2000Lossless, lambda one: imagecodecs.jpeg2k_encode(one, level=0, reversible=True, codecformat="j2k"), 0),
        (JPEGLSLossless, imagecodecs.jpegls_encode, 0),
        (JPEGLosslessSV1, lambda one: imagecodecs.ljpeg_encode(one, bitspersample=16), 0),
        (JPEGBaseline8Bit, lambda one: imagecodecs.jpeg8_encode(one, level=100), 2),
    ],
)
def test_reads_all_kinds_of_grey_jpegs(tmp_path: Path, syntax: Any, encode: Any, loss: int) -> None:
    stored = _stored(most=200, dtype=np.uint8 if loss else np.uint16)
    scan = pydicom.dcmread(_dicom(tmp_path / "a.dcm", stored))
    for name, frame in (("right.dcm", stored), ("false.dcm", np.pad(stored, 1))):
        scan.PixelData = encapsulate([bytes(encode(frame))])
        scan["PixelData"].is_undefined_length = True
        scan.file_meta.TransferSyntaxUID = syntax
        scan.save_as(tmp_path / name)
    picture = read_scan(tmp_path / "right.dcm").picture(0)
    np.testing.assert_allclose(picture.pixels[..., 0], stored * 2.0 - 1024, atol=2 * loss)
    assert translate(_model(), tmp_path / "right.dcm", tmp_path / "out").failed == ()
    assert pydicom.dcmread(tmp_path / "out/right.dcm").file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
    assert len(translate(_model(), tmp_path / "false.dcm", tmp_path / "out").failed) == 1


@pytest.mark.parametrize(("dtype", "bits"), [(np.uint16, 12), (np.int16, 12), (np.uint8, 8)])
def test_inverts_monochrome1_and_ignores_unused_bits(tmp_path: Path, dtype: Any, bits: int) -> None:
    values = _stored(most=2 ** (bits - 1) - 1, dtype=dtype)
    rubbish = 0 if bits == 8 else 0x5000
    file = _dicom(
        tmp_path / "a.dcm",
        values | np.array(rubbish, dtype),
        PhotometricInterpretation="MONOCHROME1",
        PixelIntensityRelationshipSign=-1,
        BitsStored=bits,
        HighBit=bits - 1,
        RescaleSlope=1,
        RescaleIntercept=0,
    )
    turned = (-1 if dtype is np.int16 else 2**bits - 1) - values.astype(np.int64)
    np.testing.assert_array_equal(read_scan(file).picture(0).pixels[..., 0], turned)
    translate(_model(source=(0, 4095)), file, tmp_path / "out.dcm")
    after = pydicom.dcmread(tmp_path / "out.dcm")
    assert (after.PhotometricInterpretation, after.PixelIntensityRelationshipSign) == ("MONOCHROME2", 1)
    low, high = values.argmin(), values.argmax()
    assert after.pixel_array.flat[low] < after.pixel_array.flat[high] or dtype is not np.uint8


def test_drops_tables_of_the_old_values(tmp_path: Path) -> None:
    names = ("RealWorldValueMappingSequence", "HistogramSequence", "PresentationLUTSequence")
    tables = {name: [Dataset()] for name in names}
    file = _dicom(tmp_path / "a.dcm", _stored(most=4095, dtype=np.uint16), RescaleSlope=1, RescaleIntercept=0, **tables)
    assert set(tables) <= set(pydicom.dcmread(file).dir())
    assert translate(_model(source=(0, 4095)), file, tmp_path / "out.dcm").failed == ()
    assert not set(tables) & set(pydicom.dcmread(tmp_path / "out.dcm").dir())


def test_translates_frames_and_colour(tmp_path: Path) -> None:
    frames = _stored(shape=(3, 12, 10), most=255, dtype=np.uint8)
    plain: dict[str, Any] = {"RescaleSlope": 1, "RescaleIntercept": 0}
    _dicom(tmp_path / "in/frames.dcm", frames, NumberOfFrames=3, **plain)
    colour = _stored(shape=(12, 10, 3), most=255, dtype=np.uint8)
    _dicom(tmp_path / "in/colour.dcm", colour)
    planes = np.moveaxis(colour, -1, 0).tobytes()
    _dicom(tmp_path / "in/planes.dcm", colour, PlanarConfiguration=1, PixelData=planes)
    assert translate(_colour_model(), tmp_path / "in", tmp_path / "out").failed == ()
    after = pydicom.dcmread(tmp_path / "out/frames.dcm")
    np.testing.assert_array_equal(after.pixel_array, 255 - frames)
    assert after.BitsAllocated == 8
    for name in ("colour", "planes"):
        after = pydicom.dcmread(tmp_path / f"out/{name}.dcm")
        np.testing.assert_array_equal(after.pixel_array, 255 - colour)


def test_palettes_become_colours(tmp_path: Path) -> None:
    places = _stored(most=2, dtype=np.uint8)
    colours = np.array([[255, 0, 7], [0, 128, 8], [9, 9, 255]], np.uint16)
    tables: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for channel, name in enumerate(("Red", "Green", "Blue")):
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [3, 0, 16]
        tables[f"{name}PaletteColorLookupTableData"] = (colours[:, channel] * 257).astype("<u2").tobytes()
    file = _dicom(tmp_path / "a.dcm", places, **tables)
    np.testing.assert_array_equal(read_scan(file).picture(0).pixels, colours[places])
    assert translate(_colour_model(), file, tmp_path / "out.dcm").failed == ()
    after = pydicom.dcmread(tmp_path / "out.dcm")
    np.testing.assert_array_equal(after.pixel_array, 255 - colours[places])
    assert (after.PhotometricInterpretation, "RedPaletteColorLookupTableData" in after) == ("RGB", False)


@pytest.mark.parametrize("groups_shared", [True, False])
def test_rescales_each_frame_of_an_enhanced_file_by_its_own_tags(tmp_path: Path, groups_shared: bool) -> None:
    frames, groups = _stored(shape=(2, 12, 10)), []
    for slope in (2, 3):
        group, rescaling = Dataset(), Dataset()
        rescaling.RescaleSlope, rescaling.RescaleIntercept, rescaling.RescaleType = slope, -900, "HU"
        group.PixelValueTransformationSequence = [rescaling]
        groups.append(group)
    more: dict[str, Any] = {"PerFrameFunctionalGroupsSequence": groups}
    more |= {"SharedFunctionalGroupsSequence": [Dataset()]} if groups_shared else {}
    file = _dicom(tmp_path / "a.dcm", frames, NumberOfFrames=2, **more)
    expected = frames * np.array([2.0, 3.0])[:, None, None] - 900
    scan = read_scan(file)
    for index in range(2):
        np.testing.assert_array_equal(scan.picture(index).pixels[..., 0], expected[index])
    assert translate(_model(source=(-1000, 3000)), file, tmp_path / "out.dcm").failed == ()
    after = pydicom.dcmread(tmp_path / "out.dcm")
    (shared,) = after.SharedFunctionalGroupsSequence
    rescaling = shared.PixelValueTransformationSequence[0]
    values = after.pixel_array * float(rescaling.RescaleSlope) + float(rescaling.RescaleIntercept)
    np.testing.assert_allclose(values, 500 - (expected + 1000) / 4, atol=0.02)
    assert not any("PixelValueTransformationSequence" in one for one in after.PerFrameFunctionalGroupsSequence)


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize(
    ("padding", "values"),
    [({"PixelPaddingValue": 65535}, [65535]), ({"PixelPaddingValue": 2, "PixelPaddingRangeLimit": 0}, [0, 1, 2])],
)
def test_padding_is_as_dark_as_the_darkest_pixel(tmp_path: Path, kind: str, padding: dict, values: list[int]) -> None:
    stored = np.linspace(360, 720, 120).astype(np.uint16).reshape(12, 10)
    stored[0, : len(values)] = values
    file = _dicom(tmp_path / "a.dcm", stored, PhotometricInterpretation=kind, RescaleIntercept=0, **padding)
    pixels = read_scan(file).picture(0).pixels
    assert (pixels[0, : len(values)] == pixels.min()).all()
    assert pixels.max() - pixels.min() == 2 * (720 - stored[0, len(values)])
    stored[:] = values[0]
    assert (read_scan(_dicom(file, stored, **padding)).picture(0).pixels == -1024).all()  # nothing but padding


@pytest.mark.parametrize("reversed_by", [{"PhotometricInterpretation": "MONOCHROME1"}, {"RescaleSlope": -2}])
def test_padding_is_dark_if_lower_stored_values_are_brighter(tmp_path: Path, reversed_by: dict) -> None:
    stored = np.linspace(360, 720, 120).astype(np.uint16).reshape(12, 10)
    stored[0, 0] = 0
    tags = {"PixelPaddingValue": 0, "PixelPaddingRangeLimit": None, "RescaleIntercept": 0, **reversed_by}
    pixels = read_scan(_dicom(tmp_path / "a.dcm", stored, **tags)).picture(0).pixels
    assert pixels[0, 0] == pixels.min() == pixels[-1, -1]
    darkest = read_scan(_dicom(tmp_path / "b.dcm", stored * 0, **tags)).picture(0).pixels  # nothing but padding
    assert darkest.max() <= pixels.min()


def test_an_empty_slope_is_1(tmp_path: Path) -> None:
    stored = _stored()
    file = _dicom(tmp_path / "a.dcm", stored, RescaleSlope=None, RescaleIntercept=None)
    np.testing.assert_array_equal(read_scan(file).picture(0).pixels[..., 0], stored)


@pytest.mark.parametrize("implicit", [True, False])
def test_reads_a_file_without_the_group_that_names_its_encoding(tmp_path: Path, implicit: bool) -> None:
    stored, file = _stored(), tmp_path / "a.dcm"
    whole = Dataset(pydicom.dcmread(_dicom(file, stored)))
    pydicom.dcmwrite(tmp_path / "plain", whole, implicit_vr=implicit, little_endian=True)
    file.write_bytes(bytes(128) + b"DICM" + (tmp_path / "plain").read_bytes())
    assert translate(_model(), file, tmp_path / "out.dcm").failed == ()
    np.testing.assert_allclose(_values(tmp_path / "out.dcm"), -(stored * 2.0 - 1024).clip(-1000) / 2, atol=0.02)


_SAME: Any = {"colorspace": "RGB", "outcolorspace": "RGB"}


def _reversible(array: np.ndarray) -> bytes:
    return bytes(imagecodecs.jpeg2k_encode(array, level=0, reversible=True, codecformat="j2k", mct=True))


@pytest.mark.parametrize(
    ("syntax", "kind", "encode", "loss"),
    [
        (JPEGBaseline8Bit, "YBR_FULL_422", lambda one: imagecodecs.jpeg8_encode(one, level=100, subsampling="422"), 5),
        (JPEGBaseline8Bit, "RGB", lambda one: imagecodecs.jpeg8_encode(one, level=100, **_SAME), 2),
        (JPEGLSLossless, "RGB", imagecodecs.jpegls_encode, 0),
        (JPEG2000Lossless, "YBR_RCT", _reversible, 0),
        (ExplicitVRLittleEndian, "YBR_FULL", lambda one: convert_color_space(one, "RGB", "YBR_FULL"), 2),
    ],
)
def test_reads_all_kinds_of_colour(tmp_path: Path, syntax: Any, kind: str, encode: Any, loss: int) -> None:
    down, across = np.mgrid[:16, :24]
    colour = np.stack([down * 10, across * 8, (down + across) * 5], axis=-1).astype(np.uint8)
    scan = pydicom.dcmread(_dicom(tmp_path / "a.dcm", colour, PhotometricInterpretation=kind))
    data = bytes(encode(colour))
    scan.PixelData = encapsulate([data]) if syntax.is_compressed else data
    scan["PixelData"].is_undefined_length = syntax.is_compressed
    scan.file_meta.TransferSyntaxUID = syntax
    scan.save_as(tmp_path / "in.dcm")
    picture = read_scan(tmp_path / "in.dcm").picture(0)
    np.testing.assert_allclose(picture.pixels.astype(int), colour, atol=loss)
    assert translate(_colour_model(), tmp_path / "in.dcm", tmp_path / "out").failed == ()
    after = pydicom.dcmread(tmp_path / "out/in.dcm")
    assert (after.PhotometricInterpretation, after.file_meta.TransferSyntaxUID) == ("RGB", ExplicitVRLittleEndian)
    np.testing.assert_array_equal(after.pixel_array, 255 - picture.pixels)


def _damaged(folder: Path) -> set[str]:
    """Files that must be refused, but good.dcm."""
    good = _dicom(folder / "good.dcm", _stored()).read_bytes()
    (folder / "cut.dcm").write_bytes(good[: len(good) - 50])
    (folder / "text.dcm").write_text("not a scan")
    (folder / "empty.dcm").write_bytes(b"")
    (folder / "head.dcm").write_bytes(good[:140])
    _dicom(folder / "huge.dcm", _stored(), Rows=65535, Columns=65535)
    _dicom(folder / "bits.dcm", _stored(), BitsStored=40)
    _dicom(folder / "nothing.dcm", _stored(), RescaleSlope=0)
    _dicom(folder / "palette.dcm", _stored(), PhotometricInterpretation="PALETTE COLOR")
    _dicom(folder / "frames.dcm", _stored(shape=(2, 12, 10)))  # without NumberOfFrames
    _dicom(folder / "deflated.dcm", _stored(), syntax=DeflatedExplicitVRLittleEndian)
    packed = pydicom.dcmread(folder / "good.dcm")
    packed.PixelData = encapsulate([b"\x02" + bytes(63) + b"\x81\x00" * 4])
    packed["PixelData"].is_undefined_length = True
    packed.file_meta.TransferSyntaxUID = RLELossless
    packed.save_as(folder / "runs.dcm", overwrite=True)
    (folder / "text.nii").write_text("not a scan")
    (folder / "text.nii.gz").write_bytes(gzip.compress(b"not a scan"))
    volume = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)).to_bytes()
    (folder / "cut.nii").write_bytes(volume[:-4])
    (folder / "cut.nii.gz").write_bytes(gzip.compress(volume)[:-20])
    large = bytearray(volume)
    large[42:48] = b"\xff\x7f" * 3
    (folder / "bomb.nii.gz").write_bytes(gzip.compress(bytes(large) + bytes(10**6)))
    far = bytearray(volume)
    far[108:112] = np.float32(1e30).tobytes()
    (folder / "far.nii").write_bytes(far)
    nibabel.Nifti1Image(np.full((4, 4, 4), np.nan, np.float32), np.eye(4)).to_filename(folder / "nan.nii")
    return {path.name for path in folder.iterdir()} - {"good.dcm"}


def test_reports_damaged_and_hostile_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    damaged = _damaged(tmp_path / "in")
    summary = translate(_model(), tmp_path / "in", tmp_path / "out")
    assert {name for name, _ in summary.failed} == damaged
    assert all(0 < len(reason) < 400 for _, reason in summary.failed)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.dcm"]


def test_reports_values_without_a_range(tmp_path: Path) -> None:
    plain: dict[str, Any] = {"RescaleSlope": 1, "RescaleIntercept": 0, "BitsStored": 12, "HighBit": 11}
    _dicom(tmp_path / "in/stored.dcm", _stored(), **plain)
    _dicom(tmp_path / "in/rescaled.dcm", _stored())
    summary = translate(_model(source=None), tmp_path / "in", tmp_path / "out")
    assert len(summary.failed) == 2
    assert all("data.range_a" in reason for _, reason in summary.failed)


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_keeps_8_bits_stored_in_16(tmp_path: Path, kind: str) -> None:
    values = _stored(most=255)
    plain: dict[str, Any] = {"RescaleSlope": 1, "RescaleIntercept": 0, "BitsStored": 8, "HighBit": 7}
    _dicom(tmp_path / "in/a.dcm", values, PhotometricInterpretation=kind, **plain)
    assert read_scan(tmp_path / "in/a.dcm").picture(0).pixels.dtype == np.uint8
    assert translate(_model(source=None, target=None), tmp_path / "in", tmp_path / "out").failed == ()
    np.testing.assert_array_equal(_values(tmp_path / "out/a.dcm"), values if kind == "MONOCHROME1" else 255 - values)
    after = pydicom.dcmread(tmp_path / "out/a.dcm")
    assert (after.BitsAllocated, after.BitsStored, after.HighBit) == (16, 8, 7)
    translate(_model(source=None, target=None), tmp_path / "out", tmp_path / "back")
    np.testing.assert_array_equal(_values(tmp_path / "back/a.dcm"), 255 - _values(tmp_path / "out/a.dcm"))


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_volumes_keep_affine_and_header(tmp_path: Path, name: str, kind: Any) -> None:
    values = np.random.default_rng(0).integers(-900, 900, (6, 8, 5)).astype(np.int16)
    affine = np.array([[0, 0, -2.0, 9], [-1.5, 0, 0, 8], [0, 3.0, 0, 7], [0, 0, 0, 1]])  # stored as (-y, z, -x)
    image = kind(values, affine)
    image.header["pixdim"][4] = 2.5
    image.header.set_xyzt_units("mm", "sec")
    image.header.extensions.append(Nifti1Extension(6, b"earlier"))
    image.to_filename(tmp_path / name)
    assert translate(_model(), tmp_path / name, tmp_path / "out").failed == ()
    after: Any = nibabel.load(tmp_path / "out" / name)
    assert type(after) is kind
    np.testing.assert_array_equal(after.affine, affine)
    np.testing.assert_allclose(after.get_fdata(), -values / 2, atol=1e-3)
    for field in ("qform_code", "sform_code", "xyzt_units", "pixdim"):
        np.testing.assert_array_equal(after.header[field], image.header[field])
    assert bytes(after.header["descrip"].item()).startswith(b"SYNTHETIC by velogan")
    texts = [
        bytes(one.get_content()) if isinstance(one.get_content(), bytes) else str(one.get_content()).encode()
        for one in after.header.extensions
    ]
    assert texts[0] == b"earlier"
    assert texts[1].startswith(b"Synthetic: computed by velogan")


def test_slices_are_axial_with_anterior_above(tmp_path: Path) -> None:
    """Axial, from foot to head, anterior above: `np.rot90` of the closest canonical volume."""
    values = np.random.default_rng(0).integers(0, 900, (6, 8, 5, 2)).astype(np.uint16)
    affine = np.array([[0, 0, -2.0, 9], [-1.5, 0, 0, 8], [0, 3.0, 0, 7], [0, 0, 0, 1]])
    nibabel.Nifti1Image(values, affine).to_filename(tmp_path / "v.nii")
    scan = read_scan(tmp_path / "v.nii")
    stored: Any = nibabel.load(tmp_path / "v.nii")
    canonical = np.asanyarray(nibabel.as_closest_canonical(stored).dataobj)
    assert len(scan) == 8 * 2
    for index in range(16):
        expected = np.rot90(canonical[:, :, index % 8, index // 8])
        np.testing.assert_array_equal(scan.picture(index).pixels[..., 0], expected)
    translate(_model(source=(0, 1000), target=(0, 1000), dtype="uint16"), tmp_path / "v.nii", tmp_path / "out.nii")
    written: Any = nibabel.load(tmp_path / "out.nii")
    np.testing.assert_array_equal(np.asanyarray(written.dataobj), 1000 - values)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        ("in/a.dcm", "in/a.dcm", {}, "input itself"),
        ("in", "in", {}, "input folder itself"),
        ("in/a.dcm", "out.nii", {}, "another kind"),
        ("in/a.dcm", "out", {"format": "png"}, "format=png"),
    ],
)
def test_rejects_wrong_arguments(
    source: str, target: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    _dicom(tmp_path / "in/a.dcm", _stored())
    with pytest.raises(ValueError, match=message):
        translate(_model(), tmp_path / source, tmp_path / target, TranslateOptions(**options))


def test_reports_the_extra_that_scans_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _dicom(tmp_path / "a.dcm", _stored())
    monkeypatch.setattr("velogan.files.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs pydicom: .*pip install -e '\.\[medical\]'"):
        translate(_model(), file, tmp_path / "out")
