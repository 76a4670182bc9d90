"""A run goes on where it was, also on a machine that cannot compute as the first one did."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from velogan.cli import main
from velogan.config import Config
from velogan.observe.progress import Display
from velogan.store.checkpoint import find_checkpoint, load_weights
from velogan.training import forward as faster
from velogan.training import run
from velogan.translate.model import load_translator

Train = Callable[..., str]


@pytest.fixture
def train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Train:
    """Trains to so many images in one folder; returns what was said."""

    def run(images: int, *more: str, code: int = 0) -> str:
        flags = f"""train cyclegan --data apples2oranges --images {images} --image-size 32 --out {tmp_path / "run"}
            --train.samples 0 --train.logger none --data.render-count 4 --data.render-test 2
            --discriminator.channels 4 --generator.channels 4 --generator.blocks 1 --engine.threads 1"""
        capsys.readouterr()
        assert main([*flags.split(), *more]) == code
        return capsys.readouterr().err

    return run


def _engines(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "run.json").read_text())["engines"]


def _pretend(run: Path, **engine: str) -> None:
    """Makes the record say that another machine chose other things."""
    record = json.loads((run / "run.json").read_text())
    record["engines"][-1]["engine"] |= engine
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that shall be missing")
def test_a_run_of_a_gpu_continues_without_one(train: Train, tmp_path: Path):
    train(2)
    _pretend(tmp_path / "run", device="cuda", mode="graph", kernels="plain")
    printed = train(4)
    assert "the engine settings change at 2 images: engine.device=cuda is not available here" in printed
    first, second = _engines(tmp_path / "run")
    assert (first["from_images"], second["from_images"]) == (0, 2)
    assert (second["engine"]["device"], second["engine"]["mode"]) == ("cpu", "eager")
    assert second["reason"] == "engine.device=cuda is not available here"
    assert "engine settings change" not in train(6), "from then on it computes as it did"
    assert len(_engines(tmp_path / "run")) == 2


def test_a_run_with_winograd_continues_on_a_processor_without_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train(2, "--engine.precision", "bf16", "--engine.kernels", "native")
    _pretend(tmp_path / "run", kernels="winograd")
    monkeypatch.setattr(faster, "load_bf16_gemm", lambda cache: None)
    assert "at 2 images: this CPU cannot run engine.kernels=winograd" in train(4)
    assert _engines(tmp_path / "run")[-1]["engine"]["kernels"] in ("native", "plain")


def test_a_shorter_command_than_before_says_so_and_changes_nothing(train: Train, tmp_path: Path):
    printed = train(2)
    assert len([line for line in printed.splitlines() if line.startswith(("engine:", "precision:", "kernels:"))]) <= 3
    train(4)
    config, record = ((tmp_path / "run" / name).read_text() for name in ("config.yaml", "run.json"))
    assert "--images 4" in json.loads(record)["command"]
    assert "has already seen 4 images, more than 2 images: nothing to train" in train(2)
    assert [(tmp_path / "run" / name).read_text() for name in ("config.yaml", "run.json")] == [config, record]


def test_a_longer_run_reports_that_the_learning_rate_rises(train: Train):
    assert "learning rate of" not in train(6)
    printed = train(12)
    assert (
        "learning rate of G_B: 6.7e-05 at the checkpoint, 0.0002 now, because the schedule covers 12 images" in printed
    )
    assert "--schedule.kind constant --optimizer.lr 6.7e-05" in printed
    assert "learning rate of" not in train(12)


def test_a_run_whose_record_is_lost_decides_anew(train: Train, tmp_path: Path):
    train(2)
    (tmp_path / "run" / "run.json").write_text("{")
    train(4)
    (chosen,) = _engines(tmp_path / "run")
    assert chosen["from_images"] == 2


def test_the_networks_of_the_directions_may_differ(train: Train, tmp_path: Path):
    flags = ["--generator-b", "channels=6", "blocks=2", "--discriminator-b", "network=pixel"]
    train(2, *flags)
    run = tmp_path / "run"
    shapes = {direction: load_translator(run, direction=direction).header["config"] for direction in ("a2b", "b2a")}
    assert [(shape["channels"], shape["blocks"]) for shape in shapes.values()] == [(4, 1), (6, 2)]
    kinds = [load_weights(find_checkpoint(run) / f"D_{name}.safetensors")[0]["config"]["network"] for name in "AB"]
    assert kinds == ["basic", "pixel"]
    assert load_translator(run, direction="b2a")(torch.zeros(1, 3, 32, 32)).shape == (1, 3, 32, 32)
    assert "generator_b is {'blocks': 2} here" in train(4, "--generator-b", "blocks=2", *flags[3:], code=2)
    assert "generator_b: blocks=-1: input should be" in train(4, "--generator-b", "blocks=-1", code=2)


def test_a_run_whose_minutes_are_over_at_its_start_makes_a_step_and_ends(
    tiny_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tiny_config(data={"render_count": 4, "render_test": 2}, train={"length": "1000 minutes", "samples": 0})
    printed: list[str] = []
    with Display(quiet=True) as display:
        monkeypatch.setattr(display, "print_line", printed.append)
        options: Any = {"display": display, "origin": {"preset": "", "command": ""}}
        first = run.train(config, tmp_path / "run", **options, started_at=time.monotonic() - 60_000)
        again = run.train(config, tmp_path / "run", **options)
    assert (first.images_seen, first.finished) == (1, True)
    assert (again.images_seen, again.finished) == (1, True)
    assert "ends in 0 s, the last checkpoint and page included" in printed
    assert json.loads((first.checkpoint / "clock.json").read_text())["seconds"] >= 60_000
    assert (tmp_path / "run" / "report.html").is_file()


def test_curves_without_a_checkpoint_are_kept(train: Train, tmp_path: Path):
    train(3)
    curves = (tmp_path / "run/stats.jsonl").read_text()
    shutil.rmtree(tmp_path / "run/checkpoints")
    printed = train(2)
    assert "has a log but no checkpoint: starting from scratch; the log is saved as stats.before-1.jsonl" in printed
    assert (tmp_path / "run/stats.before-1.jsonl").read_text() == curves


def test_checkpoints_without_their_configuration_are_refused(train: Train, tmp_path: Path):
    train(2)
    (tmp_path / "run/config.yaml").unlink()
    printed = train(4, "--seed", "5", code=2)
    assert "holds checkpoints but no config.yaml with their settings: restore it" in printed
    assert not (tmp_path / "run/config.yaml").exists()
