"""Architecture search: any method on supernets, whose architecture weights are trained as well.

"CycleGANAS" (An and Joo 2023, section 3). Each network of cells becomes a supernet, and its architecture weights a role
of their own: those of `G_A` are `arch_G_A`. What the inner method has fixed stays: its losses, its pools of fakes, its
stabilisers, and its networks that are not of cells, or have their operations already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import nn

from velogan.methods import DEFAULT
from velogan.methods import METHODS as PLAIN
from velogan.methods.base import InferenceGenerators, Method, NetworkFactory, Role, Spec
from velogan.methods.capabilities import SplitsLossByDomain, capability
from velogan.methods.image_gan import sum_of
from velogan.networks.build import Networks
from velogan.networks.cells import default_operations, discriminator_kinds
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype
from velogan.objectives.base import HALVES, LossOutput, Objective, Phase, PhaseCache
from velogan.search.supernet import (
    Architecture,
    Supernets,
    WithArchitecture,
    attach_arch_parameters,
    derive,
    detach_arch_parameters,
    mixtures,
)
from velogan.types import GENERATOR_FILES, Batch, Direction, Letter, Nets, domains_of

ARCHITECTURE = "arch_"
"""Before the name of a role: that of its architecture weights. Before that of a phase: its twin, which trains them."""

Loss = Callable[[Nets, Batch, PhaseCache], LossOutput]


WRAPPED = [kind for kind, method in PLAIN.items() if method.searchable]
"""Methods that a search can be of."""


def _parse_inner(value: Any) -> Any:
    """A method by its `kind`; a word alone is a kind."""
    if isinstance(value, Method):
        return value
    tree: Mapping[str, Any] = {"kind": value} if isinstance(value, str) else value
    kind = tree.get("kind", DEFAULT.kind) if isinstance(tree, Mapping) else value
    if kind not in WRAPPED:
        raise ValueError(f"inner={str(kind)[:40]} is no method that a search can wrap: give {' or '.join(WRAPPED)}")
    return PLAIN[kind].model_validate(tree)


class SearchMethod(Method):
    """A method `inner` on supernets."""

    kind = "searched"
    summary = "any of these on networks whose operations are chosen while they train (velogan search)"

    inner: Annotated[SerializeAsAny[Method], BeforeValidator(_parse_inner)] = Field(
        default=DEFAULT, description="The method whose networks are searched, and its fields."
    )
    scheme: Literal["one-step", "two-step", "two-domains", "halves", "swapped-halves"] = Field(
        default="one-step",
        description="What trains the architecture weights. one-step: each phase, with its networks. two-step: a "
        "second set of phases, on the same pictures, trains them alone. two-domains: that, and the generators' weights "
        "learn by the losses of domain A's pictures, their architecture by those of B's. halves: as two-step, and one "
        "half of the pictures trains the weights and the other the architecture. swapped-halves: and the halves change "
        "places in the middle of the run.",
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Feature maps of the encoding, H, of the generators to build from the genotype; they are wider "
        "than the supernets. None: as training says.",
    )

    @property
    def directions(self) -> tuple[Direction, ...]:
        return self.inner.directions

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        return {name.replace("method.", "method.inner."): mend for name, mend in self.inner.fixed_size_fields.items()}

    def check(self, spec: Spec) -> None:
        self.inner.check(spec)
        if self.scheme == "two-domains" and capability(self.inner, SplitsLossByDomain) is None:
            raise ValueError(
                "method.scheme=two-domains needs losses of one domain's pictures each, which "
                f"method.inner={self.inner.kind} does not tell apart: set method.scheme=two-step"
            )
        for way in self.directions:
            if spec.generators[way].network != "cells":
                raise ValueError(
                    f"generator.network={spec.generators[way].network} has no operations to choose: say velogan "
                    "search, or set generator.network=cells"
                )
        sections = [*spec.generators.values(), *spec.discriminators.values()]
        if len(spaces := {section.space for section in sections if section.network == "cells"}) > 1:
            raise ValueError(
                f"generator.space and discriminator.space are {' and '.join(sorted(spaces))}: one genotype has one "
                "space, set the same"
            )
        if not any(map(_is_open, sections)):
            raise ValueError(
                "generator.operations and discriminator.operations leave nothing to be chosen: leave one out"
            )

    def roles(self, spec: Spec, make: NetworkFactory) -> dict[str, Role]:
        roles = self.inner.roles(spec, _SupernetFactory(make))
        taken: dict[str, Role] = {}
        for name, role in list(roles.items()):
            if mixtures(role.net):
                architecture = detach_arch_parameters(role.net)
                header = {"network": "architecture", "of": name} if role.header else None
                taken[ARCHITECTURE + name] = Role(net=architecture, header=header, averaged=role.averaged)
                roles[name] = replace(role, header={**role.header, "network": "supernet"} if role.header else None)
        return roles | taken

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> SearchObjective:
        weights = {name for name, role in self._empty_roles(spec).items() if isinstance(role.net, Architecture)}
        count = 1 if self.scheme == "one-step" else 2
        inner = [self.inner.objective(spec, shape=shape, batched=batched) for _ in range(count)]
        return SearchObjective(self, inner, weights)

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        found = self._inner_views(nets, spec)
        return replace(found, generators={way: WithArchitecture(net) for way, net in found.generators.items()})

    def _inner_views(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        """Over the architecture weights that belong to `nets`: an average has been copied apart from its own."""
        for name, net in nets.items():
            if (architecture := nets.get(ARCHITECTURE + name)) is not None:
                attach_arch_parameters(net, architecture)  # pyright: ignore[reportArgumentType]
        return self.inner.inference_generators(nets, spec)

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        return {way: {**header, "network": "supernet"} for way, header in self.inner.headers(spec).items()}

    def shares(self, nets: Nets, spec: Spec) -> dict[str, dict[str, dict[str, float]]]:
        discriminators = {name: nets[name] for name, role in self._empty_roles(spec).items() if role.header is not None}
        generators = {GENERATOR_FILES[way]: net for way, net in self._inner_views(nets, spec).generators.items()}
        return {name: shares for name, net in {**generators, **discriminators}.items() if (shares := _shares(net))}

    def genotype(self, nets: Nets, spec: Spec) -> Genotype:
        generators: dict[Direction, tuple[str, ...]] = {
            direction: derive(net) if _is_open(config := spec.generators[direction]) else config.chosen
            for direction, net in self._inner_views(nets, spec).generators.items()
        }
        return Genotype(
            space=spec.generators["a2b"].space,
            generators=generators,
            discriminators=self._discriminators(nets, spec),
            hidden=dict.fromkeys(generators, self.hidden) if self.hidden else {},
        )

    def _discriminators(self, nets: Nets, spec: Spec) -> dict[Direction, tuple[str, ...]]:
        """Return the discriminators' operations by direction.

        If images and encodings are both judged, those of the discriminator of images count. A discriminator of
        encodings lacks the first two operations; hand-made ones take their places.
        """
        operations: dict[Direction, tuple[str, ...]] = {}
        roles = {name: role for name, role in self._empty_roles(spec).items() if mixtures(role.net)}
        for direction in self.directions:
            config, (_, target) = spec.discriminators[direction], domains_of(direction)
            derived = [derive(nets[name]) for name, role in roles.items() if role.real_domain == target]
            if config.operations:
                operations[direction] = config.chosen
            elif derived:
                longest = max(derived, key=len)
                default = default_operations(discriminator_kinds(config.space), space=config.space, discriminator=True)
                operations[direction] = default[: len(default) - len(longest)] + longest
        return operations

    def _empty_roles(self, spec: Spec) -> dict[str, Role]:
        """Return the roles with networks that hold no values."""
        with torch.device("meta"):
            return self.roles(spec, _PlaceholderFactory())


def _is_open(config: GeneratorConfig | DiscriminatorConfig) -> bool:
    """Whether a network's operations are to be chosen."""
    return config.network == "cells" and not config.operations


def _shares(net: nn.Module) -> dict[str, dict[str, float]]:
    with torch.no_grad():
        return {
            name: dict(zip(mixed.candidates, mixed.alpha.softmax(0).tolist())) for name, mixed in mixtures(net).items()
        }


class _SupernetFactory(Networks):
    """Supernets in the place of networks whose operations are open; the others as `make` has them."""

    def __init__(self, make: NetworkFactory):
        self._make, self._supernets = make, Supernets()

    def generator(self, config: GeneratorConfig, **channels: Any) -> nn.Module:  # pyright: ignore
        return (self._supernets if _is_open(config) else self._make).generator(config, **channels)

    def discriminator(self, config: DiscriminatorConfig, **channels: Any) -> nn.Module:  # pyright: ignore
        return (self._supernets if _is_open(config) else self._make).discriminator(config, **channels)

    def encoding_discriminator(self, config: DiscriminatorConfig, **channels: Any) -> nn.Module:  # pyright: ignore
        return (self._supernets if _is_open(config) else self._make).encoding_discriminator(config, **channels)


class SearchObjective:
    """The inner losses, whose phases train architecture weights too, or with a second set of phases that does.

    `inner` holds an objective for each set, so that each has its own state; `weights` are the roles of the
    architecture weights.
    """

    def __init__(self, config: SearchMethod, inner: Sequence[Objective], weights: Collection[str]):
        self.config, self.inner, self.weights = config, inner, weights
        self.draws = dict(inner[0].draws)
        if len(inner) > 1 and list(self.draws) != ["train"]:
            raise ValueError(
                f"method.scheme={config.scheme} decides which pictures train what, and so does method.inner: set "
                "method.scheme=one-step"
            )
        self.swap_halves_at = 0.5 if config.scheme == "swapped-halves" else math.inf
        if config.scheme in ("halves", "swapped-halves"):
            self.draws = dict.fromkeys(HALVES, self.draws["train"])
        self.state: nn.Module = nn.ModuleDict(dict(zip(("weights", "architecture"), (one.state for one in inner))))

    def phases(self) -> list[Phase]:
        """Those of the networks, then those of their architecture."""
        plain = self.inner[0].phases()
        if len(self.inner) == 1:
            return [replace(phase, trains=(*phase.trains, *self._searched(phase))) for phase in plain]
        searched = [phase for phase in self.inner[1].phases() if self._searched(phase)]
        if self.config.scheme == "two-domains":  # "w using A and alpha using B" (section 4.1)
            plain, searched = self._of("A", plain), self._of("B", searched)
        twins = [replace(phase, name=ARCHITECTURE + phase.name, trains=self._searched(phase)) for phase in searched]
        if len(self.draws) == 1:
            return [*plain, *twins]
        return [*_on(HALVES[0], plain), *_on(HALVES[1], twins)]

    def _of(self, domain: Letter, phases: Sequence[Phase]) -> list[Phase]:
        """`phases` without the terms of the other domain's pictures; a discriminator needs both, and keeps its own."""
        told = capability(self.config.inner, SplitsLossByDomain)
        assert told is not None

        def part(loss: Loss, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            out = loss(nets, batch, cache)
            terms = {name: term for name, term in out.logged.items() if told.domain_of(name) in (domain, None)}
            return replace(out, loss=sum_of(terms), logged=terms)

        return [replace(phase, loss=partial(part, phase.loss)) for phase in phases]

    def _searched(self, phase: Phase) -> tuple[str, ...]:
        """The roles of the architecture weights of the networks that `phase` trains."""
        names = (ARCHITECTURE + name for name in phase.trains)
        return tuple(name for name in names if name in self.weights)


def _on(split: str, phases: Sequence[Phase]) -> list[Phase]:
    return [replace(phase, split=split) for phase in phases]


class _PlaceholderFactory(Networks):
    """For a look at the roles: discriminators that are not searched may have trained features to load."""

    def discriminator(self, config: DiscriminatorConfig, **channels: Any) -> nn.Module:  # pyright: ignore
        return nn.Identity()

    encoding_discriminator = discriminator


METHODS: dict[str, type[Method]] = {**PLAIN, SearchMethod.kind: SearchMethod}
"""All methods by their `kind`."""
