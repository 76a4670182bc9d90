"""Held-out pictures through the best run of each setting, to see what the scores tell."""

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
from velogan.data.sets.loader import normalize_batch, window
from velogan.data.sets.sources import find_sources
from velogan.engine.device import resolve_device
from velogan.evaluation.images import open_for_evaluation
from velogan.evaluation.samples import center_crop, evenly_spaced
from velogan.observe.samples import grid
from velogan.report.sweep_tables import MAX_SHOWN
from velogan.translate.model import CheckpointChoice, load_translator
from velogan.types import domains_of

MOST_PICTURES = 6

Pairs = dict[str, list[tuple[np.ndarray, np.ndarray]]]
"""By direction: input and translation, `(H, W, 3)` uint8."""


def held_out_pictures(
    found: Mapping[str, Any], *, print_line: Callable[[str], None], checkpoint: CheckpointChoice | None = "best"
) -> dict[str, dict[str, Any]]:
    """The same held-out pictures by the best run of each of the best settings: its `run` and its `pairs`, by setting.

    They are translated by the averaged generators of the run's `checkpoint`, as `load_translator` takes it. `pairs` is
    empty where a run has no held-out pictures or they cannot be translated; `print_line` gets the reason.
    """
    runs = _best_runs(found)
    opened: dict[str, tuple[Config, dict[str, Domain]]] = {}
    for name, run in runs.items():
        try:
            opened[name] = _open(run)
        except (ValueError, OSError) as error:
            print_line(f"{run}: no held-out pictures on the page ({error})")
    names = {letter: _shared([domains[letter].names for _, domains in opened.values()]) for letter in "AB"}
    pictures: dict[str, dict[str, Any]] = {name: {"run": str(run), "pairs": {}} for name, run in runs.items()}
    for name, (config, domains) in opened.items():
        try:
            pictures[name]["pairs"] = _pairs(runs[name], config, domains, names, checkpoint)
        except (ValueError, OSError) as error:
            print_line(f"{runs[name]}: its held-out pictures cannot be translated ({error})")
    return pictures


def _best_runs(found: Mapping[str, Any]) -> dict[str, Path]:
    """By setting, the best first, its best finished run; any of them where there are no scores."""
    sign = -1 if found["better"] == "higher" else 1
    done = [one for one in found["trials"] if one["status"] == "done"]
    done.sort(key=lambda one: math.inf if one["score"] is None else sign * one["score"])
    runs: dict[str, Path] = {}
    for one in done:
        runs.setdefault(one["setting"], Path(one["run"]))
    order = [*found["verdicts"]] or [*runs]
    return {name: runs[name] for name in order[:MAX_SHOWN] if name in runs}


def _open(run: Path) -> tuple[Config, dict[str, Domain]]:
    """The run's configuration and its held-out pictures by letter."""
    config = read_config(run)
    sources, domains = find_sources(config.data), {}
    for side in (sources.a, sources.b):
        if side.validation is None:
            raise ValueError(f"domain {side.letter} holds none out")
        domains[side.letter] = open_for_evaluation(side.validation, side, config.data)
    return config, domains


def _shared(held_out: Sequence[Sequence[str]]) -> list[str]:
    """Names of an evenly spaced choice of the pictures that all runs hold out."""
    others = [set(names) for names in held_out[1:]]
    names = [name for name in (held_out[0] if held_out else []) if all(name in other for other in others)]
    return [names[place] for place in evenly_spaced(len(names), MOST_PICTURES)]


def _pairs(
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
        inputs = [_input(domains[letter], name, config) for name in names[letter]]
        pairs[direction] = [
            (grid(one[None]), grid(translator.translate_fast(one, rounded=True)[None])) for one in inputs
        ]
    return pairs


def _input(domain: Domain, name: str, config: Config) -> Tensor:
    """The center crop of a picture, as large as training sees it: `(1, C, h, w)` in [-1, 1]."""
    pixels = domain.image(domain.names.index(name))
    cut = np.ascontiguousarray(center_crop(pixels, window(config.data, pixels.shape)))
    return normalize_batch(torch.from_numpy(cut)[None], domain.format.range)
