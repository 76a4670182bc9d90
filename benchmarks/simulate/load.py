"""What a step computes and exchanges, phase by phase, counted on the real networks without computing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.bench.roofline import flops, record_convolutions
from velogan.config import Config
from velogan.networks.build import NetworkFactory
from velogan.networks.sizes import BYTES_PER_WEIGHT, count_parameters
from velogan.objectives.base import LossOutput, Objective, Phase
from velogan.types import Nets


@dataclass(frozen=True)
class PhaseLoad:
    """One phase of a step.

    `bytes` are those of what `all_reduce_gradients` exchanges: the gradients of all that the phase trains, its
    terms, and a flag for each tensor. `flops` of its convolutions after the phases before it; `flops_alone` where it
    computes itself what these hand on, as on a node of its own.
    """

    name: str
    trains: tuple[str, ...]
    bytes: int
    flops: int
    flops_alone: int


@dataclass(frozen=True)
class Load:
    """A step of `images` of each domain; `weights` are the bytes of all its networks."""

    phases: tuple[PhaseLoad, ...]
    weights: int
    images: int

    @property
    def flops(self) -> int:
        """Operations of one step."""
        return sum(phase.flops for phase in self.phases)


def load_of(config: Config) -> Load:
    """The load of a step of `config` on one device. Nothing is allocated or computed."""
    side = config.data.crop_size
    with torch.device("meta"):
        roles = config.method.roles(config.spec, NetworkFactory())
        nets = {name: role.net for name, role in roles.items()}
        objective = config.method.objective(config.spec, shape=(side, side), batched=True)
        phases = tuple(_phases(objective, nets, config))
    weights = BYTES_PER_WEIGHT * sum(map(count_parameters, nets.values()))
    return Load(phases, weights, config.images_per_update)


def _phases(objective: Objective, nets: Nets, config: Config) -> Iterator[PhaseLoad]:
    count, images = config.images_per_update, _images(config)
    caches: dict[str, dict[str, Tensor]] = {split: {} for split in objective.num_uniforms}
    for phase in objective.phases():
        batch = {**images, "uniform": torch.empty(objective.num_uniforms[phase.split], 1)}
        alone, _ = _run_phase(phase, nets, batch, {})
        after, out = _run_phase(phase, nets, batch, caches[phase.split])
        weights = [weight for role in phase.trains for weight in nets[role].parameters()]
        gradients, few = sum(weight.numel() for weight in weights), len(weights) + len(out.terms) + 1  # and the total
        yield PhaseLoad(
            phase.name,
            phase.trains,
            bytes=BYTES_PER_WEIGHT * (gradients + few),
            flops=count * after,
            flops_alone=count * alone,
        )
        caches[phase.split] |= {name: value.detach() for name, value in out.cache.items()}


def _images(config: Config) -> dict[str, Tensor]:
    side = config.data.crop_size
    return {letter: torch.empty(1, channels, side, side) for letter, channels in config.spec.channels.items()}


def _run_phase(
    phase: Phase, nets: Nets, batch: Mapping[str, Tensor], cache: Mapping[str, Tensor]
) -> tuple[int, LossOutput]:
    """Return the phase's operations for one image of each domain, both passes, and its output."""
    outputs: list[LossOutput] = []

    def step() -> None:
        outputs.append(phase.loss(nets, dict(batch), dict(cache)))
        outputs[0].loss.backward()

    for role, net in nets.items():
        net.requires_grad_(role in phase.trains)
    calls = record_convolutions(step)
    for role in phase.trains:
        nets[role].zero_grad(set_to_none=True)
    return flops(calls), outputs[0]
