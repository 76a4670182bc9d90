"""Non-finite values of every origin: in the data, in a layer, in the loss, in a gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.step import Step, StepOptions
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.types import Batch, Nets

ALL_NAMES = ["square", "level", "total", "gradients"]


class _Faulty(nn.Module):
    """Returns its input, or makes it or its gradient non-finite, or large, as `fault` says."""

    fault = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "value":
            return x / 0
        if self.fault == "gradient":  # the square root of 0 is 0, its slope is infinite
            return x + (x - x.detach()).sqrt().sum() * 0
        return x * 1e30 if self.fault == "large" else x


def _nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        role: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), _Faulty(), nn.Conv2d(2, 1, 1)) for role in ("G", "D")
    }


def _phase(name: str, role: str, *, factor: float = 1.0) -> Phase:
    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        output = nets[role](cache.get("fake", batch["A"]))
        terms = {"square": output.float().square().mean(), "level": factor * output.float().mean()}
        return LossOutput(loss=terms["square"] + terms["level"], terms=terms, cache={"fake": output})

    return Phase(name=name, trains=(role,), loss=loss)


def _step(nets: dict[str, nn.Module], *, factor: float = 1.0, **options: Any) -> Step:
    phases = [_phase("generator", "G", factor=factor), _phase("discriminator", "D")]
    optimizers: dict[str, torch.optim.Optimizer] = {
        phase.name: torch.optim.Adam(nets[phase.trains[0]].parameters(), fused=True) for phase in phases
    }
    return Step(phases, nets=nets, optimizers=optimizers, options=StepOptions(**options))


def _batches() -> dict[str, Batch]:
    return {"train": {"A": torch.linspace(-1, 1, 32).view(2, 1, 4, 4)}}


def _weights(nets: dict[str, nn.Module], *roles: str) -> list[Tensor]:
    return [value.detach().clone() for role in roles or nets for value in nets[role].parameters()]


def _are_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("role", "fault", "names"),
    [
        ("G", "value", ALL_NAMES),
        ("D", "value", ALL_NAMES),
        ("G", "large", ["square", "total", "gradients"]),
        ("D", "gradient", ["gradients"]),
    ],
)
def test_names_phase_step_and_terms_before_weights_change(role: str, fault: str, names: list[str]):
    step = _step(nets := _nets())
    before = _weights(nets, role)
    step(_batches(), number=4)
    finite = _weights(nets, role)
    assert not _are_equal(before, finite)
    nets[role][2].fault = fault  # pyright: ignore[reportIndexIssue]
    with pytest.raises(NonFiniteError) as caught:
        step(_batches(), number=5)
    assert (caught.value.phase, caught.value.number) == ({"G": "generator", "D": "discriminator"}[role], 5)
    assert caught.value.names == names
    assert _are_equal(_weights(nets, role), finite)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_non_finite_microbatch_stops_the_update(deferred: bool):
    nets, batches = _nets(), _batches()
    step = _step(nets, accumulate=2, defer_nonfinite_check=deferred)
    batches["train"]["A"][1, 0, 2, 2] = float("nan")
    before = _weights(nets, "G")
    with pytest.raises(NonFiniteError):
        _ = step(batches, number=0), step.check()
    assert _are_equal(_weights(nets, "G"), before)


def test_reports_gradients_that_adam_cannot_square():
    with pytest.raises(NonFiniteError) as caught:
        _step(_nets(), factor=1e25)(_batches(), number=0)
    assert caught.value.names == ["gradients"]


def test_deferred_check_freezes_weights_and_moments_from_the_first_non_finite_phase_on():
    def moments() -> list[Tensor]:
        states = [state for optimizer in step.optimizers.values() for state in optimizer.state.values()]
        return [value.clone() for state in states for value in state.values()]

    step = _step(nets := _nets(), defer_nonfinite_check=True)
    step(_batches(), number=0)
    step.check()
    nets["D"][2].fault = "value"  # pyright: ignore[reportIndexIssue]
    step(_batches(), number=1)  # G's phase comes first: it is updated once more
    frozen = _weights(nets), moments()
    nets["D"][2].fault, nets["G"][2].fault = "", "value"  # pyright: ignore[reportIndexIssue]
    for number in (2, 3):
        step(_batches(), number=number)
    assert _are_equal(_weights(nets), frozen[0])
    assert _are_equal(moments(), frozen[1])
    with pytest.raises(NonFiniteError) as caught:
        step.check()
    assert (caught.value.phase, caught.value.number, caught.value.names) == ("discriminator", 1, ALL_NAMES)
