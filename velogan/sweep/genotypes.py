"""Variants whose networks a search finds before they are trained, or that are drawn at random from its space.

DIR/searches/NAME,seed=0         run folder of a search; trials of one seed share it
DIR/searches/NAME,seed=0.json    what it has found, once it has ended
DIR/searches/NAME,seed=0.lock    whoever holds it searches, and others wait
"""

from __future__ import annotations

import fcntl
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from velogan.config import Config, explain, field_names, read_config
from velogan.files import nearest, write_text
from velogan.networks.cells import Kind, choices, discriminator_kinds, generator_kinds
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype, read_genotype
from velogan.networks.sizes import reference
from velogan.observe.progress import Display
from velogan.recipes import to_search
from velogan.search.recorder import GENOTYPE
from velogan.sweep.dimensions import changed, scored_at_shares
from velogan.sweep.folder import saved
from velogan.training.run import train
from velogan.training.session import Session
from velogan.types import Direction

OWN = "own"
"""`match`: as large as the generators that a variant has without a genotype."""


class How(BaseModel):
    """How networks are built of what a search has found, as `velogan train --genotype` does it.

    `random` are other operations in their place: of the same space, drawn from the trial's seed. `hidden` and `match`
    are the width, or the size that is to be met; without them it is as the search says. `only` the `generators` are
    taken, and discriminators stay as they are; or only their `sizes`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    random: bool = False
    hidden: int | None = Field(default=None, ge=1, le=4096)
    match: str | None = None
    only: Literal["generators", "sizes"] | None = None

    @model_validator(mode="after")
    def _one_width(self) -> How:
        if self.hidden is not None and self.match is not None:
            raise ValueError(f"hidden {self.hidden} and match {self.match} contradict each other: give one of the two")
        if self.match is not None and self.match != OWN:
            try:
                reference(self.match)
            except ValueError:
                raise ValueError(
                    f"match={self.match:.40}: write own, for the size that this variant has without a genotype, or C "
                    "and the width of a ResNet-9, for example C64"
                ) from None
        return self


class Source(BaseModel):
    """Where a variant's networks come from: the search called `name`, which has a seed of its own if it is `seeded`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    search: Config
    seeded: bool = False
    how: How = How()

    def of(self, seed: int) -> Source:
        """That of the trials with this seed."""
        return self if self.seeded else self.model_copy(update={"search": self.search.change(train={"seed": seed})})

    def folder(self, out: Path) -> Path:
        """The run folder of the search, in the sweep in `out`."""
        return out / "searches" / f"{self.name},seed={self.search.train.seed}"

    def found(self, out: Path) -> Genotype | None:
        """What the search has found, if it has ended."""
        return read_genotype(self._file(out)) if self._file(out).exists() else None

    def drawn(self, seed: int) -> Genotype:
        """Operations at random, all equally likely: a network that the search might have found."""
        spec, numbers = self.search.spec, random.Random(seed)
        width: int | None = self.search.method.model_dump().get("hidden")

        def draw(kinds: Sequence[Kind], one: GeneratorConfig | DiscriminatorConfig) -> tuple[str, ...]:
            return one.operations or tuple(numbers.choice(choices(kind, one.space)) for kind in kinds)

        generators: dict[Direction, tuple[str, ...]] = {}
        discriminators: dict[Direction, tuple[str, ...]] = {}
        for way in self.search.method.directions:
            one, judge = spec.generators[way], spec.discriminators[way]
            generators[way] = draw(generator_kinds(one.blocks, one.space), one)
            if judge.network == "cells":
                discriminators[way] = draw(discriminator_kinds(judge.space), judge)
        return Genotype(
            space=spec.generators["a2b"].space,
            generators=generators,
            discriminators=discriminators,
            hidden=dict.fromkeys(generators, width) if width else {},
        )

    def built(self, config: Config, genotype: Genotype) -> Config:
        """`config` with its networks. ValueError where they cannot have the size that is asked for."""
        if self.how.only == "generators":
            genotype = genotype.model_copy(update={"discriminators": {}})
        match = config.generator if self.how.match == OWN else self.how.match
        found = config.built_from(genotype, hidden=self.how.hidden, match=match)
        return config.scaled_to(found) if self.how.only == "sizes" else found

    def find(self, out: Path, *, threads: int | None, display: Display, origin: Mapping[str, Any]) -> Genotype | None:
        """What the search finds: it is run, or goes on, unless it has ended; None if it was stopped.

        Where another process runs it, this one waits.
        """
        folder = self.folder(out)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := self.found(out)) is not None:
                return found
            config = self.search.change(engine={"threads": threads})
            if not train(config, folder, display=display, origin=origin).finished:
                return None
            write_text(self._file(out), (folder / GENOTYPE).read_text(encoding="utf-8"))
            return self.found(out)

    def seconds(self, out: Path) -> float:
        """What the search has taken, on its training clock."""
        return saved(self.folder(out))[1]

    def check(self, out: Path) -> None:
        """ValueError where the search's folder holds another one, or a shorter or longer one that has ended."""
        folder = self.folder(out)
        Session.open(folder, self.search, say=lambda text: None)
        if self._file(out).exists() and (folder / "config.yaml").exists():
            was, wanted = read_config(folder).train.length, self.search.train.length
            if was != wanted:
                raise ValueError(f"the search in {folder} has ended after {was}, and train.length is {wanted} now")

    def _file(self, out: Path) -> Path:
        return Path(f"{self.folder(out)}.json")


def make_search(name: str, fields: Mapping[str, Any], base: Config) -> Config:
    """The search of a plan file, from its fields by dotted name. ValueError names the one that does not fit."""
    place = f"searches.{name}"
    for field in fields:
        if field not in (known := field_names(Config)):
            raise ValueError(f"{place}: there is no such field as {field}{nearest(field, known)}")
    if "train.length" not in fields:
        raise ValueError(f"{place}: how long is the search? give it a train.length, for example 1000 images")
    try:
        return scored_at_shares(changed(to_search(base), fields))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def make_source(variant: str, given: Any, searches: Mapping[str, Source]) -> Source:
    """From a variant's `genotype`: the name of a search, or a mapping with `from` and what `How` has."""
    place, asked = f"variants.{variant}.genotype", {"from": given} if isinstance(given, str) else given
    if not isinstance(asked, Mapping):
        raise ValueError(f"{place}: {given!r:.40} is no genotype: name one of searches:, or write {{from: NAME}}")
    name = str(asked.get("from", ""))
    if name not in searches:
        known = f"there are {', '.join(searches)}" if searches else "there are none, name them under searches:"
        raise ValueError(f"{place}: from={name!r:.40} is no search{nearest(name, searches)}; {known}")
    try:
        how = How.model_validate({key: value for key, value in asked.items() if key != "from"})
    except ValidationError as error:
        raise ValueError(explain(error, source=place)) from None
    return searches[name].model_copy(update={"how": how})
