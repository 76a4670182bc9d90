from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.simulate.load import load_of
from velogan.cli import main
from velogan.config import Config
from velogan.data.sets.pair import open_data
from velogan.measure.profile import _Training, profile
from velogan.observe.progress import Display
from velogan.training.build import build_roles
from velogan.training.choices import decide
from velogan.training.run import trainer_of

ROLES = {"G_A", "G_B", "D_A", "D_B"}


def _tiny(**engine: Any) -> Config:
    return Config().change(
        data={"crop_size": 32, "render_count": 4, "render_test": 2},
        generator={"channels": 4, "blocks": 1},
        discriminator={"channels": 4},
        engine={"threads": 1, "precision": "fp32", **engine},
    )


def _profile(config: Config, out: Path, steps: int = 2) -> dict[str, Any]:
    with Display() as display:
        return profile(config, steps=steps, out=out, display=display)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _profile(_tiny(), tmp_path_factory.mktemp("profile"))


def _has_every_network_both_ways(found: dict[str, Any]) -> None:
    places = {(row["phase"], row["network"], row["way"]) for row in found["owners"]}
    for role in ROLES:
        assert {("generator", role, "forward"), ("generator", role, "backward")} <= places
    for role in ("D_A", "D_B"):
        assert {("discriminator", role, "forward"), ("discriminator", role, "backward")} <= places
    assert not {place for place in places if place[0] == "discriminator" and place[1].startswith("G_")}
    assert {("generator", "optimizer", "update"), ("discriminator", "optimizer", "update")} <= places
    groups = {group for row in found["owners"] if row["network"] == "G_A" for group in row["by_group"]}
    assert {"convolution", "norm, activation, padding"} <= groups


def test_every_network_is_found_both_ways(found: dict[str, Any]):
    _has_every_network_both_ways(found)


def test_every_network_is_found_in_the_reference(tmp_path: Path):
    _has_every_network_both_ways(_profile(_tiny(mode="reference"), tmp_path, steps=1))


def test_the_answers_add_up(found: dict[str, Any]):
    temporal, idle = found["temporal"], found["idle"]
    assert temporal["of"]["steps"] == 2
    whole = sum(temporal[name]["microseconds"] for name in ("compute", "non_compute", "idle"))
    assert whole == pytest.approx(temporal["of"]["microseconds"], rel=1e-3)
    waits = idle["host_wait"]["microseconds"] + idle["other"]["microseconds"]
    assert waits == pytest.approx(temporal["idle"]["microseconds"], rel=1e-3)
    busy = temporal["compute"]["microseconds"] + temporal["non_compute"]["microseconds"]
    assert sum(row["microseconds"] for row in found["owners"]) == pytest.approx(busy, rel=1e-3)
    assert found["launches"]["delayed"] is None


def test_the_memory_is_that_of_the_networks(found: dict[str, Any]):
    largest = {(one["category"], one["network"]): max(one["bytes"]) for one in found["memory"]["series"]}
    for role, one in build_roles(_tiny().method, _tiny().spec, seed=_tiny().train.seed).items():
        weights = sum(parameter.nbytes for parameter in one.net.parameters())
        assert largest["weights", role] == weights
        assert largest["moments", role] == pytest.approx(2 * weights, rel=0.05)  # a bias before a norm may have none
        assert largest["gradients", role] == pytest.approx(weights, rel=0.05)
        assert largest["activations", role] > 0
    assert largest["pool of fakes", "rest"] >= 2 * 50 * 3 * 32 * 32 * 4


def test_the_trace_has_the_names_of_phases_and_networks(found: dict[str, Any]):
    with gzip.open(found["trace"], "rt") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"}
    assert names >= ROLES | {"generator", "discriminator", "step", "loader"}
    written = Path(found["page"]).with_name("profile.json").read_text()
    assert json.loads(written) == json.loads(json.dumps(found))


def test_the_command_prints_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny = "--image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2 --engine.threads 1"
    out = tmp_path / "profile"
    argv = ["profile", *tiny.split(), "--engine.precision", "fp32", "--steps", "1", "--out", str(out), "--json"]
    assert main(argv) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"temporal", "idle", "kernels", "launches", "page", "trace"} <= set(printed)
    for question in ("temporal", "idle", "kernels", "launches"):
        figures = [one for one in printed[question].values() if isinstance(one, dict) and "count" in one]
        assert any({"microseconds", "share_of_count", "share_of_time"} <= set(one) for one in figures)
    assert Path(printed["page"]).is_file()
    assert Path(printed["trace"]).is_file()


def test_the_bounds_of_a_step_are_of_its_own_convolutions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("velogan.measure.profile.matmul_tflops", lambda device: 0.1)
    config = _tiny()
    config = config.model_copy(update={"engine": decide(config)[0]})
    with Display(quiet=True) as display:
        trainer = trainer_of(config, open_data(config.data, task=display.task, say=display.say))
    found = _Training(trainer, config, torch.device("cpu")).roofline()
    operations = load_of(config).flops
    assert found["arithmetic_ms"] == pytest.approx(operations / 0.1 / 1e9, rel=1e-6)
    assert found["ms"] > 0


def test_what_cannot_be_profiled_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["profile", "--steps", "0", "--out", str(tmp_path)]) == 2
    assert "--steps 0: it takes at least one" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["profile", "--out", str(tmp_path / "file")]) == 2
    assert "file (Not a directory): name another folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine\.device=meta: .* set engine\.device=cpu"):
        _profile(_tiny(device="meta"), tmp_path)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_kernels_on_a_gpu_find_their_networks(mode: str, tmp_path: Path):
    found = _profile(_tiny(mode=mode, device="cuda"), tmp_path, steps=4)
    assert found["device"] == "cuda"
    assert {row["network"] for row in found["owners"]} >= ROLES
    assert found["launches"]["delayed"] is not None
    assert 0 < found["roofline"]["arithmetic_ms"] < found["roofline"]["ms"]
    assert found["memory"]["peak"]["bytes"] <= torch.cuda.max_memory_allocated()
    of = found["launches"]["of"]
    if mode == "graph":  # no step is recorded during the profile
        assert of["launches"]["count"] < of["kernels"]["count"] / 10
