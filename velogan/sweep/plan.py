"""A sweep as it was asked for, and the trials that it comes to. Nothing here starts anything."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velogan.config import Config, field_names
from velogan.engine.duration import Duration
from velogan.evaluation.metric import parse_metric
from velogan.evaluation.validation import SCORE
from velogan.sweep.dimensions import PRESET, RULES, SIZE, Dimension, changed, scored_at_shares

Search = Literal["grid", "random", "optuna"]

_MOST_TRIALS = 10_000
_LONGEST_NAME = 100  # characters; file systems take 255 bytes


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: `settings` are what differs between trials, besides the seed."""

    name: str
    settings: Mapping[str, Any]
    seed: int
    config: Config

    @property
    def setting(self) -> str:
        """What trials with other seeds have in common with this one; "base" where nothing is varied."""
        return self.name.rpartition(",")[0] or "base"


class SweepPlan(BaseModel):
    """What to run: `bases` are whole configurations by the preset they come from; `budget` is each trial's length.

    `metric` is given as a figure and kept as its name in the log: see `parse_metric`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bases: dict[str, Config] = Field(min_length=1)
    vary: tuple[Dimension, ...] = ()
    seeds: int = Field(default=1, ge=1, le=1000)
    budget: Duration
    search: Search = "grid"
    trials: int | None = Field(default=None, ge=1, le=_MOST_TRIALS)
    metric: str = SCORE
    stop_early: Literal["asha"] | None = None

    @field_validator("metric")
    @classmethod
    def _in_the_log(cls, value: str) -> str:
        return parse_metric(value)

    @model_validator(mode="after")
    def _fits(self) -> SweepPlan:
        twice = [one.field for one in self.vary if sum(one.field == other.field for other in self.vary) > 1]
        if twice:
            raise ValueError(f"--vary {twice[0]} is there twice: name all its values in one")
        if not self.budget.endswith(("images", "minutes")):
            raise ValueError(f"budget={self.budget}: give --minutes or --images, so that all trials get the same")
        if waiting := next((one.train.patience for one in self.bases.values() if one.train.patience), 0):
            raise ValueError(
                f"train.patience={waiting} ends a run early, and all trials get the same budget: leave it out, or say "
                "--stop-early asha"
            )
        self._check_search()
        return self

    def _check_search(self) -> None:
        ranges = [axis.field for axis in self.vary if axis.is_range]
        if self.search == "grid" and ranges:
            raise ValueError(f"--vary {ranges[0]} is a range, which a grid has not: add --search random or optuna")
        if self.search == "grid" and self.trials is not None:
            raise ValueError(f"--trials {self.trials}: a grid has the trials it has; add --search random or optuna")
        if self.search != "grid" and self.trials is None:
            raise ValueError(f"--search {self.search} needs --trials N: how many settings to try")
        if self.search != "grid" and not self.axes:
            raise ValueError(f"--search {self.search} needs something to --vary")
        if self.search == "optuna" and self.stop_early and self.seeds > 1:
            raise ValueError("--search optuna scores a setting by all its seeds: leave --stop-early or --seeds out")

    @property
    def axes(self) -> tuple[Dimension, ...]:
        """What varies; several presets are one more thing that does."""
        if len(self.bases) == 1:
            return self.vary
        return (Dimension(field=PRESET, values=tuple(self.bases)), *self.vary)

    def trial(self, settings: Mapping[str, Any], seed: int) -> Trial:
        """The run with `settings` and `seed`. ValueError where they make no configuration."""
        preset = str(settings.get(PRESET, next(iter(self.bases))))
        given = {name: value for name, value in settings.items() if name != PRESET}
        try:
            config = changed(self.bases[preset], given)
            if config.data.batch_size == "auto":
                raise ValueError("data.batch_size=auto is for one run: give a number, the same for all trials")
            if config.train.exchange_every is not None:
                raise ValueError("train.exchange_every is for one run, on nodes: leave it out of a sweep")
        except ValueError as error:
            raise ValueError(f"{trial_name(settings, seed)}: {error}") from None
        config = scored_at_shares(config.change(train={"length": self.budget, "seed": seed}))
        read = {
            name: value if name in (PRESET, SIZE) or name.startswith(f"{RULES}:") else attrgetter(name)(config)
            for name, value in settings.items()
        }
        return Trial(trial_name(read, seed), read, seed, config)

    def known_trials(self) -> list[Trial]:
        """All trials that are known before the start, checked: none for `optuna`, which finds its settings as it goes.

        The first seed of every setting comes first. ValueError names the field and the value that do not fit.
        """
        if self.search == "optuna":
            ends = [axis.values or (axis.low, axis.high) for axis in self.axes]
            for values in itertools.islice(itertools.product(*ends), _MOST_TRIALS):
                self.trial({axis.field: value for axis, value in zip(self.axes, values)}, 0)
            return []
        settings = self._settings()
        if len(settings) * self.seeds > _MOST_TRIALS:
            raise ValueError(f"{len(settings) * self.seeds} trials are more than {_MOST_TRIALS}: vary less")
        trials = [self.trial(one, seed) for seed in range(self.seeds) for one in settings]
        names = [trial.name for trial in trials]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two trials are the same, {twice}: name each value of --vary once")
        return trials

    def _settings(self) -> list[dict[str, Any]]:
        names = [axis.field for axis in self.axes]
        if self.search == "grid":
            return [dict(zip(names, values)) for values in itertools.product(*(axis.values for axis in self.axes))]
        assert self.trials is not None
        found: dict[str, dict[str, Any]] = {}
        for number in itertools.count():  # each draw has its own seed: more trials extend those that are finished
            if len(found) == self.trials or number > 20 * self.trials:
                break
            source = random.Random(number)
            drawn = {axis.field: axis.draw(source) for axis in self.axes}
            found.setdefault(trial_name(drawn, 0), drawn)
        return list(found.values())


def trial_name(settings: Mapping[str, Any], seed: int) -> str:
    """A folder's name: `lr=0.005,seed=0`. A function of settings and seed alone, so a larger sweep keeps its runs."""
    parts = [f"{_short(name)}={_shown(value)}" for name, value in settings.items()]
    text = ",".join(parts)
    safe = re.sub(r"[^\w.,=+-]+", "-", text)
    if safe != text or len(safe) > _LONGEST_NAME:  # two settings must not share a name
        safe = f"{safe[:_LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return ",".join(filter(None, [safe, f"seed={seed}"]))


def _shown(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _short(name: str) -> str:
    if name.startswith(f"{RULES}:"):
        return name.removeprefix(f"{RULES}:").replace(":", ".")
    return name if name in _ambiguous() else name.rpartition(".")[2]


@cache
def _ambiguous() -> frozenset[str]:
    """Names of fields whose last word another field has too."""
    names = field_names(Config)
    last = [name.rpartition(".")[2] for name in names]
    return frozenset(name for name, word in zip(names, last) if last.count(word) > 1 or word in (SIZE, PRESET, "seed"))
