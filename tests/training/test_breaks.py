"""Whole runs whose numbers break, and whole steps on flat pictures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from velogan.cli import main
from velogan.config import Config
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.step import Step
from velogan.observe.progress import Display
from velogan.store.checkpoint import list_checkpoints
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.run import train
from velogan.training.session import Result

FIXED: dict[str, Any] = {"threads": 1, "precision": "fp32"}  # what `auto` would measure anew in each run


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Breaks the pictures of some steps, by number."""
    call = Step.__call__

    def make(*numbers: int) -> None:
        def broken(self: Step, batches: Any, *, number: int = 0, **more: Any) -> dict[str, Tensor]:
            prepare = self.prepare

            def break_a(batch: Any) -> Any:
                batch = prepare["train"](batch)
                return batch | {"A": batch["A"] * float("nan")}

            self.prepare = {"train": break_a} if number in numbers else prepare
            try:
                return call(self, batches, number=number, **more)
            finally:
                self.prepare = prepare

        monkeypatch.setattr(Step, "__call__", broken)

    return make


def test_a_break_keeps_the_last_good_checkpoint_and_says_how_to_go_on(
    tiny_config: Callable[..., Config], tmp_path: Path, poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch
):
    config = tiny_config(train={"length": "6 images", "checkpoint_every": "2 images"}, engine=FIXED)
    unbroken = _train(config, tmp_path / "unbroken")
    run = tmp_path / "run"
    poison(3)
    with pytest.raises(NonFiniteError) as caught:
        _train(config, run)
    monkeypatch.undo()
    text = str(caught.value)
    assert "step 3 (3 images seen), phase generator: adversarial_a, " in text
    assert "resumes from checkpoint 000000002" in text
    assert [path.name for path in list_checkpoints(run)] == ["000000002"]
    assert _train(config, run).weights_sha256 == unbroken.weights_sha256  # the next start goes on from there


def test_the_command_line_says_it_in_words_and_ends_with_1(
    tmp_path: Path, poison: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    flags = "--data apples2oranges --images 2 --image-size 32 --generator.channels 2 --generator.blocks 1 "
    flags += "--discriminator.channels 2 --data.render-count 4 --data.render-test 2 --train.samples 0 "
    flags += "--train.logger none --engine.threads 1 --engine.precision fp32"
    argv = ["train", "cyclegan", *flags.split(), "--out", str(tmp_path / "run")]
    poison(1)
    assert main(argv) == 1
    messages = capsys.readouterr().err
    assert "velogan: not a finite number in step 1 (1 image seen), phase generator" in messages
    assert "Traceback" not in messages
    assert "no checkpoint was saved" in messages


ENGINES: dict[str, dict[str, Any]] = {
    "reference": {"mode": "reference"},
    "plain bf16": {"kernels": "plain", "precision": "bf16"},
    "native fp32": {"kernels": "native", "precision": "fp32"},
    "native bf16": {"kernels": "native", "precision": "bf16"},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_on_flat_pictures_stay_finite(engine: str, tiny_config: Callable[..., Config], request: Any):
    if "native" in engine:
        request.getfixturevalue("kernels")
    config = tiny_config(engine={"threads": 1, "device": "cpu", **ENGINES[engine]})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    step, objective, nets = build_step(config, shape=(32, 32))
    one_pixel = torch.ones(1, 3, 32, 32)
    one_pixel[0, :, 7, 9] = -1
    flat = [torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32), torch.full((1, 3, 32, 32), 0.5) + 1e-7, one_pixel]
    for number, (a, b) in enumerate(itertools.product(flat, flat[:2])):
        batch = {"A": a, "B": b, "uniform": torch.rand(objective.num_uniforms["train"], 1)}
        losses = step({"train": batch}, number=number)  # raises where a loss or a gradient is not finite
        assert all(value.isfinite() for value in losses.values())
    assert all(p.isfinite().all() for net in nets.values() for p in net.parameters())
