"""Scoring a run: its translations against the true ones if these are known, and against real pictures.

Every figure is reported together with those of real pictures and of doing nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from velogan import __version__
from velogan.config import Config, read_config
from velogan.data.sets.check import find_leaks
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import ImageSource, Sources, cache_directory, find_sources
from velogan.evaluation.features import (
    JUDGE,
    FeatureNetwork,
    Judge,
    fetch_inception,
    load_inception,
    load_lite,
)
from velogan.evaluation.pictures import Real, judged
from velogan.evaluation.scoring import Scorer, quiet
from velogan.files import did_you_mean, sha256, write_text
from velogan.methods.base import Spec
from velogan.methods.capabilities import HasAutoencoder, capability
from velogan.metrics.bootstrap import PROTOCOL
from velogan.metrics.figures import SLICED_PROTOCOL
from velogan.networks.pretrained import package
from velogan.report.scores import SAME_AS_LAST
from velogan.store.checkpoint import damage, find_checkpoint, imported, read_best, taken
from velogan.translate.model import CheckpointChoice, Translator, Weights, load_translator
from velogan.types import GENERATOR_FILES, Direction

Features = Literal["none"] | Judge
"""The EfficientNet-Lite that gives features."""


@dataclass(frozen=True)
class Candidate:
    """A translator that is scored: which weights of which checkpoint."""

    checkpoint: CheckpointChoice
    weights: Weights
    folder: Path


def evaluate(
    run: Path,
    *,
    data: Sequence[str] = (),
    features: Features = "none",
    inception: Path | Literal["auto"] | None = None,
    judges: Sequence[FeatureNetwork] = (),
    classes: Mapping[str, int] | None = None,
    checkpoint: CheckpointChoice | None = None,
    limit: int | None = None,
    fp32: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    task: Task | None = None,
) -> dict[str, Any]:
    """Score a run in all directions that it learned; write `RUN/scores.json` and return it: `protocol` and `scores`.

    It scores the last checkpoint, averaged and raw, and the best one if that is another, first of all where `translate`
    takes that by itself; `checkpoint` chooses one of them. Translations are computed as `translate` does it, or plainly
    in float32 if `fp32`.
    `data`: other data than the run's own: a folder with testA and testB, apples2oranges, or two folders of test
    pictures. Without test pictures, those held out for validation are scored, and without these training pictures:
    `split` of each score says which.
    `features`: the EfficientNet-Lite whose features give FID and KID and, with `classes` (ImageNet index by name), the
    share of each class. `inception`: the file with the standard weights for FID and KID, or auto to have it downloaded
    to the cache. `judges`: other feature networks, for the same figures over each.
    `limit`: at most so many test pictures of each domain, drawn by `seed`.
    Where the file cannot be written, `unwritten` of what is returned says why.
    Raises `ValueError` with the mend if the run, the data or a file is missing or unusable.
    """
    run, task = Path(run), task or quiet
    config = _config(run, data)
    check_asked(classes, features, judges, limit)
    folder = find_checkpoint(run, checkpoint or "last")  # imported weights may be of one direction
    ways: list[Direction] = [
        way for way in config.method.directions if (folder / f"{GENERATOR_FILES[way]}.safetensors").is_file()
    ]
    candidates, missing = _candidates(run, checkpoint, ways)
    cache = cache_directory(config.data)
    networks = [*load_networks(features, inception, cache, device=device, task=task), *judges]
    scorer = Scorer(config.data, networks, classes or {}, limit, seed, task)
    sources, trained = _sources(run, config, given=len(data) == 2, task=task)
    a, b = scorer.open(sources.a, sources.b), scorer.open(sources.b, sources.a)
    pairs: list[tuple[Direction, Real, Real]] = [("a2b", a, b), ("b2a", b, a)]
    scores: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    for direction, source, target in pairs:
        if direction not in ways:
            continue
        bounds = scorer.bounds(source, target)
        for candidate in candidates:
            translator = load_translator(
                candidate.folder, direction=direction, weights=candidate.weights, device=device, fast=not fp32
            )
            common = {"direction": direction, "weights": candidate.weights, "checkpoint": candidate.checkpoint}
            scores += [score | common for score in scorer.score(translator, source, target, bounds)]
            if owner := capability(config.method, HasAutoencoder):
                autoencoder = replace(translator, net=owner.autoencoder_of(translator.net))
                scores += [score | common for score in scorer.score_reconstruction(autoencoder, source)]
            records.append(_record(translator, common, target))
    protocol = {
        "run": str(run),
        "checkpoints": {candidate.checkpoint: candidate.folder.name for candidate in candidates},
        "best": missing or read_best(run),
        "taken": taken(run),
        "networks": records,
        "data": {
            "path": list(config.data.path),
            "preprocess": config.data.preprocess,
            "a": a.counts(),
            "b": b.counts(),
        },
        "duplicates": _duplicates(a, b, trained, task),
        "precision": "plain float32 (exact)" if fp32 else "as translate computes: see computed_in of networks",
        "pictures": "prepared as in training but without a random part; translations rounded to the target's depth",
        "real": "real pictures against other real ones: as good as can be expected",
        "baseline": "the input taken for its own translation",
        **how_measured(networks, limit, seed),
    }
    if warning := _taught_by(features, config.spec):
        protocol["judge"] = warning
    result = {"protocol": protocol, "scores": scores}
    try:
        write_text(run / "scores.json", json.dumps(result, indent=1, allow_nan=False))
    except OSError as error:  # hours of work are in `result`
        result["unwritten"] = str(error)
    return result


def check_asked(
    classes: Mapping[str, int] | None, features: Features, judges: Sequence[FeatureNetwork], limit: int | None
) -> None:
    """Raise `ValueError` with the mend for what cannot be scored."""
    if features not in (known := ("none", *get_args(Judge))):
        raise ValueError(f"features={features}: choose {', '.join(known)}{did_you_mean(features, known)}")
    if classes and not judges and features == "none":
        raise ValueError(
            f"classes={dict(classes)} needs a network that classifies: set features={JUDGE} ({package(JUDGE)})"
        )
    if limit is not None and limit < 2:
        raise ValueError(f"limit={limit} is too few pictures to score: give at least 2, or leave it out")


def load_networks(
    features: Features,
    inception: Path | Literal["auto"] | None,
    cache: Path,
    *,
    device: torch.device | str,
    task: Task,
) -> list[FeatureNetwork]:
    """The feature networks that were asked for; downloaded or converted weights are kept in `cache`/weights."""
    networks = []
    if features != "none":
        networks.append(load_lite(features, cache / "weights", device))
    if inception is not None:
        file = fetch_inception(cache / "weights", task=task) if inception == "auto" else Path(inception)
        networks.append(load_inception(file, device))
    return networks


def _taught_by(judge: Features, spec: Spec) -> str | None:
    """A warning where the judging network taught the run as well; None where another one judges."""
    teachers = {one.features for one in spec.discriminators.values() if "projected" in one.network}
    if judge not in teachers:
        return None
    others = " or ".join(one for one in get_args(Judge) if one not in teachers)
    return (
        f"the run's discriminators were trained on {judge}, which judges here too: its figures flatter the run; set "
        f"features to {others or 'none'}"
    )


def how_measured(networks: Sequence[FeatureNetwork], limit: int | None, seed: int) -> dict[str, Any]:
    """What the protocol says of figures, whatever they are of."""
    return {
        "limit": limit,
        "seed": seed,
        "sliced_wasserstein": SLICED_PROTOCOL,
        "bootstrap": PROTOCOL,
        "features": [network.record for network in networks],
        "velogan": __version__,
        "torch": torch.__version__,
    }


def _config(run: Path, data: Sequence[str]) -> Config:
    if not (run / "config.yaml").is_file():
        raise ValueError(
            f"{run} holds no config.yaml: name a run folder, as given to train as --out; to compare a folder of "
            "pictures with another, name that as --against"
        )
    config = read_config(run)
    if not data and imported(run):
        raise ValueError(f"{run} holds imported weights, and knows no pictures to judge them on: give --data")
    return config.change(data={"path": tuple(data)}) if data else config


def _sources(run: Path, config: Config, *, given: bool, task: Task) -> tuple[Sources, Mapping[str, ImageSource]]:
    """The pictures to judge on, and the training pictures by letter. `given`: two folders of test pictures."""
    sources = find_sources(config.data.model_copy(update={"validation": 0}) if given else config.data)
    if not given:
        return sources, {side.letter: side.train for side in (sources.a, sources.b)}
    a, b = (replace(side, test=side.train, train=side.train.some(())) for side in (sources.a, sources.b))
    try:
        own = find_sources(read_config(run).data, progress=task("finding training pictures"))
    except ValueError:  # the training pictures may be missing on this machine
        return Sources(a, b, aligned=False), {}
    return Sources(a, b, aligned=False), {side.letter: side.train for side in (own.a, own.b)}


def _candidates(
    run: Path, checkpoint: CheckpointChoice | None, ways: Sequence[Direction]
) -> tuple[list[Candidate], str | None]:
    """The translators to score, and why the best checkpoint is missing among them, or None."""
    if checkpoint is not None:
        folder = find_checkpoint(run, checkpoint)
        weights = _weights(folder, ways)
        return [Candidate(checkpoint, one, folder) for one in (weights[:1] if checkpoint == "best" else weights)], None
    last = find_checkpoint(run, "last")
    found = [Candidate("last", weights, last) for weights in _weights(last, ways)]
    try:
        best = find_checkpoint(run, "best")
    except ValueError:
        return found, "none was chosen"
    if best == last:
        return found, SAME_AS_LAST
    if broken := damage(best):
        return found, broken
    other = [Candidate("best", _weights(best, ways)[0], best)]
    return [*other, *found] if taken(run) == "best" else [*found, *other], None


def _weights(folder: Path, ways: Sequence[Direction]) -> Sequence[Weights]:
    averaged = all((folder / f"{GENERATOR_FILES[way]}.ema.safetensors").is_file() for way in ways)
    return ("ema", "raw") if averaged else ("raw",)


def _duplicates(a: Real, b: Real, trained: Mapping[str, ImageSource], task: Task) -> list[dict[str, Any]]:
    """Scored test or held-out pictures whose content training has seen too."""
    folders = {f"train{letter}": folder for letter, folder in trained.items()}
    for real in (a, b):
        split, whole = judged(real.side)
        if split != "train":
            folders[f"test{real.side.letter}"] = whole.named(real.names)
    if not any(key.startswith("test") for key in folders):
        return []
    return find_leaks(folders, progress=task("looking for duplicates"))


def _record(translator: Translator, common: Mapping[str, Any], target: Real) -> dict[str, Any]:
    assert translator.file is not None
    computed_in = str(translator.dtype(rounded=target.pictures.format.dtype == "uint8")).removeprefix("torch.")
    seen = translator.header.get("images_seen")
    return {**common, "sha256": sha256(translator.file), "images_seen": seen, "computed_in": computed_in}
