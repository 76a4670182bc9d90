"""A race: candidates train for a tenth of the budget each, and the best one goes on as the run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velogan.config import Config, write_yaml
from velogan.engine.duration import parse_span
from velogan.evaluation.validation import FEATURE_SCORE, SCORE
from velogan.files import write_text
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.store.record import read_record, write_record
from velogan.training.run import train

SHARE = 0.1
"""Of the budget, for each candidate."""

HEATS = "race"
"""The folder below the run's that holds the candidates' runs."""


def race(candidates: Mapping[str, Config], run: Path, *, display: Display, origin: Mapping[str, Any]) -> None:
    """Trains all, and puts the best where the run `run` shall be, to be continued. What was begun is continued.

    The best has the lowest distance of held-out pictures. A candidate that cannot take the pictures is left out, with a
    line; ValueError where that is true of all. Where no pictures are held out, the first goes on. `run.json` keeps the
    distances as `race`.
    """
    scores: dict[str, float] = {}
    refused: list[ValueError] = []
    for name, config in candidates.items():
        display.say(f"race: {name}, {_times(config, SHARE)}")
        try:
            score = _heat(config, run / HEATS / name, display=display, origin={**origin, "preset": name})
        except ValueError as error:
            refused.append(error)
            display.say(f"race: {name} is left out: {error}")
            continue
        if score is None:
            display.say(f"race: no pictures are held out to compare by, so {name} goes on")
            scores = {name: 0.0}
            break
        scores[name] = score
    if not scores:
        raise refused[0]
    best = min(scores, key=lambda name: scores[name])
    if len(scores) > 1:
        listed = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        display.say(f"race: {best} goes on (distance of held-out pictures to real ones: {listed})")
    record = {"share": SHARE, "distance": scores, "best": best}
    _put(run / HEATS / best, run, rest(candidates[best], others=len(scores) - 1), race=record)


def others(run: Path) -> int:
    """How many candidates the run, as the best of a race, has beaten; 0 where there was no race."""
    return len(read_record(run).get("race", {}).get("distance", [None])) - 1


def rest(config: Config, *, others: int) -> Config:
    """`config` with the length that it has as the best of a race: minutes that the `others` took are gone."""
    if parse_span(config.train.length).unit != "minutes":
        return config
    return config.change(train={"length": _times(config, 1 - SHARE * others)})


def _times(config: Config, share: float) -> str:
    """The length of `config` times `share`, as text."""
    span = parse_span(config.train.length)
    amount = span.amount * share
    return f"{max(round(amount), 1) if span.unit == 'images' else amount:.15g} {span.unit}"


def _heat(config: Config, run: Path, *, display: Display, origin: Mapping[str, Any]) -> float | None:
    """The distance at its end; None where no pictures are held out."""
    ends = {"length": _times(config, SHARE), "checkpoint_every": "100 %", "sample_every": "100 %"}
    train(config.change(train=ends), run, display=display, origin=origin)
    rows = [row.get(FEATURE_SCORE, row.get(SCORE)) for row in read_stats(run)]
    return next((score for score in reversed(rows) if score is not None), None)


def _put(best: Path, run: Path, config: Config, *, race: Mapping[str, Any]) -> None:
    """A copy of the best's run, to be continued as `config` says; that comes last, since it makes the folder a run."""
    shutil.copytree(best, run, dirs_exist_ok=True, ignore=shutil.ignore_patterns("config.yaml", ".lock"))
    write_record(run, {**read_record(run), "race": dict(race)})
    write_text(run / "config.yaml", write_yaml(config))
