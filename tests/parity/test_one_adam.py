"""One Adam over all four networks, stepped once after both losses, is the pair of Adams that step one after the other.

The discriminators' loss sees fakes from before the generators' update, and no generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from velogan.config import Config
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine

SIDE = 32


def _batch(number: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    images = {side: torch.rand(1, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
    return images | {"uniform": torch.rand(6, 1, generator=random)}


def test_one_adam_over_all_networks_is_the_pair_bit_for_bit(tiny_config: Callable[..., Config]):
    config = tiny_config(engine={"mode": "reference"}, method={"pool_size": 2})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    step, _, expected = build_step(config, shape=(SIDE, SIDE))
    assert len(step.optimizers) == 2
    _, objective, nets = build_step(config, shape=(SIDE, SIDE))
    adam = torch.optim.Adam([p for net in nets.values() for p in net.parameters()], lr=2e-4, betas=(0.5, 0.999))
    for number in range(5):
        step({"train": _batch(number)}, number=number)
        adam.zero_grad()
        cache: dict[str, Any] = {}
        for phase in objective.phases():
            for role, net in nets.items():
                net.requires_grad_(role in phase.trains)
            out = phase.loss(nets, _batch(number), cache)
            out.loss.backward()
            cache |= {name: value.detach() for name, value in out.cache.items()}
        adam.step()  # no network has moved before
    for role, net in nets.items():
        for mine, theirs in zip(net.parameters(), expected[role].parameters()):
            assert torch.equal(mine, theirs), role
