"""Trainings of searched networks beside hand-made and random ones: the comparisons of CycleGANAS (docs/search.md).

    python -m benchmarks.studies.searches benchmarks/studies/searches/control.yaml --out runs/control
    python -m benchmarks.table runs/control psnr_object_db

A study is a YAML file with the words of a sweep's plan (docs/sweeps.md) and `searches`: fields of a search by dotted
name. A variant's `genotype` has

    from: NAME          the search; its space is that of a random genotype
    random: true        operations drawn from the trial's seed; nothing is searched
    match: own          as large as the generators that the variant has without a genotype
    hidden: N           or the width
    only: generators    the discriminators stay those of the variant
    only: sizes         each generator of the variant as large as the searched one, by its width alone

Every seed searches for itself. Runs are resumed by the same command. OUT/SET/searches has the searches, OUT/SET/trials
the trainings; scores and page are those of benchmarks/sets.py, whose flags hold.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.sets import arguments, compare, find_sets
from benchmarks.trainings import Training, train_all
from velogan.config import Config
from velogan.networks.cells import Kind, discriminator_kinds, generator_kinds, operation_names
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig
from velogan.networks.genotype import Genotype, read_genotype
from velogan.observe.progress import Display
from velogan.recipes import RECIPES, to_search
from velogan.sweep.dimensions import apply_settings, with_percent_checkpoints
from velogan.types import Direction


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    study = yaml.safe_load(args.plan.read_text(encoding="utf-8"))
    with Display() as display:
        trainings: list[Training] = []
        for name, path in find_sets(args).items():
            folder = args.out / name
            bases = {seed: base_config(study, path, seed, args) for seed in range(args.seeds or study.get("seeds", 1))}
            searches = [
                Training(name, search, seed, search_config(study, search, base), folder / "searches")
                for seed, base in bases.items()
                for search in study["searches"]
            ]
            for search, reason in train_all(searches, parallel=args.parallel, print_line=display.print_line).items():
                if reason:
                    raise SystemExit(f"{search.run}: {reason}")
            trainings += [
                Training(name, variant, seed, variant_config(study, variant, base, folder), folder / "trials")
                for seed, base in bases.items()
                for variant in study["variants"]
            ]
        return compare(trainings, args, display)


def base_config(study: Mapping[str, Any], path: str, seed: int, args: Any) -> Config:
    """Return what all trainings of a seed have in common."""
    base = RECIPES[study["presets"][0]]().change(**study.get("config", {}))
    side = args.image_size or study.get("image_size")
    data = {"path": (path,), **({"crop_size": side} if side else {})}
    length = f"{args.images or study['images']} images"
    return with_percent_checkpoints(base.change(data=data, train={"seed": seed, "length": length}))


def search_config(study: Mapping[str, Any], name: str, base: Config) -> Config:
    """Return the search called `name`."""
    return with_percent_checkpoints(apply_settings(to_search(base), study["searches"][name]))


def variant_config(study: Mapping[str, Any], variant: str, base: Config, folder: Path) -> Config:
    """Return the training of a variant, whose search has ended in `folder`."""
    fields = dict(study["variants"][variant])
    genotype = fields.pop("genotype", None)
    config = apply_settings(base, fields)
    if genotype is None:
        return config
    options: dict[str, Any] = {"from": genotype} if isinstance(genotype, str) else genotype
    search, seed = search_config(study, options["from"], base), base.train.seed
    run = Training(folder.name, options["from"], seed, search, folder / "searches").run
    chosen = random_genotype(search, seed) if options.get("random") else read_genotype(run / "genotype.json")
    if options.get("only") == "generators":
        chosen = chosen.model_copy(update={"discriminators": {}})
    match = config.generator if options.get("match") == "own" else None
    built = config.with_genotype(chosen, hidden=options.get("hidden"), match=match)
    return config.match_size_of(built) if options.get("only") == "sizes" else built


def random_genotype(search: Config, seed: int) -> Genotype:
    """Return a network that `search` might find, all equally likely."""
    spec, numbers = search.spec, random.Random(seed)
    width: int | None = search.method.model_dump().get("hidden")

    def draw(kinds: Sequence[Kind], section: GeneratorConfig | DiscriminatorConfig) -> tuple[str, ...]:
        return section.operations or tuple(numbers.choice(operation_names(kind, section.space)) for kind in kinds)

    generators: dict[Direction, tuple[str, ...]] = {}
    discriminators: dict[Direction, tuple[str, ...]] = {}
    for direction in search.method.directions:
        generator, discriminator = spec.generators[direction], spec.discriminators[direction]
        generators[direction] = draw(generator_kinds(generator.blocks, generator.space), generator)
        if discriminator.network == "cells":
            discriminators[direction] = draw(discriminator_kinds(discriminator.space), discriminator)
    return Genotype(
        space=spec.generators["a2b"].space,
        generators=generators,
        discriminators=discriminators,
        hidden=dict.fromkeys(generators, width) if width else {},
    )


if __name__ == "__main__":
    sys.exit(main())
