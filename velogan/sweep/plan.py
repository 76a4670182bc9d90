"""The plan of a sweep, from flags or a YAML file, and its trials. Nothing here starts a trial."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from velogan.config import Config, Size, explain
from velogan.engine.duration import Span
from velogan.evaluation.metric import parse_metric
from velogan.evaluation.validation import SCORE
from velogan.files import did_you_mean, parse_yaml
from velogan.recipes import DEFAULT, RECIPES
from velogan.sweep.dimensions import (
    PRESET,
    RULES,
    SIZE,
    Dimension,
    apply_settings,
    check_field,
    make_dimension,
    with_percent_checkpoints,
)

_MAX_TRIALS = 10_000
_MAX_NAME = 100  # characters; file systems allow 255 bytes


@dataclass(frozen=True)
class Trial:
    """One run of a sweep; `settings` are the values of the dimensions."""

    name: str
    settings: Mapping[str, Any]
    seed: int
    config: Config

    @property
    def setting_name(self) -> str:
        """The name without the seed; "base" if nothing is varied."""
        return self.name.rpartition(",")[0] or "base"


class SweepPlan(BaseModel):
    """The base configurations, the dimensions and the budget of a sweep.

    bases: configurations by preset
    minutes, images: length of each trial; exactly one of the two is set
    trials: number of settings, for `random` and `optuna`
    metric: a metric of `evaluate`, stored as its name in the log (`parse_metric`)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bases: dict[str, Config] = Field(min_length=1)
    vary: tuple[Dimension, ...] = ()
    seeds: int = Field(default=1, ge=1, le=1000)
    minutes: float | None = Field(default=None, gt=0)
    images: int | None = Field(default=None, gt=0)
    search: Literal["grid", "random", "optuna"] = "grid"
    trials: int | None = Field(default=None, ge=1, le=_MAX_TRIALS)
    metric: Annotated[str, AfterValidator(parse_metric)] = SCORE
    stop_early: Literal["asha"] | None = None

    @model_validator(mode="after")
    def _check(self) -> SweepPlan:
        fields = [dimension.field for dimension in self.vary]
        if repeated := [field for field in fields if fields.count(field) > 1]:
            raise ValueError(f"--vary {repeated[0]} is repeated: give all its values in one --vary")
        if (self.minutes is None) == (self.images is None):
            raise ValueError("the length of each run: give either --minutes or --images")
        if patience := next((base.train.patience for base in self.bases.values() if base.train.patience), 0):
            raise ValueError(
                f"train.patience={patience} ends runs at different lengths: remove it, or use --stop-early asha"
            )
        ranges = [dimension.field for dimension in self.vary if dimension.is_range]
        if self.search == "grid" and ranges:
            raise ValueError(f"--vary {ranges[0]} is a range, not a list for a grid: add --search random or optuna")
        if self.search == "grid" and self.trials is not None:
            raise ValueError(f"--trials {self.trials} has no effect on a grid: add --search random or optuna")
        if self.search != "grid" and self.trials is None:
            raise ValueError(f"--search {self.search}: give the number of settings to try, --trials N")
        if self.search != "grid" and not self.dimensions:
            raise ValueError(f"--search {self.search}: give at least one --vary")
        if self.search == "optuna" and self.stop_early and self.seeds > 1:
            raise ValueError("--search optuna needs the scores of all seeds: remove --stop-early or --seeds")
        return self

    @property
    def budget(self) -> str:
        """The length of each trial as text, such as `500 images` or `10 minutes`."""
        return f"{self.images} images" if self.minutes is None else str(Span(self.minutes, "minutes"))

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """All dimensions, including the preset if there are several presets."""
        if len(self.bases) == 1:
            return self.vary
        return (Dimension(field=PRESET, values=tuple(self.bases)), *self.vary)

    def build_trial(self, settings: Mapping[str, Any], seed: int) -> Trial:
        """Return the trial of `settings` and `seed`. Raises ValueError if its configuration is invalid."""
        base = self.bases[str(settings.get(PRESET, next(iter(self.bases))))]
        try:
            config = apply_settings(base, settings)
            if config.data.batch_size == "auto":
                raise ValueError("data.batch_size=auto may differ between trials: give a number")
            if config.train.exchange_every is not None:
                raise ValueError("train.exchange_every is not supported in a sweep: remove it")
        except ValueError as error:
            raise ValueError(f"{trial_name(settings, seed)}: {error}") from None
        config = with_percent_checkpoints(config.change(train={"length": self.budget, "seed": seed}))
        parsed = {
            name: value if name in (PRESET, SIZE) or name.startswith(f"{RULES}:") else attrgetter(name)(config)
            for name, value in settings.items()
        }
        return Trial(trial_name(parsed, seed), parsed, seed, config)

    def known_trials(self) -> list[Trial]:
        """Return all trials, ordered by seed; none for `optuna`, which chooses settings by the scores.

        Raises ValueError if a setting is invalid; for `optuna`, only the ends of each range are checked.
        """
        if self.search == "optuna":
            endpoints = [dimension.values or (dimension.low, dimension.high) for dimension in self.dimensions]
            for values in itertools.islice(itertools.product(*endpoints), _MAX_TRIALS):
                self.build_trial({dimension.field: value for dimension, value in zip(self.dimensions, values)}, 0)
            return []
        settings = self._settings()
        if (count := len(settings) * self.seeds) > _MAX_TRIALS:
            raise ValueError(f"{count} trials are more than {_MAX_TRIALS}: vary less")
        trials = [self.build_trial(setting, seed) for seed in range(self.seeds) for setting in settings]
        names = [trial.name for trial in trials]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two trials are the same, {repeated}: give each value of --vary once")
        return trials

    def _settings(self) -> list[dict[str, Any]]:
        if self.search == "grid":
            names = [dimension.field for dimension in self.dimensions]
            columns = [dimension.values for dimension in self.dimensions]
            return [dict(zip(names, values)) for values in itertools.product(*columns)]
        assert self.trials is not None
        settings: dict[str, dict[str, Any]] = {}
        for number in range(20 * self.trials):
            rng = random.Random(number)  # one per draw, so that a larger --trials repeats the settings of a smaller one
            sampled = {dimension.field: dimension.sample(rng) for dimension in self.dimensions}
            settings.setdefault(trial_name(sampled, 0), sampled)
            if len(settings) == self.trials:
                break
        return list(settings.values())


def trial_name(settings: Mapping[str, Any], seed: int) -> str:
    """Return the folder name of a trial, such as `optimizer.lr=0.005,seed=0`, by which a later sweep finds its run."""
    texts = {
        name: "x".join(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in settings.items()
    }
    text = ",".join(f"{name.replace(':', '.')}={value}" for name, value in texts.items())
    safe = re.sub(r"[^\w.,=+-]+", "-", text)
    if safe != text or len(safe) > _MAX_NAME:  # two settings must not have the same name
        safe = f"{safe[:_MAX_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return ",".join(filter(None, [safe, f"seed={seed}"]))


class PlanFile(BaseModel):
    """The content of a plan file; keys that are not fields here are fields of SweepPlan.

    presets: names, or a mapping from each name to fields (dotted names) with values that replace the preset's
    config: sections with fields for all trials, in the format of a run's config.yaml
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    data: str | tuple[str, ...]
    presets: tuple[str, ...] | dict[str, dict[str, Any]] = Field(default=(DEFAULT,), min_length=1)
    size: Size | None = None
    image_size: int | None = None
    config: dict[str, dict[str, Any]] = {}
    vary: dict[str, Any] = {}

    def build_base(self, preset: str) -> Config:
        """Return a preset's configuration with the fields that the plan sets for all presets, not for one preset."""
        check_preset(preset)
        base = RECIPES[preset]().with_size(self.size) if self.size else RECIPES[preset]()
        data: dict[str, Any] = {"path": (self.data,) if isinstance(self.data, str) else self.data}
        data |= {} if self.image_size is None else {"crop_size": self.image_size}
        return base.change(**self.config).change(data=data)


def read_plan(path: Path, **overrides: Any) -> SweepPlan:
    """Read a plan from a YAML file; `overrides` replace its values.

    Raises ValueError, with the file and the key, if it is invalid.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(tree, dict):
            raise ValueError("a plan is a mapping with data:, vary: and minutes: or images:")
        file = PlanFile.model_validate({**tree, **overrides})
        fields = file.presets if isinstance(file.presets, dict) else {preset: {} for preset in file.presets}
        for field in itertools.chain.from_iterable(fields.values()):
            check_field(field)
        bases = {preset: apply_settings(file.build_base(preset), changes) for preset, changes in fields.items()}
        vary = [make_dimension(field, value) for field, value in file.vary.items()]
        return SweepPlan.model_validate({"bases": bases, "vary": vary, **(file.model_extra or {})})
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such plan file{did_you_mean(str(path), RECIPES)}") from None
    except ValidationError as error:
        raise ValueError(explain(error, source=str(path))) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_preset(name: str) -> None:
    """Raise ValueError if there is no preset `name`."""
    if name not in RECIPES:
        raise ValueError(f"{name}: unknown preset{did_you_mean(name, RECIPES)}; there are {', '.join(RECIPES)}")
