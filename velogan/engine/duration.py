"""Lengths and intervals in images, epochs, percent of the run or minutes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator

Unit = Literal["images", "epochs", "percent", "minutes"]
_UNITS: dict[str, Unit] = {"i": "images", "e": "epochs", "p": "percent", "%": "percent", "m": "minutes"}


@dataclass(frozen=True)
class Span:
    """A parsed duration: `amount` of `unit`."""

    amount: float
    unit: Unit

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.amount == 1 else self.unit
        return f"{np.format_float_positional(self.amount, trim='-')} {unit}"  # never 1e+06

    def count(self, *, images: int, seconds: float, progress: float, images_per_epoch: int) -> float:
        """Return how many times the span has passed, fractions included, after `images` seen and `seconds` of the run.

        progress: completed share of the run, in [0, 1]
        """
        elapsed = {
            "images": images,
            "epochs": images / images_per_epoch,
            "percent": 100 * progress,
            "minutes": seconds / 60,
        }
        return elapsed[self.unit] / self.amount


@dataclass(frozen=True)
class Length:
    """The length of a run.

    A length in minutes is a deadline; training ends `reserved` seconds before it, for the last checkpoint.
    """

    span: Span
    images_per_epoch: int
    reserved: float = 0.0

    @property
    def schedule_epochs(self) -> int:
        """The number of epochs of the learning-rate schedule: the run's, or 200 if its length is not in epochs."""
        return max(1, math.ceil(self.span.amount)) if self.span.unit == "epochs" else 200

    @property
    def total(self) -> int | None:
        """The length in images, at least 1; None for a length in minutes."""
        scale = {"images": 1, "epochs": self.images_per_epoch}.get(self.span.unit)
        return None if scale is None else max(1, round(self.span.amount * scale))

    @property
    def seconds(self) -> float | None:
        """The length in seconds; None if it is not in minutes."""
        return 60 * self.span.amount if self.total is None else None

    def saving_interval(self, every: str) -> Span:
        """Return the interval of checkpoints or sample grids: `every`, or 25 % of a run whose length is in minutes."""
        return parse_span(every) if self.seconds is None else Span(25, "percent")

    def progress(self, images: int, seconds: float) -> float:
        """Return the completed share of the run, at most 1; a length in minutes is reduced by `reserved` seconds."""
        total = self.total
        return min(seconds / (60 * self.span.amount - self.reserved) if total is None else images / total, 1.0)

    def schedule_epoch(self, images: int, seconds: float) -> int:
        """Return the current epoch of the learning-rate schedule, counted from 1."""
        if self.total is None:
            return 1 + int(self.progress(images, seconds) * self.schedule_epochs)
        return 1 + (
            images // self.images_per_epoch
            if self.span.unit == "epochs"
            else images * self.schedule_epochs // self.total
        )


def parse_length(text: str, *, images_per_epoch: int) -> Length:
    """Parse the length of a run. Raises ValueError if it is not a duration, or a percentage."""
    span = parse_span(text)
    if span.unit == "percent":
        raise ValueError(f"train.length={text}: a percentage is not a length; give epochs, images or minutes")
    return Length(span, images_per_epoch)


def parse_span(text: str) -> Span:
    """Parse a duration such as `500 images`, `2 epochs`, `5 %`, `10 minutes` or `10m`. Raises ValueError for others."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|[a-zA-Z]+)\s*", text)
    suffix = match.group(2).lower() if match else ""
    unit = _UNITS.get(suffix[:1])
    if not match or unit is None or not (suffix == "%" or unit.startswith(suffix) or suffix == "min"):
        raise ValueError(f"'{text}' is not a duration: write '500 images', '2 epochs', '5 %' or '10 minutes'")
    if not 0 < float(match.group(1)) < 1e15:
        raise ValueError(f"'{text[:40]}' must be more than 0 and less than 10^15")
    return Span(float(match.group(1)), unit)


Duration = Annotated[str, AfterValidator(lambda text: str(parse_span(text)))]
"""Type of configuration fields that hold a duration as text, which is normalised: `2e` becomes `2 epochs`."""
