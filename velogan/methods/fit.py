"""Checks, before training, that a method's networks fit the images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from velogan.methods.base import Method, Role, Spec
from velogan.networks.build import NetworkFactory
from velogan.networks.sizes import count_parameters
from velogan.objectives.base import Objective, Phase


def count_role_parameters(method: Method, spec: Spec) -> dict[str, int]:
    """Return the number of weights and biases of each network, by role; computed on the meta device."""
    with torch.device("meta"):
        return {name: count_parameters(role.net) for name, role in method.roles(spec, NetworkFactory()).items()}


def check_sizes(method: Method, spec: Spec, shapes: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError, with the field and a hint, if images of `shapes` (H, W) do not fit the networks.

    Runs every phase on the meta device.
    """
    with torch.device("meta"):
        roles = method.roles(spec, NetworkFactory())
    for shape in sorted(shapes):
        _check_multiple(spec, shape)
        nets = {name: _SizeCheckedNetwork(name, role, spec, shape) for name, role in roles.items()}
        with torch.device("meta"):
            _run_phases(method.objective(spec, shape=shape, batched=False), nets, spec, shape)


def phases_of(method: Method, spec: Spec) -> Sequence[Phase]:
    """Return the phases of a training step on the meta device, to inspect their names and roles."""
    side = 4 * spec.multiple
    with torch.device("meta"):
        return method.objective(spec, shape=(side, side), batched=False).phases()


def _check_multiple(spec: Spec, shape: tuple[int, int]) -> None:
    for config in spec.generators.values():
        if any(side % config.multiple for side in shape):
            nearest = max(config.multiple, max(shape) // config.multiple * config.multiple)
            raise ValueError(
                f"generator.network={config.network} needs sides divisible by {config.multiple}, but images are "
                f"{shape[1]}x{shape[0]}: set data.crop_size={nearest} with a preprocess that crops, or use resnet"
            )


def _run_phases(objective: Objective, nets: Mapping[str, nn.Module], spec: Spec, shape: tuple[int, int]) -> None:
    batches = {
        split: {
            **{letter: torch.empty(1, channels, *shape) for letter, channels in spec.channels.items()},
            "uniform": torch.empty(count, 1),
        }
        for split, count in objective.num_uniforms.items()
    }
    caches: dict[str, dict[str, Tensor]] = {split: {} for split in batches}
    for phase in objective.phases():
        out = phase.loss(nets, batches[phase.split], caches[phase.split])
        caches[phase.split] |= {name: value.detach() for name, value in out.cache.items()}


class _SizeCheckedNetwork(nn.Module):
    """Calls a network; errors name the field of the configuration that selects it."""

    def __init__(self, name: str, role: Role, spec: Spec, shape: tuple[int, int]):
        super().__init__()
        self.net = role.net
        section = "discriminator" if role.real_domain else "generator"
        configs = spec.discriminators if role.real_domain else spec.generators
        config = configs["b2a" if name.endswith("_B") else "a2b"]
        self._problem = f"{section}.network={config.network} cannot take images of {shape[1]}x{shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.net(x)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{self._problem} ({str(error).splitlines()[0]}): set a larger data.crop_size (--image-size), or a "
                "smaller network"
            ) from None
