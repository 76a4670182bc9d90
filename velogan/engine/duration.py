"""Lengths and intervals: images, epochs, percent of the run, or minutes."""

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
        return f"{np.format_float_positional(self.amount, trim='-')} {self.unit}"  # never as 1e+06 or 1e-05

    def passed(self, *, images: int, seconds: float, progress: float, images_per_epoch: int) -> float:
        """How many spans have passed, with the fraction of the next, in a run that saw `images` in `seconds`.

        `progress` is the share of the run that is done, in [0, 1]; `epoch` is the number of images in an epoch.
        """
        now = {
            "images": images,
            "epochs": images / images_per_epoch,
            "percent": 100 * progress,
            "minutes": seconds / 60,
        }
        return now[self.unit] / self.amount


@dataclass(frozen=True)
class Length:
    """How long a run is; `epoch` is the number of images in an epoch.

    `ticks` are the epochs of the learning-rate schedule. A length in epochs has one tick per epoch, as in the
    reference. Any other has 200, like the paper's run. A length in minutes is a deadline, so it takes the same time on
    any machine; training ends `reserved` seconds before it, for the last checkpoint.
    """

    span: Span
    images_per_epoch: int
    reserved: float = 0.0

    @property
    def ticks(self) -> int:
        """The number of ticks in the whole run."""
        return max(1, math.ceil(self.span.amount)) if self.span.unit == "epochs" else 200

    @property
    def total(self) -> int | None:
        """The length in images, at least 1; None for a length in minutes."""
        scale = {"images": 1, "epochs": self.images_per_epoch}.get(self.span.unit)
        return None if scale is None else max(1, round(self.span.amount * scale))

    @property
    def seconds(self) -> float | None:
        """The length in seconds; None where it is in images."""
        return 60 * self.span.amount if self.total is None else None

    def spaced(self, every: str) -> Span:
        """Parse the interval of checkpoints or sample grids; in a run in minutes it is a quarter of the run."""
        return parse_span(every) if self.seconds is None else Span(25, "percent")

    def progress(self, images: int, seconds: float) -> float:
        """The share of the training that is done, up to 1."""
        whole = self.total
        done = seconds / (60 * self.span.amount - self.reserved) if whole is None else images / whole
        return min(done, 1.0)

    def tick(self, images: int, seconds: float) -> int:
        """The current tick, counted from 1: whole ticks passed, plus one."""
        if self.total is None:
            return 1 + int(self.progress(images, seconds) * self.ticks)
        return 1 + (
            images // self.images_per_epoch if self.span.unit == "epochs" else images * self.ticks // self.total
        )


def parse_length(text: str, *, images_per_epoch: int) -> Length:
    """A run's length; `epoch` is in images. ValueError for a percentage."""
    span = parse_span(text)
    if span.unit == "percent":
        raise ValueError(f"train.length={text} cannot be a percentage: give epochs, images or minutes")
    return Length(span, images_per_epoch)


def parse_span(text: str) -> Span:
    """`"500 images"`, `"2 epochs"`, `"5 %"`, `"10 minutes"`, or short: `500i 2e 5% 10m`. ValueError otherwise."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|[a-zA-Z]+)\s*", text)
    word = found.group(2).lower() if found else ""
    unit = _UNITS.get(word[:1])
    if not found or unit is None or not (word == "%" or unit.startswith(word) or word == "min"):
        raise ValueError(f"'{text}' is no duration: write '500 images', '2 epochs', '5 %' or '10 minutes'")
    if not 0 < float(found.group(1)) < 1e15:
        raise ValueError(f"'{text[:40]}' must be more than 0 and less than 10^15")
    return Span(float(found.group(1)), unit)


Duration = Annotated[str, AfterValidator(lambda text: str(parse_span(text)))]
"""A configuration field that holds a duration as text, for example `200 epochs`."""
