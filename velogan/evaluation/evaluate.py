"""Scores of a run: its translations, compared with true translations if known, and with real images.

Every metric is reported together with its values for real images and for the unchanged input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from velogan.config import Config, read_config
from velogan.data.sets.check import find_leaks
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import ImageSource, Sources, cache_directory, find_sources
from velogan.evaluation.features import JUDGE, FeatureNetwork, Judge, fetch_inception, load_inception, load_lite
from velogan.evaluation.images import DomainImages, scoring_split
from velogan.evaluation.scoring import Scorer, no_progress
from velogan.files import __version__, did_you_mean, sha256, write_text
from velogan.methods.base import Spec
from velogan.metrics.bootstrap import PROTOCOL
from velogan.metrics.registry import SLICED_PROTOCOL
from velogan.networks.pretrained import install_command
from velogan.report.scores import SAME_AS_LAST
from velogan.store.checkpoint import default_checkpoint, find_checkpoint, find_corruption, is_imported, read_best
from velogan.translate.model import CheckpointChoice, Translator, Weights, load_translator
from velogan.types import GENERATOR_FILES, Direction

FeatureChoice = Literal["none"] | Judge
"""The EfficientNet-Lite that extracts features, or none."""


@dataclass(frozen=True)
class Candidate:
    """A translator to score, by its `weights` and `checkpoint`; `folder` contains the files of the checkpoint."""

    checkpoint: CheckpointChoice
    weights: Weights
    folder: Path


def evaluate(
    run: Path,
    *,
    data: Sequence[str] = (),
    features: FeatureChoice = "none",
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

    Scores the last checkpoint (EMA and raw weights) and, if different, the best one, which comes first if `translate`
    uses it by default.

    `data`: data to use instead of the run's own: a folder with testA and testB, apples2oranges, or two folders of test
        pictures. Without test pictures, held-out training pictures are scored, or else training pictures; the key
        `split` of each score says which.
    `features`: the EfficientNet-Lite for Fréchet and kernel distance and, with `classes`, class shares. Default: none.
    `inception`: file with the standard weights for published FID and KID, or auto to download it to the cache.
    `judges`: additional feature networks; the same metrics are computed over each.
    `classes`: ImageNet index by name.
    `checkpoint`: score only the last or the best checkpoint.
    `limit`: maximum number of test pictures of each domain, drawn by `seed`. Default: all.
    `fp32`: compute translations in float32 by the plain network, not the accelerated one that `translate` uses.

    If scores.json cannot be written, the key `unwritten` of the result says why. Scores on other `data` do not replace
    saved scores on the run's own data: the key `unsaved` says so.
    Raises ValueError with a hint if the run, the data or a file is missing or unusable.
    """
    run, task = Path(run), task or no_progress
    config = _read_config(run, data)
    check_arguments(classes, features, judges, limit)
    folder = find_checkpoint(run, checkpoint or "last")  # imported weights may have only one direction
    directions: list[Direction] = [
        direction
        for direction in config.method.directions
        if (folder / f"{GENERATOR_FILES[direction]}.safetensors").is_file()
    ]
    candidates, no_best_reason = _find_candidates(run, checkpoint, directions)
    cache = cache_directory(config.data)
    networks = [*load_networks(features, inception, cache, device=device, task=task), *judges]
    scorer = Scorer(config.data, networks, classes or {}, limit, seed, task)
    sources, train_images = _find_images(run, config, is_test_folders=len(data) == 2, task=task)
    a, b = scorer.load(sources.a, sources.b), scorer.load(sources.b, sources.a)
    domains: list[tuple[Direction, DomainImages, DomainImages]] = [("a2b", a, b), ("b2a", b, a)]
    scores: list[dict[str, Any]] = []
    descriptions: list[dict[str, Any]] = []
    for direction, source, target in domains:
        if direction not in directions:
            continue
        references = scorer.reference_scores(source, target)
        for candidate in candidates:
            translator = load_translator(
                candidate.folder, direction=direction, weights=candidate.weights, device=device, fast=not fp32
            )
            common = {"direction": direction, "weights": candidate.weights, "checkpoint": candidate.checkpoint}
            scores += [score | common for score in scorer.score(translator, source, target, references)]
            if (autoencoder := config.method.autoencoder_of(translator.net)) is not None:
                reconstructor = replace(translator, net=autoencoder)
                scores += [score | common for score in scorer.score_reconstruction(reconstructor, source)]
            descriptions.append(_describe_network(translator, target) | common)
    protocol = {
        "run": str(run),
        "checkpoints": {candidate.checkpoint: candidate.folder.name for candidate in candidates},
        "best": no_best_reason or read_best(run),
        "default_checkpoint": default_checkpoint(run),
        "networks": descriptions,
        "data": {
            "path": list(config.data.path),
            "preprocess": config.data.preprocess,
            "a": a.describe(),
            "b": b.describe(),
        },
        "duplicates": _find_duplicates(a, b, train_images, task),
        "precision": "plain float32 (exact)" if fp32 else "as translate computes: see computed_in of networks",
        "pictures": "preprocessed as in training, not augmented; translations rounded to the target's depth",
        "real": "real pictures compared with other real ones: the best to expect (layout and retrieval: chance)",
        "baseline": "the input in place of its translation",
        **measurement_protocol(networks, limit, seed),
    }
    if warning := judge_bias_warning(features, config.spec):
        protocol["judge"] = warning
    result = {"protocol": protocol, "scores": scores}
    file = run / "scores.json"
    if data and _has_scores_on(file, read_config(run)):
        result["unsaved"] = f"{file} keeps the scores of the run's own data: these are not saved"
        return result
    try:
        write_text(file, json.dumps(result, indent=1, allow_nan=False))
    except OSError as error:  # hours of work are in `result`
        result["unwritten"] = str(error)
    return result


def check_arguments(
    classes: Mapping[str, int] | None, features: FeatureChoice, judges: Sequence[FeatureNetwork], limit: int | None
) -> None:
    """Raise ValueError with a hint if the arguments of `evaluate` or `compare` are invalid."""
    if features not in (known := ("none", *get_args(Judge))):
        raise ValueError(f"features={features}: choose {', '.join(known)}{did_you_mean(features, known)}")
    if classes and not judges and features == "none":
        raise ValueError(
            f"classes={dict(classes)}: needs a classifier; set features={JUDGE} ({install_command(JUDGE)})"
        )
    if limit is not None and limit < 2:
        raise ValueError(f"limit={limit}: too few pictures to score; set at least 2, or omit it")


def load_networks(
    features: FeatureChoice,
    inception: Path | Literal["auto"] | None,
    cache: Path,
    *,
    device: torch.device | str,
    task: Task,
) -> list[FeatureNetwork]:
    """Load the requested feature networks; downloaded weights are cached in `cache`/weights."""
    networks = []
    if features != "none":
        networks.append(load_lite(features, device))
    if inception is not None:
        file = fetch_inception(cache / "weights", task=task) if inception == "auto" else Path(inception)
        networks.append(load_inception(file, device))
    return networks


def judge_bias_warning(judge: FeatureChoice, spec: Spec) -> str | None:
    """Return a warning if discriminators of the run were trained on the features of the judge, else None."""
    used = {config.features for config in spec.discriminators.values() if "projected" in config.network}
    if judge not in used:
        return None
    unused = " or ".join(name for name in get_args(Judge) if name not in used)
    return (
        f"the run's discriminators were trained on features of {judge}, so scores over {judge} are too good; set "
        f"features to {unused or 'none'}"
    )


def measurement_protocol(networks: Sequence[FeatureNetwork], limit: int | None, seed: int) -> dict[str, Any]:
    """Return the part of the protocol that `evaluate` and `compare` share."""
    return {
        "limit": limit,
        "seed": seed,
        "sliced_wasserstein": SLICED_PROTOCOL,
        "bootstrap": PROTOCOL,
        "features": [network.record for network in networks],
        "velogan": __version__,
        "torch": torch.__version__,
    }


def _read_config(run: Path, data: Sequence[str]) -> Config:
    """Read the configuration of a run, with `data` in place of its own if not empty. Raises ValueError if unusable."""
    if not (run / "config.yaml").is_file():
        raise ValueError(
            f"{run} contains no config.yaml; name a run folder, as given to train as --out; to compare a folder of "
            "pictures with another, name that as --against"
        )
    config = read_config(run)
    if not data and is_imported(run):
        raise ValueError(f"{run} contains imported weights and no data to score them on; set --data")
    return config.change(data={"path": tuple(data)}) if data else config


def _has_scores_on(file: Path, config: Config) -> bool:
    """Return whether `file` contains scores on the data that `config` names."""
    try:
        return json.loads(file.read_text())["protocol"]["data"]["path"] == list(config.data.path)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _find_images(
    run: Path, config: Config, *, is_test_folders: bool, task: Task
) -> tuple[Sources, Mapping[str, ImageSource]]:
    """Return the images to score on, and the training images by domain letter.

    `is_test_folders`: the data of `config` is two folders of test images.
    """
    sources = find_sources(
        config.data.model_copy(update={"validation": 0, "group": None}) if is_test_folders else config.data
    )
    if not is_test_folders:
        return sources, {domain.letter: domain.train for domain in (sources.a, sources.b)}
    a, b = (replace(domain, test=domain.train, train=domain.train.select(())) for domain in (sources.a, sources.b))
    try:
        trained_on = find_sources(read_config(run).data, progress=task("finding training pictures"))
    except ValueError:  # the training pictures may be missing on this machine
        return Sources(a, b, aligned=False), {}
    return Sources(a, b, aligned=False), {domain.letter: domain.train for domain in (trained_on.a, trained_on.b)}


def _find_candidates(
    run: Path, checkpoint: CheckpointChoice | None, directions: Sequence[Direction]
) -> tuple[list[Candidate], str | None]:
    """Return the translators to score, and the reason why the best checkpoint, though requested, is not among them."""
    if checkpoint is not None:
        folder = find_checkpoint(run, checkpoint)
        kinds = _available_weights(folder, directions)
        return [Candidate(checkpoint, kind, folder) for kind in (kinds[:1] if checkpoint == "best" else kinds)], None
    last = find_checkpoint(run, "last")
    candidates = [Candidate("last", weights, last) for weights in _available_weights(last, directions)]
    try:
        best = find_checkpoint(run, "best")
    except ValueError:
        return candidates, "none was chosen"
    if best == last:
        return candidates, SAME_AS_LAST
    if corruption := find_corruption(best):
        return candidates, corruption
    best_candidate = Candidate("best", _available_weights(best, directions)[0], best)
    return [best_candidate, *candidates] if default_checkpoint(run) == "best" else [*candidates, best_candidate], None


def _available_weights(folder: Path, directions: Sequence[Direction]) -> Sequence[Weights]:
    has_ema = all((folder / f"{GENERATOR_FILES[direction]}.ema.safetensors").is_file() for direction in directions)
    return ("ema", "raw") if has_ema else ("raw",)


def _find_duplicates(
    a: DomainImages, b: DomainImages, train_images: Mapping[str, ImageSource], task: Task
) -> list[dict[str, Any]]:
    """Find scored test or held-out images that equal a training image, exactly or nearly."""
    folders = {f"train{letter}": source for letter, source in train_images.items()}
    for images in (a, b):
        split, source = scoring_split(images.domain)
        if split != "train":
            folders[f"test{images.domain.letter}"] = source.select_names(images.names)
    if not any(key.startswith("test") for key in folders):
        return []
    return find_leaks(folders, progress=task("searching for duplicates"))


def _describe_network(translator: Translator, target: DomainImages) -> dict[str, Any]:
    """Return the entry of a translator in the protocol's list `networks`."""
    assert translator.file is not None
    dtype = translator.dtype(rounded=target.images.format.dtype == "uint8")
    return {
        "sha256": sha256(translator.file),
        "images_seen": translator.header.get("images_seen"),
        "computed_in": str(dtype).removeprefix("torch."),
    }
