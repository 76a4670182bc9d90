"""Interface of a method: its fields in a configuration, its networks by role, its losses and its generators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import nn

from velogan.networks.build import NetworkFactory
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.base import Objective
from velogan.types import Decision, Direction, Letter, Nets, domains_of


@dataclass(frozen=True)
class Spec:
    """Architecture of all networks of a run.

    `discriminators`: by the direction whose translations they classify. `channels`: number of image channels by domain.
    """

    generators: Mapping[Direction, GeneratorConfig]
    discriminators: Mapping[Direction, DiscriminatorConfig]
    channels: Mapping[Letter, int]

    @property
    def multiple(self) -> int:
        """The number that image sides must be divisible by, for all generators."""
        return max(generator.multiple for generator in self.generators.values())

    @property
    def norms(self) -> set[str]:
        return {config.norm for config in (*self.generators.values(), *self.discriminators.values())}

    def check_equal_channels(self, reason: str) -> None:
        """Raise ValueError, whose message starts with `reason`, if A and B differ in their number of channels."""
        a, b = self.channels["A"], self.channels["B"]
        if a != b:
            raise ValueError(
                f"{reason}, but images of A have {a} and those of B {b} channels: set data.channels_a and "
                "data.channels_b to the same number"
            )


@dataclass(frozen=True, kw_only=True)
class Role:
    """One network of a method and its purpose.

    `header`: the header of its weights file, from which it is rebuilt; None: the generators' files contain the network.
    `is_averaged`: whether its weights have a moving average. `real_domain`: the domain whose images, or encodings of
    images (see `input_kind`), a discriminator distinguishes from fakes; None for other networks.
    """

    net: nn.Module
    header: Mapping[str, Any] | None = None
    is_averaged: bool = False
    real_domain: Letter | None = None
    input_kind: Literal["images", "encodings"] = "images"


@dataclass(frozen=True)
class InferenceGenerators:
    """The complete generators of a method, by direction; they share the weights of its networks.

    `reconstruction`: encodes and decodes an image without translating it; None if the method has no autoencoder.
    """

    generators: Mapping[Direction, nn.Module]
    reconstruction: nn.Module | None = None


class Method(BaseModel):
    """The section `method` of a configuration, and the networks and losses that it defines.

    Each subclass is in a file of its own. It sets `kind`, its name in configurations, and `summary`, a line of help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    summary: ClassVar[str]
    is_searchable: ClassVar[bool] = True
    """Whether its generators may consist of cells, so that a search can wrap it."""
    splits_loss_by_domain: ClassVar[bool] = False
    """Whether each loss term of its generators depends on images of only one domain; see `domain_of`."""

    @model_serializer(mode="wrap")
    def _add_kind_field(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **serialize(self)}

    @model_validator(mode="before")
    @classmethod
    def _drop_kind_field(cls, value: Any) -> Any:
        return {name: field for name, field in value.items() if name != "kind"} if isinstance(value, Mapping) else value

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that a run learns."""
        return ("a2b", "b2a")

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        """Fields, as `name=value`, that require images of equal size, each mapped to a value without this limit."""
        return {}

    def check(self, spec: Spec) -> None:
        """Raise ValueError, with the field and a hint, if networks of `spec` do not suit the method."""

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        """Build the networks by role with `factory`, in the order of their initialisation."""
        raise NotImplementedError

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> Objective:
        """Return the losses for images of `shape` (H, W); `batched`: run a network's forward passes as one batch."""
        raise NotImplementedError

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        """Return the generators, which share the weights of `nets`: networks by role, or their moving averages."""
        raise NotImplementedError

    def autoencoder_of(self, generator: nn.Module) -> nn.Module | None:
        """Return the autoencoder inside a complete generator; None if the method has none."""
        return None

    def domain_of(self, term: str) -> Letter | None:
        """Return the domain whose images the logged loss `term` depends on; None if it depends on both."""
        return None

    def decisions(self, spec: Spec) -> list[Decision]:
        """Return the settings that the data turns on or off, with reasons."""
        return []

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        """Return the headers of the generators' weights files, from which the generators are rebuilt."""
        return {direction: generator_header(spec, direction) for direction in self.directions}


def generator_header(spec: Spec, direction: Direction) -> dict[str, Any]:
    """Return the header of the weights file of the generator of this direction."""
    source, target = domains_of(direction)
    return {
        "network": "generator",
        "config": spec.generators[direction].model_dump(mode="json"),
        "in_channels": spec.channels[source],
        "out_channels": spec.channels[target],
    }


def discriminator_header(
    config: DiscriminatorConfig, *, in_channels: int, network: str = "discriminator"
) -> dict[str, Any]:
    """Return the header of a discriminator's weights file; `network`: its kind in `networks.build.build_network`."""
    return {"network": network, "config": config.model_dump(mode="json"), "in_channels": in_channels}
