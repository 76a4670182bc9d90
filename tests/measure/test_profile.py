from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from velogan.cli import main
from velogan.config import Config
from velogan.measure.profile import profile
from velogan.observe.progress import Display

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
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _profile(_tiny(), tmp_path_factory.mktemp("profile"))


def test_the_tables_add_up(result: dict[str, Any]):
    temporal, kernels = result["temporal"], result["kernels"]
    assert temporal["of"]["steps"] == 2
    total = sum(temporal[name]["microseconds"] for name in ("compute", "non_compute", "idle"))
    assert total == pytest.approx(temporal["of"]["microseconds"], rel=1e-3)
    busy = temporal["compute"]["microseconds"] + temporal["non_compute"]["microseconds"]
    groups = {name: group["microseconds"] for name, group in kernels["by_group"].items()}
    assert sum(groups.values()) == pytest.approx(busy, rel=1e-3)
    assert groups["convolution"] > 0 < groups["optimizer"]
    assert result["idle"] is None is result["launches"], "an operator runs when it is called"


def test_the_trace_has_the_names_of_phases_and_networks(result: dict[str, Any]):
    with gzip.open(result["trace"], "rt") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"}
    assert names >= ROLES | {"generator", "discriminator", "step"}
    written = Path(result["page"]).with_name("profile.json").read_text()
    assert json.loads(written) == json.loads(json.dumps(result))


def test_the_command_prints_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny = "--image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2 --engine.threads 1"
    argv = ["profile", *tiny.split(), "--engine.precision", "fp32", "--steps", "1", "--out", str(tmp_path), "--json"]
    assert main(argv) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"temporal", "idle", "kernels", "launches"} <= set(printed)
    assert {"microseconds", "share_of_count", "share_of_time"} <= set(printed["kernels"]["compute"])
    assert Path(printed["page"]).is_file()
    assert Path(printed["trace"]).is_file()


def test_rejects_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["profile", "--steps", "0", "--out", str(tmp_path)]) == 2
    assert "--steps 0: too few" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["profile", "--out", str(tmp_path / "file")]) == 2
    assert "file (Not a directory): choose another folder" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"engine\.device=meta: .* set engine\.device=cpu"):
        _profile(_tiny(device="meta"), tmp_path)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_profiles_kernels_on_a_gpu(mode: str, tmp_path: Path):
    result = _profile(_tiny(mode=mode, device="cuda"), tmp_path, steps=4)
    assert result["device"] == "cuda"
    assert result["kernels"]["by_group"]["convolution"]["count"] > 0
    assert result["idle"]["of"]["count"] > 0
    assert result["launches"]["delayed"]["count"] >= 0
    of = result["launches"]["of"]
    if mode == "graph":  # no step is recorded during the profile
        assert of["launches"]["count"] < of["kernels"]["count"] / 10
