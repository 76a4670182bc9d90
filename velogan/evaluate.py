"""Scoring a run: its translations against the truth where that is known, and against real pictures.

Beside every figure stand its floor and its ceiling, as `FLOOR` and `CEILING` say.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from velogan import __version__
from velogan.config import read_config
from velogan.data.config import DataConfig
from velogan.data.sources import find_sources
from velogan.deploy.model import Direction, Translator, Weights, Which, load_translator
from velogan.engine.checkpoint import find_checkpoint, write_text
from velogan.metrics.figures import SUBSETS
from velogan.metrics.squeezenet import RESIZE, SqueezeNet
from velogan.scoring import Real, Scorer, Task

FLOOR = "what real pictures score against other real pictures: as good as can be expected"
CEILING = "what doing nothing scores: the input taken for its own translation"


def evaluate(
    run: Path,
    *,
    data: str | None = None,
    squeezenet: Path | None = None,
    classes: Mapping[str, int] | None = None,
    checkpoint: Which = "last",
    both_weights: bool = False,
    limit: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    task: Task | None = None,
) -> dict[str, Any]:
    """Score both directions of a run; write `RUN/scores.json` and return it: `protocol` and `scores`.

    `data`: a folder other than the run's own, or apples2oranges. `squeezenet`: the file with the weights of
    SqueezeNet v1.0, for squeeze-FID, squeeze-KID and, with `classes` (ImageNet index by name), the share
    classified so. `both_weights`: the raw weights beside their moving average. `limit`: at most so many test
    pictures of each domain, drawn by `seed`.
    Raises `ValueError` with the mend where the run, the data or the file is missing or something else.
    """
    run = Path(run)
    if classes and squeezenet is None:
        raise ValueError(f"classes={dict(classes)} needs a network that classifies: give its file as squeezenet")
    if limit is not None and limit < 2:
        raise ValueError(f"limit={limit} is too few pictures to score: give at least 2, or leave it out")
    config = _data_config(run, data)
    folder = find_checkpoint(run, checkpoint)
    net = None if squeezenet is None else _load_squeezenet(Path(squeezenet)).to(device)
    scorer = Scorer(config, net, classes or {}, limit, seed, task or (lambda _name: lambda _done, _total: None))
    sources = find_sources(config, progress=scorer.task("finding pictures"))
    a, b = scorer.open(sources.a), scorer.open(sources.b)
    pairs: list[tuple[Direction, Real, Real]] = [("a2b", a, b), ("b2a", b, a)]
    scores: list[dict[str, Any]] = []
    networks: list[dict[str, Any]] = []
    for direction, source, target in pairs:
        bounds = scorer.bounds(source, target)
        for weights in _weights(folder, direction, both=both_weights):
            translator = load_translator(folder, direction=direction, weights=weights, device=device)
            common = {"direction": direction, "weights": weights, "checkpoint": checkpoint}
            scores += [score | common for score in scorer.score(translator, source, target, bounds)]
            networks.append(_record(translator, direction, weights))
    protocol = {
        "velogan": __version__,
        "run": str(run),
        "checkpoint": folder.name,
        "networks": networks,
        "data": {
            "path": list(config.path),
            "preprocess": config.preprocess,
            "a": a.counts(),
            "b": b.counts(),
        },
        "pictures": "prepared as in training but without a random part; translations rounded to 8 bits",
        "limit": limit,
        "seed": seed,
        "floor": FLOOR,
        "ceiling": CEILING,
    }
    if squeezenet is not None:
        protocol["features"] = {
            "network": "SqueezeNet v1.0, mean of fire9 over space; not comparable with published FID",
            "sha256": _sha256(Path(squeezenet)),
            "resize": RESIZE,
            "squeeze_kid": SUBSETS,
        }
    result = {"protocol": protocol, "scores": scores}
    write_text(run / "scores.json", json.dumps(result, indent=1, allow_nan=False))
    return result


def render_table(result: Mapping[str, Any]) -> Table:
    """The scores as a table for the terminal; an arrow shows which way is better."""
    checkpoint = result["protocol"]["checkpoint"]
    table = Table(title=f"checkpoint {checkpoint}", caption=f"floor: {FLOOR}\nceiling: {CEILING}")
    for column in ("score", "", "weights"):
        table.add_column(column, no_wrap=True)
    figures = ("value", "floor", "ceiling")
    for column in figures:
        table.add_column(column, justify="right")
    for score in result["scores"]:
        arrow = {"higher": "↑", "lower": "↓"}[score["better"]]
        words = (f"{score['name']} {arrow}", score["direction"], score["weights"])
        table.add_row(*words, *("-" if score[key] is None else f"{score[key]:.4g}" for key in figures))
    return table


def _data_config(run: Path, data: str | None) -> DataConfig:
    if not (run / "config.yaml").is_file():
        raise ValueError(f"{run} holds no config.yaml: name a run folder, as given to train as --out")
    config = read_config(run)
    return (config if data is None else config.change(data={"path": (data,)})).data


def _load_squeezenet(file: Path) -> SqueezeNet:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return SqueezeNet(dict(arrays))
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"squeezenet={file} cannot be used: {error}; name the .npz file of its weights") from error


def _weights(folder: Path, direction: Direction, *, both: bool) -> list[Weights]:
    role = {"a2b": "G_A", "b2a": "G_B"}[direction]
    averaged = (folder / f"{role}.ema.safetensors").is_file()
    return ["ema", "raw"] if averaged and both else ["ema"] if averaged else ["raw"]


def _record(translator: Translator, direction: Direction, weights: Weights) -> dict[str, Any]:
    assert translator.file is not None
    return {
        "direction": direction,
        "weights": weights,
        "sha256": _sha256(translator.file),
        "images_seen": translator.header.get("images_seen"),
    }


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
