"""Each kind of break is made to happen: in the data, in a layer, in the loss, in a gradient, in the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.step import Step, StepOptions
from velogan.networks.layers import norm_layer
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.types import Batch, Nets


class _Broken(nn.Module):
    """Passes images on, or breaks them or their gradient in the way asked for."""

    def __init__(self):
        super().__init__()
        self.way = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "value":
            return x / 0
        if self.way == "gradient":  # the square root of 0 is 0, its slope is infinite
            return x + (x - x.detach()).sqrt().sum() * 0
        return x * 1e30 if self.way == "large" else x


def _nets() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        role: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(_Broken(), nn.Conv2d(2, 1, 1)))
        for role in ("G", "D")
    }


def _phase(name: str, role: str) -> Phase:
    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        made = nets[role](cache.get("fake", batch["A"]))
        terms = {"square": made.float().square().mean(), "level": made.float().mean()}
        return LossOutput(loss=terms["square"] + terms["level"], logged=terms, cache={"fake": made})

    return Phase(name=name, trains=(role,), loss=loss)


def _step(nets: dict[str, nn.Module], **settings: Any) -> Step:
    phases = [_phase("generator", "G"), _phase("discriminator", "D")]
    optimizers: dict[str, torch.optim.Optimizer] = {
        phase.name: torch.optim.Adam(nets[phase.trains[0]].parameters(), fused=True) for phase in phases
    }
    return Step(phases, nets=nets, optimizers=optimizers, options=StepOptions(**settings))


def _batches() -> dict[str, Batch]:
    return {"train": {"A": torch.linspace(-1, 1, 32).view(2, 1, 4, 4)}}


def _weights(nets: dict[str, nn.Module]) -> list[Tensor]:
    return [value.clone() for net in nets.values() for value in net.state_dict().values()]


def _unchanged(nets: dict[str, nn.Module], before: list[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(_weights(nets), before))


def _break(nets: dict[str, nn.Module], role: str, way: str) -> None:
    nets[role][2][0].way = way  # pyright: ignore


def test_finite_steps_are_as_they_were():
    step, nets = _step(made := _nets()), made
    before = _weights(nets)
    step(_batches(), number=0)
    step.check()
    assert not _unchanged(nets, before)


@pytest.mark.parametrize(
    ("role", "way", "found"),
    [
        ("G", "value", ["square", "level", "total", "gradients"]),
        ("D", "value", ["square", "level", "total", "gradients"]),
        ("G", "large", ["square", "total", "gradients"]),
        ("D", "gradient", ["gradients"]),
    ],
)
def test_a_break_is_named_before_it_reaches_weights(role: str, way: str, found: list[str]):
    nets = _nets()
    step = _step(nets)
    _break(nets, role, way)
    before = [p.detach().clone() for p in nets[role].parameters()]
    with pytest.raises(NonFiniteError) as caught:
        step(_batches(), number=5)
    error = caught.value
    assert (error.phase, error.number) == ({"G": "generator", "D": "discriminator"}[role], 5)
    assert error.names == found
    assert all(torch.equal(p, q) for p, q in zip(nets[role].parameters(), before))


@pytest.mark.parametrize("later", [False, True])
def test_a_part_that_breaks_stops_the_update(later: bool):
    nets, batches = _nets(), _batches()
    step = _step(nets, accumulate=2, defer_nonfinite_check=later)
    batches["train"]["A"][1, 0, 2, 2] = float("nan")
    before = [p.detach().clone() for p in nets["G"].parameters()]
    with pytest.raises(NonFiniteError):
        _ = step(batches, number=0), step.check()
    assert all(torch.equal(p, q) for p, q in zip(nets["G"].parameters(), before))


def test_gradients_that_adam_cannot_square_count_as_broken():
    nets = _nets()

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        total = nets["G"](batch["A"]).mean() * 1e25
        return LossOutput(loss=total, logged={"level": total})

    optimizer = torch.optim.Adam(nets["G"].parameters())
    step = Step([Phase(name="only", trains=("G",), loss=loss)], nets=nets, optimizers={"only": optimizer})
    with pytest.raises(NonFiniteError, match="gradients"):
        step(_batches(), number=0)


def test_checked_later_weights_and_moments_stay_from_the_first_break_on():
    nets = _nets()
    step = _step(nets, defer_nonfinite_check=True)
    step(_batches(), number=0)
    step.check()
    _break(nets, "D", "value")
    step(_batches(), number=1)  # G's phase comes first: it is updated once more
    parameters = [p.detach().clone() for net in nets.values() for p in net.parameters()]
    moments = [v.clone() for o in step.optimizers.values() for state in o.state.values() for v in state.values()]
    _break(nets, "D", "")
    _break(nets, "G", "value")
    for number in (2, 3):
        step(_batches(), number=number)
    assert all(torch.equal(p, q) for p, q in zip((p for net in nets.values() for p in net.parameters()), parameters))
    after = [v for o in step.optimizers.values() for state in o.state.values() for v in state.values()]
    assert all(torch.equal(one, other) for one, other in zip(after, moments))
    with pytest.raises(NonFiniteError) as caught:
        step.check()
    assert (caught.value.phase, caught.value.number) == ("discriminator", 1)
    assert caught.value.names == ["square", "level", "total", "gradients"]


FLAT: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: torch.zeros(2, 3, 12, 10),
    "ones": lambda: torch.ones(2, 3, 12, 10),
    "large": lambda: torch.full((2, 3, 12, 10), 1e4),
    "nearly": lambda: 0.5 + 1e-7 * torch.rand(2, 3, 12, 10, generator=torch.Generator().manual_seed(0)),
    "nearly zero": lambda: 1e-8 * torch.rand(2, 3, 12, 10, generator=torch.Generator().manual_seed(0)),
    "diagonal": lambda: torch.ones(2, 3, 12, 10).index_put_((torch.tensor(0), torch.tensor(1)), torch.eye(12, 10)),
    "one pixel": lambda: torch.ones(2, 3, 120).index_fill_(2, torch.tensor(7), 1.01).view(2, 3, 12, 10),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", ["plain", "native", "native, residual"])
@pytest.mark.parametrize("name", FLAT)
def test_instance_norm_of_flat_images_is_finite(name: str, layer: str, dtype: torch.dtype, request: Any):
    x = FLAT[name]().to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    if layer == "plain":
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = norm_layer("instance")(3)(x)
    else:
        residual = torch.ones_like(x) if "residual" in layer else None
        out, _ = request.getfixturevalue("kernels").norm(x, residual=residual, slope=0.2, pad=3)
    assert out.isfinite().all()
    assert out.abs().max() <= 120**0.5 + 1  # no pixel of n is further than sqrt(n) deviations from the mean
    torch.manual_seed(0)
    out.backward(torch.randn(out.shape).to(out.dtype))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["zeros", "ones", "large"])
def test_the_native_norm_of_a_constant_is_zero(name: str, kernels: Any):
    x = FLAT[name]().contiguous(memory_format=torch.channels_last)
    assert kernels.norm(x)[0].abs().max() == 0
