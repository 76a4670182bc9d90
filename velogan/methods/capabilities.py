"""What some methods can do and others cannot. Who needs a capability asks for it by `capability`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from velogan.methods.base import Method, Spec
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype
from velogan.objectives.base import PhaseCache
from velogan.types import Decision, Direction, Letter, Nets

Capability = TypeVar("Capability")


def capability(method: Method, kind: type[Capability]) -> Capability | None:
    """`method`, or else the method that it wraps, if it has the capability `kind`; None if neither has it."""
    if isinstance(method, kind):
        return method
    inner = getattr(method, "inner", None)
    return None if inner is None else capability(inner, kind)


@dataclass(frozen=True)
class TrainedGenerator:
    """A generator of an earlier run: the network, and the configuration that describes it."""

    net: nn.Module
    config: GeneratorConfig


@runtime_checkable
class SupportsPretrained(Protocol):
    """A method that may begin with a part of an earlier run's generator."""

    def take_trained(self, nets: Nets, load: Callable[[Path], TrainedGenerator]) -> None:
        """Takes the weights, where a field names a run. ValueError where they do not fit."""
        ...


@runtime_checkable
class HasAutoencoder(Protocol):
    """A method whose generators contain an autoencoder."""

    def autoencoder_of(self, generator: nn.Module) -> nn.Module:
        """The autoencoder inside a complete generator that was loaded from its file."""
        ...


@runtime_checkable
class SplitsLossByDomain(Protocol):
    """A method whose generators' losses are terms of one domain's pictures each."""

    def domain_of(self, term: str) -> Letter | None:
        """The domain whose pictures the term is about, by its name in the log; None: both."""
        ...


@runtime_checkable
class SupportsExtraLosses(Protocol):
    """A method whose phase `generator` hands on translations of images, so that terms on these can be added."""

    def fakes(self, cache: PhaseCache) -> Mapping[Direction, Tensor]:
        """The translations, by direction, in what that phase hands on."""
        ...


@runtime_checkable
class ReportsDecisions(Protocol):
    """A method of which the pictures switch something on or off."""

    def decisions(self, spec: Spec) -> list[Decision]:
        """What `spec` switches on or off, and why."""
        ...


@runtime_checkable
class ArchitectureSearch(Protocol):
    """A method that chooses the operations of its networks while it trains them; `nets` are the networks by role."""

    def shares(self, nets: Nets, spec: Spec) -> dict[str, dict[str, dict[str, float]]]:
        """Return the share of each operation, by network and by place; those of a place add up to 1."""
        ...

    def genotype(self, nets: Nets, spec: Spec) -> Genotype:
        """Return the operations with the largest shares."""
        ...
