from __future__ import annotations

import pytest
import torch
from torch import nn

from velogan.engine.ema import EMA


def _net(value: float) -> nn.Module:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    net.register_buffer("count", torch.tensor(value))
    return net


def _update(ema: EMA, *, images: int) -> None:
    ema.set_decay(images)
    ema.on_step_end({})


def _average(ema: EMA) -> float:
    return float(ema.nets["G"].weight.detach())  # pyright: ignore


def test_it_is_the_exponential_average_with_a_half_life_in_images():
    net = _net(0.0)
    ema = EMA({"G": net}, half_life=100, rampup=0.05)
    nn.init.ones_(net.weight)  # pyright: ignore
    ema.load_state_dict({"updated": 10_000})
    _update(ema, images=10_100)
    assert _average(ema) == pytest.approx(0.5)
    _update(ema, images=10_300)
    assert _average(ema) == pytest.approx(1 - 0.5**3)


@pytest.mark.parametrize("rampup", [0.05, 0.2])
def test_the_half_life_grows_with_the_run(rampup: float):
    net = _net(0.0)
    ema, young = (EMA({"G": net}, half_life=1000, rampup=rampup) for _ in range(2))
    nn.init.ones_(net.weight)  # pyright: ignore
    ema.load_state_dict({"updated": 390})
    _update(ema, images=400)
    assert _average(ema) == pytest.approx(1 - 0.5 ** (10 / (400 * rampup)))
    _update(young, images=4)  # never below one image
    assert _average(young) == pytest.approx(1 - 0.5**4)


def test_buffers_are_copied_and_the_average_stands_apart():
    net = _net(0.0)
    ema = EMA({"G": net}, half_life=1000, rampup=0.05)
    assert not any(parameter.requires_grad for parameter in ema.nets["G"].parameters())
    assert not ema.nets["G"].training
    net.count.fill_(3.0)  # pyright: ignore
    _update(ema, images=8)
    assert float(ema.nets["G"].count) == 3.0  # pyright: ignore
    ema.nets["G"].weight.fill_(1.0)  # pyright: ignore
    assert float(net.weight.detach()) == 0.0  # pyright: ignore
    assert ema.state_dict() == {"updated": 8}
