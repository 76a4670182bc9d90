"""Training from DICOM and NIfTI: slices, values, patients and phases; and translation of complete volumes."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

nibabel = pytest.importorskip("nibabel", reason="the extra medical is not installed")
pydicom = pytest.importorskip("pydicom", reason="the extra medical is not installed")

from pydicom.dataset import FileDataset, FileMetaDataset  # noqa: E402
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid  # noqa: E402

from velogan.config import Config  # noqa: E402
from velogan.data.config import DataConfig  # noqa: E402
from velogan.data.pictures.scans import Scan, read_scan  # noqa: E402
from velogan.data.sets import slices  # noqa: E402
from velogan.data.sets.cache import Domain, open_domain  # noqa: E402
from velogan.data.sets.pair import open_data  # noqa: E402
from velogan.data.sets.slices import OWN_RANGE, Slices  # noqa: E402
from velogan.data.sets.sources import find_sources  # noqa: E402
from velogan.observe.progress import Display  # noqa: E402
from velogan.training.run import train  # noqa: E402
from velogan.translate.files import translate  # noqa: E402
from velogan.translate.model import Translator, load_translator  # noqa: E402
from velogan.translate.options import TranslateOptions  # noqa: E402

SIDE = 16


def _series(folder: Path, patient: str, planes: np.ndarray, *, modality: str = "CT", backwards: bool = False) -> Path:
    """A DICOM series, a file a slice, whose names do not tell the order; stored value = (HU + 1024) / 2."""
    folder.mkdir(parents=True, exist_ok=True)
    series = generate_uid()
    for place, plane in enumerate(planes):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, ExplicitVRLittleEndian
        meta.MediaStorageSOPInstanceUID = generate_uid()
        scan = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
        scan.SOPClassUID, scan.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        scan.SeriesInstanceUID = series
        if patient:
            scan.PatientID, scan.StudyInstanceUID = patient, generate_uid()
        scan.Modality, scan.InstanceNumber = modality, len(planes) - place if backwards else place
        scan.ImageOrientationPatient, scan.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 2.5 * place]
        scan.RescaleSlope, scan.RescaleIntercept = 2, -1024
        scan.Rows, scan.Columns = plane.shape
        scan.SamplesPerPixel, scan.PhotometricInterpretation, scan.PixelRepresentation = 1, "MONOCHROME2", 0
        scan.BitsAllocated, scan.BitsStored, scan.HighBit = 16, 16, 15
        scan.PixelData = ((plane + 1024) / 2).astype("<u2").tobytes()
        name = f"{patient}-{place * 7 % 10}{place}.dcm"
        pydicom.dcmwrite(folder / name, scan, enforce_file_format=True, implicit_vr=False, little_endian=True)
    return folder


def _planes(count: int, seed: int = 0) -> np.ndarray:
    """Slices in HU, each brighter than the one before, of even numbers."""
    random = np.random.default_rng(seed)
    return np.stack([random.integers(0, 20, (SIDE, SIDE)) * 2 + 20.0 * place for place in range(count)])


def _volume(path: Path, planes: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    turned = np.stack([np.rot90(plane, -1) for plane in planes], axis=2).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(turned, np.eye(4)), path)
    return path


def _config(*path: Path, **more: Any) -> DataConfig:
    return DataConfig(
        path=tuple(map(str, path)), crop_size=SIDE, load_size=SIDE, validation=more.pop("validation", 0), **more
    )


def _domain(source: Slices, config: DataConfig) -> Domain:
    return open_domain(source, config, test=False, **config.read_options("A"))


def _slices(config: DataConfig) -> Slices:
    found = find_sources(config).a.train
    assert isinstance(found, Slices)
    return found


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return _series(tmp_path / "other", "b", _planes(3))


def test_ct_is_read_in_hu_within_the_window_and_sorted_by_position(tmp_path: Path, other: Path) -> None:
    planes = _planes(4)
    planes[:, 0, :2] = -400, 400
    config = _config(_series(tmp_path / "ct", "p", planes, backwards=True), other)
    domain = _domain(_slices(config), config)
    assert (domain.format.range, domain.format.own_scale, domain.format.dtype) == ((-160, 240), False, "float32")
    by_name = {name: domain.image(number)[..., 0] for number, name in enumerate(domain.names)}
    for place, plane in enumerate(planes):
        np.testing.assert_array_equal(by_name[f"p-{place * 7 % 10}{place}.dcm"], plane.clip(-160, 240))
    assert "4 slices of 1 volume, 1 patient; window CT-soft-tissue" in _slices(config).note


def test_windows_by_name_or_by_numbers(tmp_path: Path, other: Path) -> None:
    folder = _series(tmp_path / "ct", "p", _planes(2))
    assert _slices(_config(folder, other, window=("CT-lung", "CT-bone"))).value_range == (-1350, 150)
    assert _slices(_config(folder, other, window=("CT-lung",), range_a=(0, 50))).value_range == (0, 50)
    found = find_sources(_config(folder, other, window=("CT-lung", "CT-bone"))).b.train
    assert isinstance(found, Slices)
    assert found.value_range == (-500, 1300)
    with pytest.raises(ValueError, match="window"):
        _config(folder, other, window=("CT-heart",))


def test_other_scans_than_ct_have_a_scale_for_each_volume(tmp_path: Path, other: Path) -> None:
    _volume(tmp_path / "mr/a.nii.gz", _planes(4))
    _volume(tmp_path / "mr/b.nii", _planes(4) * 1000)
    config = _config(tmp_path / "mr", other)
    domain = _domain(_slices(config), config)
    assert domain.format.own_scale
    assert domain.format.range == OWN_RANGE
    one, same = (np.stack([domain.image(start + number) for number in range(4)]) for start in (0, 4))
    np.testing.assert_allclose(one, same, atol=1e-2)
    assert (one.min(), one.max()) == OWN_RANGE
    assert domain.names[5] == "b.nii#0001"


def test_rejects_modalities_without_a_common_range(tmp_path: Path, other: Path) -> None:
    _series(tmp_path / "all", "p", _planes(2))
    _series(tmp_path / "all", "q", _planes(2), modality="MR")
    with pytest.raises(ValueError, match=r"several kinds \(CT, MR\).*data\.window"):
        find_sources(_config(tmp_path / "all", other))
    assert _slices(_config(tmp_path / "all", other, window=("percentiles",))).index.own_scale


def test_skips_and_counts_slices_without_content(tmp_path: Path, other: Path) -> None:
    planes = _planes(5)
    planes[[0, 4]] = -1000
    config = _config(_series(tmp_path / "ct", "p", planes), other)
    domain = _domain(_slices(config), config)
    assert len(domain) == 3
    assert "2 of 5 slices are left out" in _slices(config).note
    _series(tmp_path / "air", "p", planes[[0, 4]])
    with pytest.raises(ValueError, match=r"air: no slice has content in the window .*data\.window"):
        find_sources(_config(tmp_path / "air", other))


def test_holds_out_complete_patients_the_same_in_both_domains(tmp_path: Path) -> None:
    for side, count in (("A", 4), ("B", 3)):
        for patient in range(9):
            _series(tmp_path / side / f"{patient}", f"patient {patient}", _planes(count, patient))
    sources = find_sources(_config(tmp_path / "A", tmp_path / "B", validation=8))
    held = []
    for side in (sources.a, sources.b):
        assert isinstance(side.validation, Slices)
        assert isinstance(side.train, Slices)
        held.append(set(side.validation.patients))
        assert len(side.validation.names) == {"A": 4, "B": 3}[side.letter]
        assert not held[-1] & set(side.train.patients)
        assert "left out" not in side.train.note  # held-out slices are not dark
        assert "of 8 volumes, 8 patients" in side.train.note
    assert held[0] == held[1]


def test_counts_an_unreadable_scan_once(tmp_path: Path) -> None:
    for side in "AB":
        for patient in range(9):
            _series(tmp_path / side / f"{patient}", f"patient {patient}", _planes(3, patient))
    (tmp_path / "A" / "broken.dcm").write_bytes(bytes(128) + b"DICM" + bytes(40))
    data = open_data(
        _config(tmp_path / "A", tmp_path / "B", validation=8), task=lambda _: lambda *_: None, print_line=lambda _: None
    )
    assert [len(domain.skipped) for domain in (data.a, data.held_out["a"], data.b)] == [1, 0, 0]
    for side in "AB":
        (tmp_path / side).rename(tmp_path / f"train{side}")
    shutil.copytree(tmp_path / "trainA", tmp_path / "testA")
    config = _config(tmp_path, validation=8)
    test = find_sources(config).a.test
    assert test is not None
    assert [name for name, _ in open_domain(test, config, test=True).skipped] == ["broken.dcm"]


def test_reports_a_damaged_file_and_reads_a_changed_one_again(tmp_path: Path, other: Path) -> None:
    folder = _series(tmp_path / "ct", "p", _planes(3))
    (folder / "broken.dcm").write_bytes(bytes(128) + b"DICM" + bytes(40))
    config = _config(folder, other)
    before = _domain(_slices(config), config)
    assert [name for name, _ in before.skipped] == ["broken.dcm"]
    assert len(before) == 3
    (folder / "broken.dcm").unlink()
    for file in folder.glob("*.dcm"):
        file.unlink()
    _series(folder, "p", _planes(3, seed=1))
    after = _domain(_slices(config), config)
    assert not after.skipped
    assert after.digest != before.digest


def test_the_cached_index_is_not_used_for_other_files_of_equal_names_sizes_and_times(tmp_path: Path) -> None:
    for folder, by in (("t1", 1), ("t2", 10)):
        os.utime(_volume(tmp_path / folder / "sub-01.nii", by * _planes(6)), (1e9, 1e9))
    config = _config(tmp_path / "t1", tmp_path / "t2")
    sources = find_sources(config)
    low, high = (side.train.index.volumes[0].high for side in (sources.a, sources.b) if isinstance(side.train, Slices))
    assert high == pytest.approx(10 * low)
    os.utime(_volume(tmp_path / "t1/sub-01.nii", 3 * _planes(6)), (1e9, 1e9))
    assert _slices(config).index.volumes[0].high == pytest.approx(3 * low)


def test_a_file_that_fails_once_is_read_the_next_time(
    tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(_series(tmp_path / "ct", "p", _planes(3)), other)

    def read(path: Path) -> Scan:
        if path.name == "p-00.dcm":
            raise OSError(errno.ESTALE, "Stale file handle")
        return read_scan(path)

    with monkeypatch.context() as patch:
        patch.setattr(slices, "read_scan", read)
        found = _slices(config)
    assert (len(found.names), found.skipped) == (2, (("p-00.dcm", "Stale file handle"),))
    assert len(_slices(config).names) == 3


def test_a_direction_rounded_to_zero_is_one_series(tmp_path: Path, other: Path) -> None:
    folder = _series(tmp_path / "ct", "p", _planes(4))
    for file in sorted(folder.iterdir())[::2]:
        scan = pydicom.dcmread(file)
        scan.ImageOrientationPatient = [1, 0, 0, 0, 1, -0.0000001]
        scan.save_as(file)
    assert len(_slices(_config(folder, other)).index.volumes) == 1


def _retag(folder: Path, part: slice, **tags: Any) -> None:
    for file in sorted(folder.iterdir(), key=lambda file: file.stem[-1])[part]:
        scan = pydicom.dcmread(file)
        for name, value in tags.items():
            setattr(scan, name, value)
        pydicom.filewriter.correct_ambiguous_vr(scan, True)
        scan.save_as(file)


@pytest.mark.parametrize("tag", ["AcquisitionNumber", "TemporalPositionIdentifier", "EchoNumbers", None])
def test_phases_of_one_series_become_separate_volumes(tmp_path: Path, other: Path, tag: str | None) -> None:
    folder, planes = tmp_path / "ct", _planes(6)
    _series(folder, "p", planes)
    for place in range(6):  # positions 0 0 1 1 2 2: phases lie between each other
        tags: dict[str, Any] = {"ImagePositionPatient": [0, 0, 2.5 * (place // 2)]}
        _retag(folder, slice(place, place + 1), **tags, **({tag: 1 + place % 2} if tag else {}))
    config = _config(folder, other, context_slices=1)
    domain = _domain(_slices(config), config)
    assert len(_slices(config).index.volumes) == 2
    assert (domain.format.channels, domain.format.neighbours) == (3, 1)
    for place in range(6):
        near = [place % 2 + 2 * min(max(place // 2 + step, 0), 2) for step in (-1, 0, 1)]
        number = domain.names.index(f"p-{place * 7 % 10}{place}.dcm")
        np.testing.assert_array_equal(domain.image(number), np.moveaxis(planes[near], 0, -1))


def test_phases_of_an_enhanced_file_become_separate_volumes(tmp_path: Path, other: Path) -> None:
    (file,) = _series(tmp_path / "ct", "p", _planes(1)).iterdir()
    scan = pydicom.dcmread(file)
    scan.NumberOfFrames, scan.PixelData = 4, ((_planes(4) + 1024) / 2).astype("<u2").tobytes()
    groups = [pydicom.Dataset() for _ in range(5)]
    for group, height in zip(groups, (0, 0, 2.5, 2.5)):
        group.PlanePositionSequence = [pydicom.Dataset()]
        group.PlanePositionSequence[0].ImagePositionPatient = [0, 0, height]
    groups[4].PlaneOrientationSequence = [pydicom.Dataset()]
    groups[4].PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    scan.PerFrameFunctionalGroupsSequence, scan.SharedFunctionalGroupsSequence = groups[:4], groups[4:]
    scan.save_as(file)
    volumes = _slices(_config(file.parent, other)).index.volumes
    assert [volume.slices for volume in volumes] == [((file.name, 0), (file.name, 2)), ((file.name, 1), (file.name, 3))]


def test_reports_missing_slices(tmp_path: Path, other: Path) -> None:
    folder = _series(tmp_path / "ct", "p", _planes(6))
    assert "missing" not in _slices(_config(folder, other)).note
    (folder / "p-12.dcm").unlink(missing_ok=True)
    next(folder.glob("*3.dcm")).unlink()
    assert "slices are missing between others in 1 volume, as of p-00.dcm" in _slices(_config(folder, other)).note


def test_padding_does_not_enter_the_range_of_a_volume(tmp_path: Path, other: Path) -> None:
    planes = np.stack([np.linspace(360, 720, SIDE * SIDE).reshape(SIDE, SIDE)] * 3)
    folder = _series(tmp_path / "mr", "p", planes, modality="MR")
    padded = ((planes[0] + 1024) / 2).astype("<u2")
    padded[:4] = 65535
    _retag(folder, slice(None), PixelPaddingValue=65535, PixelData=padded.tobytes())
    series = _slices(_config(folder, other)).index.volumes[0]
    assert (series.low, series.high) == pytest.approx((450, 720), abs=5)


def test_slices_without_a_patient_belong_to_their_volume(tmp_path: Path, other: Path) -> None:
    for volume in range(4):
        _series(tmp_path / "ct" / str(volume), "", _planes(3, seed=volume))
    assert sorted(Counter(_slices(_config(tmp_path / "ct", other)).patients).values()) == [3, 3, 3, 3]


def test_rejects_context_slices_without_volumes(tmp_path: Path, other: Path, make_folder: Callable[..., Path]) -> None:
    single = _series(tmp_path / "single", "p", _planes(1))
    with pytest.raises(ValueError, match=r"data\.context_slices=1.*single \(domain A\) holds none"):
        find_sources(_config(single, other, context_slices=1))
    with pytest.raises(ValueError, match=r"data\.context_slices=1.*\(domain B\) holds none"):
        find_sources(_config(other, make_folder("pictures", count=2), context_slices=1))
    with pytest.raises(
        ValueError, match=re.escape("context_slices=1 makes 3 channels of each slice, and channels_a=1")
    ):
        DataConfig(context_slices=1, channels_a=1)


class _Shift(nn.Module):
    """Each channel plus its number times 0.25: so the three parts of a slice differ."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.25 * torch.arange(x.shape[1]).view(1, -1, 1, 1)


def _translator(**form: Any) -> Translator:
    form = {"channels": 3, "dtype": "float32", "range": (-1000, 1000), "neighbours": 1} | form
    return Translator(_Shift(), multiple=4, device=torch.device("cpu"), header={"input": form, "output": form})


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_translated_slice_is_the_mean_of_its_predictions(tmp_path: Path, at_once: int) -> None:
    planes = _planes(4)
    folder = _series(tmp_path / "ct", "p", planes, backwards=True)
    summary = translate(_translator(), folder, tmp_path / "out", TranslateOptions(batch_pixels=at_once * SIDE * SIDE))
    assert (summary.translated, summary.failed) == (4, ())
    parts = [(0, 250), (0, 250, 500), (0, 250, 500), (250, 500)]
    for place, plane in enumerate(planes):
        name = f"p-{place * 7 % 10}{place}.dcm"
        scan = pydicom.dcmread(tmp_path / "out" / name)
        values = scan.pixel_array * float(scan.RescaleSlope) + float(scan.RescaleIntercept)
        wanted = plane + np.mean(parts[place])
        np.testing.assert_allclose(values, wanted, atol=0.1)
    assert translate(_translator(), folder, tmp_path / "out").skipped == 4


def test_translation_scales_a_volume_as_training_does(tmp_path: Path, other: Path) -> None:
    file = _volume(tmp_path / "mr/a.nii.gz", _planes(4) * 37)
    config = _config(tmp_path / "mr", other)
    trained = _domain(_slices(config), config)
    model = Translator(
        nn.Identity(),
        multiple=4,
        device=torch.device("cpu"),
        header={
            side: {"channels": 1, "dtype": "float32", "range": OWN_RANGE, "own_scale": True}
            for side in ("input", "output")
        },
    )
    translate(model, file, tmp_path / "out.nii.gz")
    written = nibabel.load(tmp_path / "out.nii.gz").get_fdata()
    for place in range(4):
        np.testing.assert_allclose(np.rot90(written[..., place]), trained.image(place)[..., 0], atol=1e-3)


def test_rejects_a_picture_instead_of_a_volume(tmp_path: Path, make_folder: Callable[..., Path]) -> None:
    summary = translate(_translator(), make_folder("pictures", count=1), tmp_path / "out")
    assert "pass DICOM or NIfTI files" in summary.failed[0][1]


def test_a_run_stores_its_window_and_writes_a_series(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    a, b = (_series(tmp_path / name, name, _planes(3)) for name in "ab")
    config = tiny_config(
        data={"path": (str(a), str(b)), "context_slices": 1, "crop_size": 32, "load_size": 32},
        train={"length": "2 images"},
    )
    with Display() as display:
        train(config, tmp_path / "run", display=display, origin={})
    model = load_translator(tmp_path / "run")
    assert (model.input.neighbours, model.output.neighbours, model.input.range) == (1, 1, (-160, 240))
    assert translate(model, a, tmp_path / "out").translated == 3
    assert len({str(pydicom.dcmread(file).SeriesInstanceUID) for file in (tmp_path / "out").glob("*.dcm")}) == 1
