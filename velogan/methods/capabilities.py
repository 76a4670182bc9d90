"""Optional features of methods, as protocols. Query one with `capability(method, Protocol)`."""

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
    """Return `method`, or else the method that it wraps, if that has the capability `kind`; otherwise None."""
    if isinstance(method, kind):
        return method
    inner = getattr(method, "inner", None)
    return None if inner is None else capability(inner, kind)


@dataclass(frozen=True)
class TrainedGenerator:
    """A generator of an earlier run, with its configuration."""

    net: nn.Module
    config: GeneratorConfig


@runtime_checkable
class SupportsPretrained(Protocol):
    """A method that can start with a part of an earlier run's generator."""

    def load_pretrained(self, nets: Nets, load: Callable[[Path], TrainedGenerator]) -> None:
        """Load the weights of the run that a field names, if any. Raises ValueError if they do not fit."""
        ...


@runtime_checkable
class HasAutoencoder(Protocol):
    """A method whose generators contain an autoencoder."""

    def autoencoder_of(self, generator: nn.Module) -> nn.Module:
        """Return the autoencoder inside a complete generator that was loaded from its file."""
        ...


@runtime_checkable
class SplitsLossByDomain(Protocol):
    """A method each of whose generator loss terms depends on images of one domain."""

    def domain_of(self, term: str) -> Letter | None:
        """Return the domain on whose images a logged term depends; None: both."""
        ...


@runtime_checkable
class SupportsExtraLosses(Protocol):
    """A method whose phase `generator` caches translations, so that loss terms on these can be added."""

    def fakes(self, cache: PhaseCache) -> Mapping[Direction, Tensor]:
        """Return the translations in that phase's cache, by direction."""
        ...


@runtime_checkable
class ReportsDecisions(Protocol):
    """A method that enables or disables parts of itself depending on the data."""

    def decisions(self, spec: Spec) -> list[Decision]:
        """Return what `spec` enables or disables, with reasons."""
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
