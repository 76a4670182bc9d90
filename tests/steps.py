"""Training steps of tiny networks on random images, for tests that compare two ways to compute them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from velogan.config import Config
from velogan.objectives.base import Objective
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine

SIDE = 32


def build(config: Config) -> tuple[Any, Objective, dict[str, nn.Module]]:
    """Return step, objective and networks of `config` for images of its crop size, with its engine resolved."""
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    return build_step(config, shape=(config.data.crop_size, config.data.crop_size))


def random_batch(random: Generator, objective: Objective, *, count: int = 1, side: int = SIDE) -> dict[str, Tensor]:
    """Return `count` random images of each domain, and the uniform numbers that a step of `objective` needs."""
    images = {letter: torch.rand(count, 3, side, side, generator=random) * 2 - 1 for letter in "AB"}
    return images | {"uniform": torch.rand(objective.num_uniforms["train"], count, generator=random)}


def take_steps(config: Config, count: int) -> tuple[list[dict[str, Tensor]], dict[str, nn.Module]]:
    """Return the losses of `count` steps and the networks after them."""
    step, objective, nets = build(config)
    random = Generator().manual_seed(2)
    batches = [random_batch(random, objective) for _ in range(count)]
    return [step({"train": batch}, number=number) for number, batch in enumerate(batches)], nets


def kernels_of(nets: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return all weights but biases, by name: before instance norm the gradient of a bias is a rounding error."""
    named = ((f"{role}.{name}", value) for role, net in nets.items() for name, value in net.named_parameters())
    return {name: value.detach().clone() for name, value in named if name.endswith("weight")}
