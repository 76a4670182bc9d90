"""What an architecture search has written of its choices: `architecture.jsonl`, and what can be told from it.

A line is `{"images": 1200, "shares": {"G_A": {"model.e.0": {"max_pool": 0.12, ...}, ...}, ...}}`: for each network and
each place for an operation, the share of each operation in the mixture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, TypeVar

T = TypeVar("T")

FILE = "architecture.jsonl"

Mixture = Mapping[str, float]
"""The share of each operation; together they are 1."""

POOLING = ("max_pool", "avg_pool")

FEWEST = 20
"""Nothing is said of a history with fewer lines."""

LASTING = 5
"""What so many lines in a row show, up to the last, counts."""

EARLY = 0.25
"""What has happened before this share of the search has happened early."""

MAJORITY = 0.5
"""An operation has won where it has more than this, hence more than all others together."""

EVERYWHERE = 0.9
"""An operation wins everywhere if it wins at this share of places, of at least `MANY`."""

MANY = 4

UNDECIDED = 0.995
"""Above this entropy operations count alike: the largest of five has less than 0.25 then, a fifth being 0.2."""


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


def entropy(mixture: Mixture) -> float:
    """From 0, where one operation has all, to 1, where all have the same: `-sum p log p / log n`."""
    if len(mixture) < 2:
        return 0.0
    return -sum(share * math.log(share) for share in mixture.values() if share > 0) / math.log(len(mixture))


def winner(mixture: Mixture) -> str:
    """The operation with the largest share: the one that is derived."""
    return max(mixture, key=lambda name: mixture[name])


def kind(mixture: Mixture) -> str:
    """The kind of cell that chooses from these operations: e, r or d."""
    return "e" if "max_pool" in mixture else "d" if "nearest" in mixture else "r"


def unchanged_since(history: Sequence[Tick]) -> int:
    """The images at which every choice became what it is at the end of `history`, which is not empty."""
    rows = [(tick["images"], _winners(tick)) for tick in history]
    since = _since(rows, lambda winners: winners == rows[-1][1], least=1)
    assert since is not None
    return since


def warnings(history: Sequence[Tick], *, length: int | None = None) -> list[str]:
    """What is wrong with a search, a sentence for each network and kind of cell: what, since when, what to try.

    `length` are the images of the whole search, if it has not ended. A sentence stays the same while it holds.
    """
    if len(history) < FEWEST:
        return []
    length = max(length or 0, history[-1]["images"])
    said = []
    for network, mixtures in history[-1]["shares"].items():
        for letter in dict.fromkeys(map(kind, mixtures.values())):
            places = [place for place, mixture in mixtures.items() if kind(mixture) == letter]
            columns = [(tick["images"], [tick["shares"][network][place] for place in places]) for tick in history]
            said.append(_pooled(network, columns, length) or _same(network, letter, columns, length))
        said.append(_undecided(network, history, length))
    return [sentence for sentence in said if sentence]


_Columns = Sequence[tuple[int, Sequence[Mixture]]]
"""Images seen, and the mixtures of one kind of cell in one network."""

_LOWER = "lower the rate of the architecture weights (optimizer.rules arch_*:lr=5e-5) or use --method two-step"


def _pooled(network: str, columns: _Columns, length: int) -> str | None:
    """Pooling at all places that offer it, soon: it has next to no weights to learn, so it is good first."""
    since = _since(columns, lambda mixtures: all(_pooling(one) > MAJORITY for one in mixtures))
    if since is None or since > EARLY * length:
        return None
    return (
        f"{network}: pooling has most of the weight at all {len(columns[-1][1])} places of its e cells since "
        f"{since:,} images, before convolutions have learned to do better: {_LOWER}"
    )


def _same(network: str, letter: str, columns: _Columns, length: int) -> str | None:
    """One operation at all places of a kind of cell."""
    last = columns[-1][1]
    names = [winner(mixture) for mixture in last]
    name, count = max(((name, names.count(name)) for name in names), key=lambda found: found[1])
    if len(last) < MANY or count < EVERYWHERE * len(last):
        return None
    since = _since(columns, lambda mixtures: _wins(name, mixtures) >= EVERYWHERE * len(mixtures))
    if since is not None and since <= EARLY * length:
        return (
            f"{network}: {name} has won nearly everywhere in its {letter} cells since {since:,} images, before the "
            f"others were much compared with it: {_LOWER}"
        )
    since = _since(columns, lambda mixtures: all(winner(one) == name for one in mixtures) and _decided(mixtures))
    if since is None:
        return None
    return (
        f"{network}: all {len(last)} choices of its {letter} cells are {name} since {since:,} images, so the search "
        "tells no cell from another: compare it with a network of that operation alone, or give a --budget, under "
        "which large operations cost something"
    )


def _undecided(network: str, history: Sequence[Tick], length: int) -> str | None:
    decided = any(_decided(list(tick["shares"][network].values())) for tick in history[-LASTING:])
    if decided or history[-1]["images"] < length / 2:
        return None
    return (
        f"{network}: all operations still count nearly alike (entropy above {UNDECIDED:.1%} of its maximum), so that "
        "nothing is decided and what is derived is as good as drawn by lot: search longer, or raise the rate of the "
        "architecture weights (optimizer.rules arch_*:lr=2e-3)"
    )


def _pooling(mixture: Mixture) -> float:
    return sum(mixture.get(name, 0.0) for name in POOLING)


def _wins(name: str, mixtures: Sequence[Mixture]) -> int:
    return sum(mixture.get(name, 0.0) > MAJORITY for mixture in mixtures)


def _decided(mixtures: Sequence[Mixture]) -> bool:
    return fmean(map(entropy, mixtures)) <= UNDECIDED


def _winners(tick: Tick) -> list[str]:
    return [winner(mixture) for mixtures in tick["shares"].values() for mixture in mixtures.values()]


def _since(rows: Sequence[tuple[int, T]], holds: Callable[[T], bool], *, least: int = LASTING) -> int | None:
    """The images since which `holds` is true up to the last row, if it is for `least` rows."""
    lasting = 0
    for _, row in reversed(rows):
        if not holds(row):
            break
        lasting += 1
    return rows[-lasting][0] if lasting >= least else None


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
