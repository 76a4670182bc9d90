"""The history of an architecture search: `architecture.jsonl`.

A line is `{"images": 1200, "shares": {"G_A": {"model.e.0": {"max_pool": 0.12, ...}, ...}, ...}}`: for each network and
each place for an operation, the share of each operation in the mixture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

FILE = "architecture.jsonl"

Mixture = Mapping[str, float]
"""The share of each operation; together they are 1."""


class Tick(TypedDict):
    """A line of the file: images seen, and mixtures by network and place."""

    images: int
    shares: Mapping[str, Mapping[str, Mixture]]


def read_architecture(run: Path) -> list[Tick]:
    """The lines in the folder `run`, oldest first; empty if there is no file.

    Left out are damaged lines, as the last may be, and those that speak of other places or operations than the last.
    """
    try:
        lines = (Path(run) / FILE).read_bytes().splitlines()
    except OSError:
        return []
    ticks = [tick for tick in map(_tick, lines) if tick]
    return [tick for tick in ticks if _names(tick) == _names(ticks[-1])]


def winner(mixture: Mixture) -> str:
    """The operation with the largest share: the one that is derived."""
    return max(mixture, key=lambda name: mixture[name])


def kind(mixture: Mixture) -> str:
    """The kind of cell that chooses from these operations: e, r or d."""
    return "e" if "max_pool" in mixture else "d" if "nearest" in mixture else "r"


def _names(tick: Tick) -> list[tuple[str, str, list[str]]]:
    return [
        (network, place, list(mixture))
        for network, mixtures in tick["shares"].items()
        for place, mixture in mixtures.items()
    ]


def _tick(line: bytes) -> Tick | None:
    try:
        row = json.loads(line)
        images, shares = row["images"], row["shares"]
        whole = isinstance(images, int) and all(shares.values())
        whole = whole and all(
            mixture and all(_is_share(share) for share in mixture.values())
            for mixtures in shares.values()
            for mixture in mixtures.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Tick(images=images, shares=shares) if whole and shares else None


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
