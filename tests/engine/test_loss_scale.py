"""Training in float16 with loss scaling: updates are skipped if gradients overflow, and the scale recovers."""

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
from velogan.types import Batch, Nets

from ..steps import build, random_batch

FP16: dict[str, Any] = {"precision": "fp16", "threads": 1}


def _build(
    config: Config, *, deferred: bool = False, accumulate: int = 1
) -> tuple[Step, LossScale | None, Any, dict[str, nn.Module]]:
    step, objective, nets = build(config)
    options = replace(step.options, channels_last=True, defer_nonfinite_check=deferred, accumulate=accumulate)
    step = Step(step.phases, nets=nets, optimizers=step.optimizers, options=options)
    return step, step.scale, objective, nets


def _losses(step: Any, objective: Any, *, steps: int) -> list[dict[str, float]]:
    random, rows = torch.Generator().manual_seed(1), []
    for number in range(steps):
        losses = step({"train": random_batch(random, objective, count=2)}, number=number)
        rows.append({name: float(value) for name, value in losses.items()})
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
            engine={**FP16, "precision": precision},
        )
        step, scale, objective, nets = _build(config, accumulate=2 if precision == "fp16" else 1)
        rows.append(_losses(step, objective, steps=4))
        weights.append(_weights(nets))
        assert (scale is None) == (precision == "fp32")
    for exact, half in zip(*rows):
        assert half == pytest.approx(exact, rel=0.02, abs=0.01)
    assert all(value.dtype == torch.float32 for value in weights[1])
    torch.testing.assert_close(weights[1], weights[0], rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("deferred", [False, True])
def test_an_overflow_skips_the_update_and_halves_the_scale(
    deferred: bool, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LossScale, "START", 2.0**60)
    step, scale, objective, nets = _build(tiny_config(engine=FP16), deferred=deferred)
    assert scale is not None
    before = _weights(nets)
    _losses(step, objective, steps=3)
    assert all(torch.equal(weight, other) for weight, other in zip(_weights(nets), before))
    assert float(scale.factor) == 2.0**32 / 4  # the first step cuts it to the most it may be
    scale.factor.fill_(2.0**18)
    _losses(step, objective, steps=8)
    step.check()
    assert not any(torch.equal(weight, other) for weight, other in zip(_weights(nets), before) if weight.ndim == 4)


def test_reports_non_finite_values_that_are_no_overflow(tiny_config: Callable[..., Config]):
    step, scale, objective, _ = _build(tiny_config(engine=FP16))
    assert scale is not None
    scale.factor.fill_(1.0)

    def broken(value: Tensor) -> Callable[[Nets, Batch, PhaseCache], LossOutput]:
        def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            weight = next(nets["G_A"].parameters()).sum()
            total = weight * value + ((weight - weight.detach()).sqrt() if value.isfinite() else 0)
            return LossOutput(loss=total, terms={"part": total})

        return loss

    for value, name in ((torch.tensor(1.0), "gradients"), (torch.tensor(float("inf")), "part")):
        step.phases = [Phase(name="generator", trains=("G_A", "G_B"), loss=broken(value))]
        with pytest.raises(NonFiniteError) as caught:
            _losses(step, objective, steps=1)
        assert caught.value.names[0] == name
        scale.factor.fill_(2.0**16)  # a non-finite loss is an error at any scale


def test_the_scale_grows_after_steps_without_an_overflow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LossScale, "PATIENCE", 3)
    scale, factors = LossScale(torch.device("cpu")), []
    fine, over = torch.tensor([True, True]), torch.tensor([True, False])
    for phases in ([fine, fine], [fine], [over, fine], [fine], [fine], [fine], [fine]):
        flags = [scale.check_overflow(phase) for phase in phases]
        assert all(flag.all() for flag in flags)
        scale.adapt()
        factors.append(float(scale.factor) / scale.START)
    assert factors == [1, 1, 0.5, 0.5, 0.5, 1, 1]
    again = LossScale(torch.device("cpu"))
    again.load_state_dict(scale.state_dict())
    assert again.state_dict() == scale.state_dict() == [scale.START, 1]


def test_a_captured_step_scales_as_the_plain_one(
    tiny_config: Callable[..., Config], recorder: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LossScale, "START", 2.0**22)
    monkeypatch.setattr(LossScale, "PATIENCE", 3)
    results = []
    for captured in (False, True):
        plain, scale, objective, nets = _build(tiny_config(engine=FP16), deferred=True)
        assert scale is not None
        make_capturable(plain.optimizers)
        step = CapturedStep(plain, state=objective.state, recorder=recorder) if captured else plain
        losses = _losses(step, objective, steps=9)
        results.append((losses, scale.state_dict(), [value.tolist() for value in _weights(nets)]))
    assert results[0] == results[1]
    assert results[0][1][0] < 2.0**22  # some steps did overflow
