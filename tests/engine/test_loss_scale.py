"""Training in float16: a scaled loss, updates that are left out where gradients overflow, and a scale that recovers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.engine.capture import CapturedStep
from velogan.engine.loss_scale import LossScale
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import make_capturable
from velogan.engine.step import Step
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.types import Batch, Nets

SIDE = 32
HALF: dict[str, Any] = {"precision": "fp16", "threads": 1}


def _made(config: Config, *, later: bool = False, accumulate: int = 1) -> tuple[Step, Any, dict[str, nn.Module]]:
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    made, objective, nets = build_step(config, shape=(SIDE, SIDE))
    assert isinstance(made, Step)
    step = Step(
        made.phases,
        nets=nets,
        optimizers=made.optimizers,
        options=replace(made.options, channels_last=True, defer_nonfinite_check=later, accumulate=accumulate),
    )
    return step, objective, nets


def _rows(step: Any, objective: Any, *, steps: int) -> list[dict[str, float]]:
    random, rows = torch.Generator().manual_seed(1), []
    for number in range(steps):
        batch = {side: torch.rand(2, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
        batch["uniform"] = torch.rand(objective.num_uniforms["train"], 2, generator=random)
        rows.append({name: float(value) for name, value in step({"train": batch}, number=number).items()})
    return rows


def _weights(nets: dict[str, nn.Module]) -> list[Tensor]:
    return [value.detach().clone() for net in nets.values() for value in net.state_dict().values()]


@pytest.mark.parametrize("kind", ["cyclegan", "onepair"])
def test_float16_trains_like_float32(kind: str, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LossScale, "START", 2.0**8)  # at which nothing overflows here
    rows, weights = [], []
    for precision in ("fp32", "fp16"):
        config = tiny_config(
            method={"kind": kind, "pool_size": 2},
            optimizer={"kind": "sgd", "lr": 0.01, "clip_norm": 0.5},
            engine={**HALF, "precision": precision},
        )
        step, objective, nets = _made(config, accumulate=2 if precision == "fp16" else 1)
        rows.append(_rows(step, objective, steps=4))
        weights.append(_weights(nets))
        assert (step.scale is None) == (precision == "fp32")
    for exact, half in zip(*rows):
        assert half == pytest.approx(exact, rel=0.02, abs=0.01)
    assert all(value.dtype == torch.float32 for value in weights[1])
    torch.testing.assert_close(weights[1], weights[0], rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("later", [False, True])
def test_an_overflow_skips_the_update_and_halves_the_scale(
    later: bool, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LossScale, "START", 2.0**60)
    step, objective, nets = _made(tiny_config(engine=HALF), later=later)
    assert step.scale is not None
    before = _weights(nets)
    _rows(step, objective, steps=3)
    assert all(torch.equal(one, other) for one, other in zip(_weights(nets), before))
    assert float(step.scale.factor) == 2.0**32 / 4  # the first step cuts it to the most it may be
    step.scale.factor.fill_(2.0**18)
    _rows(step, objective, steps=8)
    step.check()
    assert not any(torch.equal(one, other) for one, other in zip(_weights(nets), before) if one.ndim == 4)


def test_what_scaling_cannot_mend_is_a_break(tiny_config: Callable[..., Config]):
    step, objective, _ = _made(tiny_config(engine=HALF))
    assert step.scale is not None
    step.scale.factor.fill_(1.0)

    def broken(value: Tensor) -> Callable[[Nets, Batch, PhaseCache], LossOutput]:
        def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            weight = next(nets["G_A"].parameters()).sum()
            total = weight * value + ((weight - weight.detach()).sqrt() if value.isfinite() else 0)
            return LossOutput(loss=total, logged={"part": total})

        return loss

    for value, found in ((torch.tensor(1.0), ["gradients"]), (torch.tensor(float("inf")), ["part"])):
        step.phases = [Phase(name="generator", trains=("G_A", "G_B"), loss=broken(value))]
        with pytest.raises(NonFiniteError) as caught:
            _rows(step, objective, steps=1)
        assert caught.value.names[:1] == found
        step.scale.factor.fill_(2.0**16)  # a loss that is not finite is a break at any scale


def test_the_scale_grows_after_steps_without_an_overflow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LossScale, "PATIENCE", 3)
    scale, seen = LossScale(torch.device("cpu")), []
    fine, over = torch.tensor([True, True]), torch.tensor([True, False])
    for phases in ([fine, fine], [fine], [over, fine], [fine], [fine], [fine], [fine]):
        flags = [scale.check_overflow(phase) for phase in phases]
        assert all(flag.all() for flag in flags)
        scale.adapt()
        seen.append(float(scale.factor) / scale.START)
    assert seen == [1, 1, 0.5, 0.5, 0.5, 1, 1]
    again = LossScale(torch.device("cpu"))
    again.load_state_dict(scale.state_dict())
    assert again.state_dict() == scale.state_dict() == [scale.START, 1]


def test_a_captured_step_scales_as_the_plain_one(
    tiny_config: Callable[..., Config], recorder: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LossScale, "START", 2.0**22)
    monkeypatch.setattr(LossScale, "PATIENCE", 3)
    seen = []
    for captured in (False, True):
        step, objective, nets = _made(tiny_config(engine=HALF), later=True)
        assert step.scale is not None
        make_capturable(step.optimizers)
        made = CapturedStep(step, state=objective.state, recorder=recorder) if captured else step
        rows = _rows(made, objective, steps=9)
        seen.append((rows, step.scale.state_dict(), [value.tolist() for value in _weights(nets)]))
    assert seen[0] == seen[1]
    assert seen[0][1][0] < 2.0**22  # some steps did overflow


@pytest.mark.gpu
def test_float16_is_captured_on_a_gpu(tiny_config: Callable[..., Config]):
    rows = []
    for mode in ("eager", "graph"):
        config = tiny_config(engine={**HALF, "device": "cuda", "mode": mode, "compile": "off"})
        config = config.model_copy(update={"engine": resolve_engine(config)[0]})
        assert (config.engine.precision, config.engine.mode) == ("fp16", mode)
        step, objective, _ = build_step(config, shape=(SIDE, SIDE))
        assert step.scale is not None
        step.scale.factor.fill_(2.0**22)
        random, found = torch.Generator().manual_seed(1), []
        for number in range(12):
            batch = {side: (torch.rand(2, 3, SIDE, SIDE, generator=random) * 2 - 1).cuda() for side in "AB"}
            batch["uniform"] = torch.rand(objective.num_uniforms["train"], 2, generator=random).cuda()
            found.append({name: float(value) for name, value in step({"train": batch}, number=number).items()})
        step.check()
        rows.append((found, step.scale.state_dict()))
    for plain, captured in zip(rows[0][0], rows[1][0]):
        assert captured == pytest.approx(plain, rel=0.05, abs=0.02)
