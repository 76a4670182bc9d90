"""What a method is: the fields a user may set, its networks by role, its losses, and the generators that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import nn

from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.objectives.base import Objective
from velogan.types import Direction, Letter, Nets, domains_of


@dataclass(frozen=True)
class Spec:
    """What the networks of a run shall be.

    `generators` are of a2b and b2a; `discriminators` judge what these make, in the same order. `channels` are those of
    the pictures, by domain.
    """

    generators: Mapping[Direction, GeneratorConfig]
    discriminators: Mapping[Direction, DiscriminatorConfig]
    channels: Mapping[Letter, int]

    @property
    def multiple(self) -> int:
        """What the sides of pictures must be divisible by, for all generators, in pixels."""
        return max(generator.multiple for generator in self.generators.values())

    @property
    def norms(self) -> set[str]:
        """The kinds of norm in all networks."""
        return {part.norm for part in (*self.generators.values(), *self.discriminators.values())}

    def check_equal_channels(self, why: str) -> None:
        """ValueError where pictures of A and B differ in their channels; `why` they must not: the message's start."""
        a, b = self.channels["A"], self.channels["B"]
        if a != b:
            raise ValueError(
                f"{why}, but images of A have {a} and those of B {b} channels: set data.channels_a and data.channels_b "
                "to the same number"
            )


class NetworkFactory(Protocol):
    """Builds networks, freshly initialised. A search hands in another one, which builds supernets."""

    def generator(self, config: GeneratorConfig, *, in_channels: int, out_channels: int) -> nn.Module:
        """`(B, in_channels, H, W)` to `(B, out_channels, H, W)`, both in [-1, 1]."""
        ...

    def discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        """Of images `(B, in_channels, H, W)` in [-1, 1]; gives logits `(B, 1, h, w)`."""
        ...

    def encoding_discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        """Of a generator's encodings `(B, in_channels, H/4, W/4)`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Role:
    """One network of a method and what it is for.

    `header` describes the network so that `networks.build.build_network` makes it again; None for a network that is
    kept within the generators' files. `averaged`: a moving average of its weights is kept. `real_domain`: the
    domain whose images, or encodings of them (`input_kind`), a discriminator tells from fakes.
    """

    net: nn.Module
    header: Mapping[str, Any] | None = None
    averaged: bool = False
    real_domain: Letter | None = None
    input_kind: Literal["images", "encodings"] = "images"


@dataclass(frozen=True)
class InferenceGenerators:
    """The complete generators that a method exposes, by direction, over the weights of the roles.

    `reconstruction` encodes and decodes an image without translating it, where the method has such a thing.
    `translates` is false where the generators too shall give back their input: an autoencoder that is trained alone.
    """

    generators: Mapping[Direction, nn.Module]
    reconstruction: nn.Module | None = None
    translates: bool = True


class Method(BaseModel):
    """A method is the section `method` of a configuration: its fields, and all that follows from them.

    A subclass is one file: it sets `kind`, its name in configurations, and `summary`, a line for the help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ClassVar[str]
    summary: ClassVar[str]
    searchable: ClassVar[bool] = True
    """Whether its generators may be of cells, so that a search can wrap it."""

    @model_serializer(mode="wrap")
    def _with_kind(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": self.kind, **fields(self)}

    @model_validator(mode="before")
    @classmethod
    def _without_kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: part for name, part in value.items() if name != "kind"}

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that a run learns to translate."""
        return ("a2b", "b2a")

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        """The fields, as `name=value`, that need pictures of one size, each with a value that does not."""
        return {}

    def check(self, spec: Spec) -> None:
        """ValueError, naming the field and the mend, where networks of `spec` do not suit the method."""

    def roles(self, spec: Spec, make: NetworkFactory) -> dict[str, Role]:
        """The networks by role, built by `make` in the order in which they are initialised."""
        raise NotImplementedError

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> Objective:
        """The losses for images of `shape` (H, W); `batched` runs passes of one network together."""
        raise NotImplementedError

    def views(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        """Generators over the weights of `nets`, the networks by role or their averages."""
        raise NotImplementedError

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        """What the files of the generators say of them, so that `networks.build.build_network` makes them again."""
        return {direction: generator_header(spec, direction) for direction in self.directions}


def generator_header(spec: Spec, direction: Direction, **changed: Any) -> dict[str, Any]:
    """The header of a generator of `spec`, with fields of its configuration `changed`."""
    source, target = domains_of(direction)
    config = spec.generators[direction].model_copy(update=changed)
    return {
        "network": "generator",
        "config": config.model_dump(mode="json"),
        "in_channels": spec.channels[source],
        "out_channels": spec.channels[target],
    }


def discriminator_header(
    config: DiscriminatorConfig, *, in_channels: int, network: str = "discriminator"
) -> dict[str, Any]:
    """The header of a discriminator; `network` names the builder."""
    return {"network": network, "config": config.model_dump(mode="json"), "in_channels": in_channels}
