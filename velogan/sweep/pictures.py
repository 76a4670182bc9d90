"""Translate the same held-out images with the best run of each setting, to show what the scores mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from velogan.config import Config, read_config
from velogan.data.sets.cache import Domain
from velogan.data.sets.loader import crop_shape, normalize_batch
from velogan.data.sets.sources import find_sources
from velogan.engine.device import resolve_device
from velogan.evaluation.images import open_for_evaluation
from velogan.evaluation.samples import center_crop, evenly_spaced
from velogan.observe.samples import grid
from velogan.report.sweep_tables import MAX_SHOWN
from velogan.translate.model import CheckpointChoice, load_translator
from velogan.types import domains_of

MAX_IMAGES = 6

Pairs = dict[str, list[tuple[np.ndarray, np.ndarray]]]
"""Pairs of input and translation by direction, each image `(H, W, 3)` uint8."""


def held_out_pictures(
    result: Mapping[str, Any], *, print_line: Callable[[str], None], checkpoint: CheckpointChoice | None = "best"
) -> dict[str, dict[str, Any]]:
    """Return, by setting, its best `run` and `pairs`: held-out images, the same for all, with translations.

    The averaged generators of the run's `checkpoint` translate them. If a run has no held-out images or cannot
    translate them, `pairs` is empty and `print_line` gets the reason.
    """
    runs = _best_runs(result)
    opened: dict[str, tuple[Config, dict[str, Domain]]] = {}
    for setting, run in runs.items():
        try:
            opened[setting] = _open_run(run)
        except (ValueError, OSError) as error:
            print_line(f"{run}: no held-out images on the page ({error})")
    names = {letter: _common_names([domains[letter].names for _, domains in opened.values()]) for letter in "AB"}
    pictures: dict[str, dict[str, Any]] = {setting: {"run": str(run), "pairs": {}} for setting, run in runs.items()}
    for setting, (config, domains) in opened.items():
        try:
            pictures[setting]["pairs"] = _translate(runs[setting], config, domains, names, checkpoint)
        except (ValueError, OSError) as error:
            print_line(f"{runs[setting]}: its held-out images cannot be translated ({error})")
    return pictures


def _best_runs(result: Mapping[str, Any]) -> dict[str, Path]:
    """Return the best finished run by setting, best first, at most `MAX_SHOWN`; without scores, any finished run."""
    sign = -1 if result["better"] == "higher" else 1
    done = [trial for trial in result["trials"] if trial["status"] == "done"]
    done.sort(key=lambda trial: math.inf if trial["score"] is None else sign * trial["score"])
    runs: dict[str, Path] = {}
    for trial in done:
        runs.setdefault(trial["setting"], Path(trial["run"]))
    order = [*result["verdicts"]] or [*runs]
    return {setting: runs[setting] for setting in order[:MAX_SHOWN] if setting in runs}


def _open_run(run: Path) -> tuple[Config, dict[str, Domain]]:
    """Return the run's configuration and its held-out images by domain letter."""
    config = read_config(run)
    sources, domains = find_sources(config.data), {}
    for domain in (sources.a, sources.b):
        if domain.validation is None:
            raise ValueError(f"domain {domain.letter} has none")
        domains[domain.letter] = open_for_evaluation(domain.validation, domain, config.data)
    return config, domains


def _common_names(held_out: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of at most MAX_IMAGES images, evenly spaced among those that all runs hold out."""
    others = [set(names) for names in held_out[1:]]
    names = [name for name in (held_out[0] if held_out else []) if all(name in other for other in others)]
    return [names[index] for index in evenly_spaced(len(names), MAX_IMAGES)]


def _translate(
    run: Path,
    config: Config,
    domains: Mapping[str, Domain],
    names: Mapping[str, Sequence[str]],
    checkpoint: CheckpointChoice | None,
) -> Pairs:
    device, pairs = resolve_device(config.engine.device), Pairs()
    for direction in config.method.directions:
        translator = load_translator(run, direction=direction, checkpoint=checkpoint, device=device, fast=True)
        letter = domains_of(direction)[0]
        inputs = [_read_input(domains[letter], name, config) for name in names[letter]]
        pairs[direction] = [
            (grid(image[None]), grid(translator.translate_fast(image, rounded=True)[None])) for image in inputs
        ]
    return pairs


def _read_input(domain: Domain, name: str, config: Config) -> Tensor:
    """Return the center crop of an image in the size of training crops: `(1, C, h, w)` in [-1, 1]."""
    pixels = domain.image(domain.names.index(name))
    crop = np.ascontiguousarray(center_crop(pixels, crop_shape(config.data, pixels.shape)))
    return normalize_batch(torch.from_numpy(crop)[None], domain.format.range)
