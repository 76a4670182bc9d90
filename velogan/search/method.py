"""Architecture search: a method on supernets, whose architecture weights are trained as well.

"CycleGANAS" (An and Joo 2023, section 3). Each network of cells becomes a supernet, and its architecture weights a
separate role, such as `arch_G_A` for `G_A`. The inner method defines the losses, the pools of fakes, and the networks
without cells or with configured operations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import nn

from velogan.methods import DEFAULT
from velogan.methods import METHODS as PLAIN_METHODS
from velogan.methods.base import InferenceGenerators, Method, Role, Spec
from velogan.methods.image_gan import sum_terms
from velogan.networks.build import NetworkFactory
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.genotype import Genotype
from velogan.objectives.base import HALVES, LossFunction, LossOutput, Objective, Phase, PhaseCache
from velogan.search.supernet import (
    SupernetFactory,
    SupernetWithArchitecture,
    attach_arch_parameters,
    derive,
    find_mixed_ops,
    is_searched,
    split_arch_parameters,
)
from velogan.types import GENERATOR_FILES, Batch, Decision, Direction, Letter, Nets, domains_of

ARCHITECTURE = "arch_"
"""Prefix of the role of a network's architecture weights, and of the phase that trains them."""

SEARCHABLE = [kind for kind, method in PLAIN_METHODS.items() if method.is_searchable]
"""Kinds of methods that a search can wrap."""


def _parse_inner(value: Any) -> Any:
    """Return the method that `value` names by kind, or by fields (`kind` is optional)."""
    if isinstance(value, Method):
        return value
    fields: Mapping[str, Any] = {"kind": value} if isinstance(value, str) else value
    kind = fields.get("kind", DEFAULT.kind) if isinstance(fields, Mapping) else value
    if kind not in SEARCHABLE:
        raise ValueError(f"inner={kind!s:.40} cannot be searched: choose {' or '.join(SEARCHABLE)}")
    return PLAIN_METHODS[kind].model_validate(fields)


class SearchMethod(Method):
    """An architecture search: the method `inner` with supernets as its networks."""

    kind = "searched"
    summary = "architecture search: another method on supernets, which choose their operations (velogan search)"

    inner: Annotated[SerializeAsAny[Method], BeforeValidator(_parse_inner)] = Field(
        default=DEFAULT, description="The method whose networks are searched, and its fields."
    )
    scheme: Literal["one-step", "two-step", "two-domains", "halves", "swapped-halves"] = Field(
        default="one-step",
        description="What trains the architecture weights. one-step: each phase, with its networks. two-step: a "
        "second set of phases on the same images. two-domains: as two-step, but the generators' weights are trained by "
        "the losses on images of A, and their architecture by those on B. halves: as two-step, but one half of the "
        "images trains the weights and the other the architecture. swapped-halves: as halves, exchanged in the middle "
        "of the run.",
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Feature maps of the encoding, H, of the generators that are built from the genotype, which are "
        "wider than supernets. Default: as configured in training.",
    )

    @property
    def directions(self) -> tuple[Direction, ...]:
        return self.inner.directions

    @property
    def fixed_size_fields(self) -> Mapping[str, str]:
        fields = self.inner.fixed_size_fields
        return {name.replace("method.", "method.inner."): value for name, value in fields.items()}

    def check(self, spec: Spec) -> None:
        self.inner.check(spec)
        if self.scheme == "two-domains" and not self.inner.splits_loss_by_domain:
            raise ValueError(
                "method.scheme=two-domains needs losses that depend on images of one domain, which "
                f"method.inner={self.inner.kind} does not have: set method.scheme=two-step"
            )
        for direction in self.directions:
            if (network := spec.generators[direction].network) != "cells":
                raise ValueError(
                    f"generator.network={network} has no operations to choose: use velogan search, or set "
                    "generator.network=cells"
                )
        sections = [*spec.generators.values(), *spec.discriminators.values()]
        if len(spaces := {section.space for section in sections if section.network == "cells"}) > 1:
            raise ValueError(
                f"generator.space and discriminator.space are {' and '.join(sorted(spaces))}, but a genotype has one "
                "space: set both to the same"
            )
        if not any(map(is_searched, sections)):
            raise ValueError("generator.operations and discriminator.operations leave nothing to search: omit one")

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        roles = self.inner.roles(spec, factory if isinstance(factory, SupernetFactory) else SupernetFactory())
        arch_roles: dict[str, Role] = {}
        for name, role in list(roles.items()):
            if find_mixed_ops(role.net):
                header = {"network": "architecture", "of": name} if role.header else None
                net = split_arch_parameters(role.net)
                arch_roles[ARCHITECTURE + name] = Role(net=net, header=header, is_averaged=role.is_averaged)
                roles[name] = replace(role, header={**role.header, "network": "supernet"} if role.header else None)
        return roles | arch_roles

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> SearchObjective:
        arch_roles = {name for name in self._meta_roles(spec) if name.startswith(ARCHITECTURE)}
        count = 1 if self.scheme == "one-step" else 2
        inner = [self.inner.objective(spec, shape=shape, batched=batched) for _ in range(count)]
        return SearchObjective(self, inner, arch_roles)

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        inner = self._attach_architecture(nets, spec)
        generators = {direction: SupernetWithArchitecture(net) for direction, net in inner.generators.items()}
        return replace(inner, generators=generators)

    def _attach_architecture(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        """Attach the architecture weights in `nets` to its supernets; return the inner method's generators."""
        for name, net in nets.items():
            if (architecture := nets.get(ARCHITECTURE + name)) is not None:
                attach_arch_parameters(net, architecture)  # pyright: ignore[reportArgumentType]
        return self.inner.inference_generators(nets, spec)

    def autoencoder_of(self, generator: nn.Module) -> nn.Module | None:
        return self.inner.autoencoder_of(generator)

    def decisions(self, spec: Spec) -> list[Decision]:
        return self.inner.decisions(spec)

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        headers = self.inner.headers(spec)
        return {direction: {**header, "network": "supernet"} for direction, header in headers.items()}

    def shares(self, nets: Nets, spec: Spec) -> dict[str, dict[str, dict[str, float]]]:
        """Return the operations' softmax weights, by network and mixed operation."""
        generators = self._attach_architecture(nets, spec).generators
        named_nets = {GENERATOR_FILES[direction]: net for direction, net in generators.items()}
        named_nets |= {name: nets[name] for name, role in self._meta_roles(spec).items() if role.header is not None}
        return {name: shares for name, net in named_nets.items() if (shares := _shares(net))}

    def genotype(self, nets: Nets, spec: Spec) -> Genotype:
        """Return the genotype with the operations that have the largest softmax weights."""
        generators: dict[Direction, tuple[str, ...]] = {
            direction: derive(net) if is_searched(config := spec.generators[direction]) else config.resolved_operations
            for direction, net in self._attach_architecture(nets, spec).generators.items()
        }
        return Genotype(
            space=spec.generators["a2b"].space,
            generators=generators,
            discriminators=self._derive_discriminators(nets, spec),
            hidden=dict.fromkeys(generators, self.hidden) if self.hidden else {},
        )

    def _derive_discriminators(self, nets: Nets, spec: Spec) -> dict[Direction, tuple[str, ...]]:
        """Return the discriminators' operations by direction.

        A discriminator of encodings lacks the first two operations; the genotype gets default operations for them.
        """
        operations: dict[Direction, tuple[str, ...]] = {}
        roles = {name: role for name, role in self._meta_roles(spec).items() if find_mixed_ops(role.net)}
        for direction in self.directions:
            config, (_, target) = spec.discriminators[direction], domains_of(direction)
            if config.operations:
                operations[direction] = config.resolved_operations
            elif derived := [derive(nets[name]) for name, role in roles.items() if role.real_domain == target]:
                default = config.resolved_operations
                operations[direction] = default[: len(default) - len(derived[0])] + derived[0]
        return operations

    def _meta_roles(self, spec: Spec) -> dict[str, Role]:
        """Return the roles with networks on the meta device."""
        with torch.device("meta"):
            return self.roles(spec, _PlaceholderFactory())


def _shares(net: nn.Module) -> dict[str, dict[str, float]]:
    with torch.no_grad():
        return {
            name: {operation: round(share, 6) for operation, share in zip(mixed.candidates, mixed.shares.tolist())}
            for name, mixed in find_mixed_ops(net).items()
        }


class SearchObjective:
    """The losses of the inner method; the same phases, or a second set, train the architecture weights.

    `inner`: one objective per set of phases, so that each set has its own state. `arch_roles`: the roles of
    architecture weights.
    """

    def __init__(self, config: SearchMethod, inner: Sequence[Objective], arch_roles: Collection[str]):
        self.config, self.inner = config, inner
        self.arch_roles = arch_roles
        self.swap_halves_at = 0.5 if config.scheme == "swapped-halves" else math.inf
        self.num_uniforms = dict(inner[0].num_uniforms)
        if config.scheme in ("halves", "swapped-halves"):
            self.num_uniforms = dict.fromkeys(HALVES, self.num_uniforms["train"])
        states = [objective.state for objective in inner]
        self.state: nn.Module = nn.ModuleDict(dict(zip(("weights", "architecture"), states)))

    def phases(self) -> list[Phase]:
        """Return the phases that train the networks, then any separate phases for their architecture weights."""
        phases = self.inner[0].phases()
        if self.config.scheme == "one-step":
            return [replace(phase, trains=(*phase.trains, *self._arch_roles_of(phase))) for phase in phases]
        arch_phases = [
            replace(phase, name=ARCHITECTURE + phase.name, trains=roles)
            for phase in self.inner[1].phases()
            if (roles := self._arch_roles_of(phase))
        ]
        if self.config.scheme == "two-domains":  # "w using A and alpha using B" (section 4.1)
            return [*self._restrict_to("A", phases), *self._restrict_to("B", arch_phases)]
        if self.config.scheme == "two-step":
            return [*phases, *arch_phases]
        first, second = HALVES
        return [
            *(replace(phase, split=first) for phase in phases),
            *(replace(phase, split=second) for phase in arch_phases),
        ]

    def _restrict_to(self, domain: Letter, phases: Sequence[Phase]) -> list[Phase]:
        """Return `phases` without the generators' loss terms on images of the other domain."""
        domain_of = self.config.inner.domain_of

        def restricted_loss(loss: LossFunction, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            out = loss(nets, batch, cache)
            terms = {name: term for name, term in out.terms.items() if domain_of(name) in (domain, None)}
            return replace(out, loss=sum_terms(terms), terms=terms)

        return [replace(phase, loss=partial(restricted_loss, phase.loss)) for phase in phases]

    def _arch_roles_of(self, phase: Phase) -> tuple[str, ...]:
        """Return the roles of architecture weights that belong to the networks that `phase` trains."""
        names = (ARCHITECTURE + name for name in phase.trains)
        return tuple(name for name in names if name in self.arch_roles)


class _PlaceholderFactory(SupernetFactory):
    """Builds placeholders for discriminators that are not searched, as their pretrained weights may be missing."""

    def discriminator(self, config: DiscriminatorConfig, *, in_channels: int) -> nn.Module:
        return super().discriminator(config, in_channels=in_channels) if is_searched(config) else nn.Identity()


METHODS: dict[str, type[Method]] = {**PLAIN_METHODS, SearchMethod.kind: SearchMethod}
"""All methods by their `kind`."""
