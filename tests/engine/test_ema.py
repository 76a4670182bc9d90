from __future__ import annotations

import pytest
from torch import nn

from velogan.engine.ema import EMA


def _averages(*updates: int, start: int, **options: float) -> tuple[EMA, list[float]]:
    """Average a weight that has just changed from 0 to 1; return its averages after updates at these image counts."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    ema, averages = EMA({"G": net}, **options), []  # pyright: ignore[reportArgumentType]
    nn.init.ones_(net.weight)
    ema.load_state_dict({"updated": start})
    for images in updates:
        ema.set_decay(images)
        ema.on_step_end({})
        averages.append(float(ema.nets["G"].get_parameter("weight")))
    assert ema.state_dict() == {"updated": updates[-1]}
    return ema, averages


def test_averages_exponentially_with_a_half_life_in_images():
    _, averages = _averages(10_100, 10_300, start=10_000, half_life=100, rampup=0.05)
    assert averages == pytest.approx([0.5, 1 - 0.5**3])


@pytest.mark.parametrize("rampup", [0.05, 0.2])
def test_half_life_grows_with_the_run(rampup: float):
    _, averages = _averages(400, start=390, half_life=1000, rampup=rampup)
    assert averages == pytest.approx([1 - 0.5 ** (10 / (400 * rampup))])
    _, averages = _averages(4, start=0, half_life=1000, rampup=rampup)
    assert averages == pytest.approx([1 - 0.5**4])  # never below one image


def test_copies_buffers_and_shares_nothing_with_the_networks():
    net = nn.BatchNorm1d(1)
    ema = EMA({"G": net}, half_life=1000, rampup=0.05)
    assert not any(parameter.requires_grad for parameter in ema.nets["G"].parameters())
    assert not ema.nets["G"].training
    net.get_buffer("running_mean").fill_(3.0)
    ema.set_decay(8)
    ema.on_step_end({})
    assert float(ema.nets["G"].get_buffer("running_mean")) == 3.0
    ema.nets["G"].get_buffer("running_mean").fill_(1.0)
    ema.nets["G"].get_parameter("weight").fill_(5.0)
    assert (float(net.get_buffer("running_mean")), float(net.weight.detach())) == (3.0, 1.0)
