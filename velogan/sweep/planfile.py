"""A sweep from a YAML file, with the words of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velogan.config import Config, Size, explain
from velogan.engine.duration import Span
from velogan.evaluation.validation import SCORE
from velogan.files import did_you_mean, parse_yaml
from velogan.recipes import DEFAULT, RECIPES
from velogan.sweep.dimensions import changed, check_field, make_dimension
from velogan.sweep.plan import Search, SweepPlan

_LENGTHS = {"minutes", "images"}


class PlanFile(BaseModel):
    """What a plan file may hold.

    `config` has sections and fields as a run's config.yaml has them. `presets` are names, or mappings from each name to
    the fields, by dotted name, that it alone has otherwise. `variants` are several fields each that change
    together, by dotted name; they are compared as presets are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str | tuple[str, ...]
    presets: tuple[str, ...] | dict[str, dict[str, Any]] = Field(default=(DEFAULT,), min_length=1)
    size: Size | None = None
    image_size: int | None = None
    config: dict[str, dict[str, Any]] = {}
    variants: dict[str, dict[str, Any]] = {}
    vary: dict[str, Any] = {}
    seeds: int = 1
    minutes: float | None = None
    images: int | None = None
    search: Search = "grid"
    trials: int | None = None
    metric: str = SCORE
    stop_early: Literal["asha"] | None = None


def read_plan(path: Path, **instead: Any) -> SweepPlan:
    """The plan that a YAML file holds; `instead` are words of it with other values, None where the file's counts.

    Images are in place of minutes, and the other way round.
    ValueError names the file, the field and the mend.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such plan, and no such preset{did_you_mean(str(path), RECIPES)}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} holds no plan, since it is not plain YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds no plan: it must be a mapping with data:, vary: and minutes: or images:")
    instead = {name: value for name, value in instead.items() if value is not None}
    if _LENGTHS & instead.keys():
        tree = {name: value for name, value in tree.items() if name not in _LENGTHS}
    try:
        file = PlanFile.model_validate(tree | instead)
        return make_plan(
            _bases(file),
            minutes=file.minutes,
            images=file.images,
            vary=tuple(make_dimension(field, given) for field, given in file.vary.items()),
            **file.model_dump(include={"seeds", "search", "trials", "metric", "stop_early"}),
        )
    except ValidationError as error:
        raise ValueError(explain(error, source=str(path))) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def make_plan(bases: dict[str, Config], *, minutes: float | None, images: int | None, **rest: Any) -> SweepPlan:
    """A plan whose trials train for so many `minutes`, or on so many `images`: one of the two."""
    if (minutes is None) == (images is None):
        raise ValueError("how long is a trial? give --minutes or --images, one of the two")
    budget = f"{images} images" if minutes is None else str(Span(minutes, "minutes"))
    try:
        return SweepPlan(bases=bases, budget=budget, **rest)
    except ValidationError as error:
        raise ValueError(explain(error, source="the sweep")) from None


def _bases(file: PlanFile) -> dict[str, Config]:
    own = file.presets if isinstance(file.presets, dict) else {preset: {} for preset in file.presets}
    for fields in (*own.values(), *file.variants.values()):
        for field in fields:
            check_field(field)
    bases = {preset: changed(_base(file, preset), fields) for preset, fields in own.items()}
    if not file.variants:
        return bases
    if len(bases) > 1:
        raise ValueError(f"presets: {', '.join(bases)} and variants: name one preset, which the variants change")
    (base,) = bases.values()
    return {name: changed(base, fields) for name, fields in file.variants.items()}


def _base(file: PlanFile, preset: str) -> Config:
    if preset not in RECIPES:
        raise ValueError(
            f"presets: {preset} is no preset{did_you_mean(preset, RECIPES)}; there are {', '.join(RECIPES)}"
        )
    base = RECIPES[preset]().with_size(file.size) if file.size else RECIPES[preset]()
    data: dict[str, Any] = {"path": (file.data,) if isinstance(file.data, str) else file.data}
    data |= {} if file.image_size is None else {"crop_size": file.image_size}
    return base.change(**file.config).change(data=data)
