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
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, field_validator
from torch import Tensor, nn

from velogan.methods import DEFAULT
from velogan.methods import METHODS as PLAIN
from velogan.methods.base import Make, Method, Role, Spec, Views, ends
from velogan.methods.capabilities import Choice, TakesTrained, ToldByDomain, TrainedGenerator, capability
from velogan.methods.judged import sum_of
from velogan.networks.build import Networks
from velogan.networks.cells import discriminator_kinds, hand_made
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype
from velogan.objectives.base import HALVES, Carry, Objective, Out, Phase
from velogan.search.budget import Budget, Fit, Limit, check
from velogan.search.supernet import (
    Architecture,
    Supernets,
    WithArchitecture,
    derive,
    give_architecture,
    mixtures,
    take_architecture,
)
from velogan.types import GENERATOR_FILES, Batch, Direction, Letter, Nets

ARCHITECTURE = "arch_"
"""Before the name of a role: that of its architecture weights. Before that of a phase: its twin, which trains them."""

BUDGET_WEIGHT = 10.0
"""Weight of log(expected cost / budget)^2 where a generator is dearer than its budget."""

Loss = Callable[[Nets, Batch, Carry], Out]


WRAPPED = [kind for kind, method in PLAIN.items() if method.of_cells]
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


class Searched(Method):
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
    patience: int = Field(
        default=0, ge=0, description="End the search when what is chosen has not changed for so many epochs; 0: never."
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Feature maps of the encoding, H, of the generators that are built of what is found, which have "
        "more than the supernets. None: as `budget` allows, or as training says.",
    )
    budget: str = Field(
        default="",
        description="The most that each generator may cost for a picture of the size that is trained on: 2GMAC, "
        "5Mparam, 20MB, or 30ms measured on this machine. Empty: no limit.",
    )

    @field_validator("budget")
    @classmethod
    def _budget_is_one(cls, budget: str) -> str:
        if budget:
            Budget.parse(budget)
        return budget

    @property
    def directions(self) -> tuple[Direction, ...]:
        return self.inner.directions

    @property
    def plateau_phase(self) -> str:
        return self.inner.plateau_phase

    @property
    def one_size(self) -> Mapping[str, str]:
        return {name.replace("method.", "method.inner."): mend for name, mend in self.inner.one_size.items()}

    def check(self, spec: Spec) -> None:
        self.inner.check(spec)
        if self.scheme == "two-domains" and capability(self.inner, ToldByDomain) is None:
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
        if self.budget and not all(map(_is_open, spec.generators.values())):
            raise ValueError(f"method.budget={self.budget} is for generators whose operations are open: leave one out")
        if not any(map(_is_open, sections)):
            raise ValueError(
                "generator.operations and discriminator.operations leave nothing to be chosen: leave one out"
            )

    def check_size(self, spec: Spec, shape: tuple[int, int]) -> None:
        if self.budget:
            check(**self._limited(spec, shape))

    def roles(self, spec: Spec, make: Make) -> dict[str, Role]:
        roles = self.inner.roles(spec, _Open(make))
        taken: dict[str, Role] = {}
        for name, role in list(roles.items()):
            if mixtures(role.net):
                architecture = take_architecture(role.net)
                header = {"network": "architecture", "of": name} if role.header else None
                taken[ARCHITECTURE + name] = Role(net=architecture, header=header, averaged=role.averaged)
                roles[name] = replace(role, header={**role.header, "network": "supernet"} if role.header else None)
        return roles | taken

    def take_trained(self, nets: Nets, load: Callable[[Path], TrainedGenerator]) -> None:
        def refuse(run: Path) -> TrainedGenerator:
            raise ValueError(f"{run} holds plain networks, whose weights do not fit supernets: search from the start")

        if inner := capability(self.inner, TakesTrained):
            inner.take_trained(nets, refuse)

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> SearchObjective:
        roles, count = self._look(spec), 1 if self.scheme == "one-step" else 2
        nets = {name: role.net for name, role in roles.items()}
        weights = {name for name, net in nets.items() if isinstance(net, Architecture)}
        inner = [self.inner.objective(spec, shape=shape, batched=batched) for _ in range(count)]
        limit = self._limit(spec, shape)
        if limit is None:
            return SearchObjective(self, inner, weights)
        parts = [mixed for net in self._inner_views(nets, spec).generators.values() for mixed in mixtures(net).values()]
        if len(set(parts)) < len(parts):
            raise ValueError(
                f"method.budget={self.budget} is for generators of their own, and these have parts in common: search "
                "for one direction, or leave it out"
            )
        whole = {name for name, role in roles.items() if role.header is None}

        def penalty(given: Nets) -> Tensor:
            theirs = {name: given[name] for name in weights}
            return BUDGET_WEIGHT * limit.penalty(self._inner_views({**nets, **theirs}, spec).generators)

        return SearchObjective(self, inner, weights, limit=limit, penalty=penalty, limited=whole & weights)

    def _limit(self, spec: Spec, shape: tuple[int, int]) -> Limit | None:
        """The budget; none where networks are only looked at, on tensors without contents."""
        if not self.budget or torch.get_default_device().type == "meta":
            return None
        return Limit(**self._limited(spec, shape))

    def _limited(self, spec: Spec, shape: tuple[int, int]) -> dict[str, Any]:
        """The budget and what it is for, as `networks.budget` takes it."""
        budget, device = Budget.parse(self.budget), torch.device("cuda" if torch.cuda.is_available() else "cpu")
        channels: dict[Direction, tuple[int, int]] = {}
        for way in self.directions:
            source, target = ends(way)
            channels[way] = spec.channels[source], spec.channels[target]
        return {
            "budget": budget,
            "generators": {way: spec.generators[way] for way in self.directions},
            "ends": channels,
            "side": max(shape),
            "hidden": self.hidden,
            "meter": budget.meter(device),
        }

    def views(self, nets: Nets, spec: Spec) -> Views:
        found = self._inner_views(nets, spec)
        return replace(found, generators={way: WithArchitecture(net) for way, net in found.generators.items()})

    def _inner_views(self, nets: Nets, spec: Spec) -> Views:
        """Over the architecture weights that belong to `nets`: an average has been copied apart from its own."""
        for name, net in nets.items():
            if (architecture := nets.get(ARCHITECTURE + name)) is not None:
                give_architecture(net, architecture)  # pyright: ignore[reportArgumentType]
        return self.inner.views(nets, spec)

    def headers(self, spec: Spec) -> dict[Direction, dict[str, Any]]:
        return {way: {**header, "network": "supernet"} for way, header in self.inner.headers(spec).items()}

    def choice(self, nets: Nets, spec: Spec, state: nn.Module) -> Choice:
        generators = self._inner_views(nets, spec).generators
        roles = self._look(spec)
        judges = {name: nets[name] for name, role in roles.items() if role.header is not None}
        supernets = {GENERATOR_FILES[way]: net for way, net in generators.items()} | judges
        supernets = {name: net for name, net in supernets.items() if mixtures(net)}
        limit, fitted = dict(state.named_children()).get("limit"), {}

        def built() -> dict[str, Any]:
            found = {way: self._operations(spec.generators[way], net) for way, net in generators.items()}
            if not isinstance(limit, Limit):
                return {"generators": found, "hidden": dict.fromkeys(found, self.hidden) if self.hidden else {}}
            key = repr([_shares(net) for net in generators.values()]) if self.hidden else repr(found)
            if key not in fitted:  # it takes a second; without a given width it changes with the operations alone
                fitted.clear()
                fitted[key] = limit.fit(generators)
            return _fitted(limit, fitted[key])

        return Choice(
            shares=lambda: {name: _shares(net) for name, net in supernets.items()},
            genotype=lambda: Genotype(
                space=spec.generators["a2b"].space,
                discriminators=self._judges(nets, spec, roles),
                **built(),
            ),
            roles=[name for name in nets if name.startswith(ARCHITECTURE)],
            patience=self.patience,
        )

    def _look(self, spec: Spec) -> dict[str, Role]:
        """The roles, with networks that hold nothing."""
        with torch.device("meta"):
            return self.roles(spec, _Light())

    def _operations(self, config: GeneratorConfig, net: nn.Module) -> tuple[str, ...]:
        return derive(net) if _is_open(config) else config.chosen

    def _judges(self, nets: Nets, spec: Spec, roles: Mapping[str, Role]) -> dict[Direction, tuple[str, ...]]:
        """The discriminators' operations by direction; those of images count, where encodings are judged too.

        One of encodings has not the first two operations, whose places hand-made ones take.
        """
        found: dict[Direction, tuple[str, ...]] = {}
        for way in self.directions:
            config, (_, target) = spec.discriminators[way], ends(way)
            judges = [name for name, role in roles.items() if role.judges == target and mixtures(role.net)]
            if config.operations:
                found[way] = config.chosen
            elif judges:
                chosen = max((derive(nets[name]) for name in judges), key=len)
                whole = hand_made(discriminator_kinds(config.space), space=config.space, discriminator=True)
                found[way] = whole[: len(whole) - len(chosen)] + chosen
        return found


def _is_open(config: GeneratorConfig | DiscriminatorConfig) -> bool:
    """Whether a network's operations are to be chosen."""
    return config.network == "cells" and not config.operations


def _shares(net: nn.Module) -> dict[str, dict[str, float]]:
    with torch.no_grad():
        return {
            name: dict(zip(mixed.candidates, mixed.alpha.softmax(0).tolist())) for name, mixed in mixtures(net).items()
        }


def _fitted(limit: Limit, fits: Mapping[Direction, Fit]) -> dict[str, Any]:
    """Generators that hold the budget, as fields of a genotype."""
    costs = {way: {"cost": limit.budget.text(fit.cost), "replaced": fit.replaced} for way, fit in fits.items()}
    return {
        "generators": {way: fit.operations for way, fit in fits.items()},
        "hidden": {way: fit.hidden for way, fit in fits.items()},
        "provenance": {"budget": str(limit.budget), "side": limit.side, "built": costs},
    }


class _Open(Networks):
    """Supernets in the place of networks whose operations are open; the others as `make` has them."""

    def __init__(self, make: Make):
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
    architecture weights. With a `limit` phases that train the `limited` of these roles have its `penalty`.
    """

    def __init__(
        self,
        config: Searched,
        inner: Sequence[Objective],
        weights: Collection[str],
        *,
        limit: Limit | None = None,
        penalty: Callable[[Nets], Tensor] | None = None,
        limited: Collection[str] = (),
    ):
        self.config, self.inner, self.weights = config, inner, weights
        self.penalty, self.limited = penalty, limited
        self.draws = dict(inner[0].draws)
        if len(inner) > 1 and list(self.draws) != ["train"]:
            raise ValueError(
                f"method.scheme={config.scheme} decides which pictures train what, and so does method.inner: set "
                "method.scheme=one-step"
            )
        self.swaps_at = 0.5 if config.scheme == "swapped-halves" else math.inf
        if config.scheme in ("halves", "swapped-halves"):
            self.draws = dict.fromkeys(HALVES, self.draws["train"])
        self.state: nn.Module = nn.ModuleDict(dict(zip(("weights", "architecture"), (one.state for one in inner))))
        if limit is not None:
            self.state.add_module("limit", limit)

    def phases(self) -> list[Phase]:
        """Those of the networks, then those of their architecture."""
        plain = self.inner[0].phases()
        if len(self.inner) == 1:
            return [self._training(phase, (*phase.trains, *self._searched(phase))) for phase in plain]
        searched = [phase for phase in self.inner[1].phases() if self._searched(phase)]
        if self.config.scheme == "two-domains":  # "w using A and alpha using B" (section 4.1)
            plain, searched = self._of("A", plain), self._of("B", searched)
        first = [self._training(phase, phase.trains) for phase in plain]
        twins = [self._twin(phase) for phase in searched]
        if len(self.draws) == 1:
            return [*first, *twins]
        return [*_on(HALVES[0], first), *_on(HALVES[1], twins)]

    def _of(self, domain: Letter, phases: Sequence[Phase]) -> list[Phase]:
        """`phases` without the terms of the other domain's pictures; a discriminator needs both, and keeps its own."""
        told = capability(self.config.inner, ToldByDomain)
        assert told is not None

        def part(loss: Loss, nets: Nets, batch: Batch, carry: Carry) -> Out:
            out = loss(nets, batch, carry)
            terms = {name: term for name, term in out.terms.items() if told.domain_of(name) in (domain, None)}
            return replace(out, total=sum_of(terms), terms=terms)

        return [replace(phase, loss=partial(part, phase.loss)) for phase in phases]

    def _twin(self, phase: Phase) -> Phase:
        return replace(self._training(phase, self._searched(phase)), name=ARCHITECTURE + phase.name)

    def _training(self, phase: Phase, roles: tuple[str, ...]) -> Phase:
        """`phase`, training these roles."""
        limits = self.penalty is not None and not set(roles).isdisjoint(self.limited)
        return replace(phase, trains=roles, loss=self._with_penalty(phase.loss) if limits else phase.loss)

    def _with_penalty(self, loss: Loss) -> Loss:
        def limited(nets: Nets, batch: Batch, carry: Carry) -> Out:
            assert self.penalty is not None
            out, excess = loss(nets, batch, carry), self.penalty(nets)
            return replace(out, total=out.total + excess, terms={**out.terms, "budget": excess})

        return limited

    def _searched(self, phase: Phase) -> tuple[str, ...]:
        """The roles of the architecture weights of the networks that `phase` trains."""
        names = (ARCHITECTURE + name for name in phase.trains)
        return tuple(name for name in names if name in self.weights)


def _on(split: str, phases: Sequence[Phase]) -> list[Phase]:
    return [replace(phase, split=split) for phase in phases]


class _Light(Networks):
    """For a look at the roles: discriminators that are not searched may have trained features to load."""

    def discriminator(self, config: DiscriminatorConfig, **channels: Any) -> nn.Module:  # pyright: ignore
        return nn.Identity()

    encoding_discriminator = discriminator


METHODS: dict[str, type[Method]] = {**PLAIN, Searched.kind: Searched}
"""All methods by their `kind`."""
