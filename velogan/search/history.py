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
from typing import Any, TypedDict

from velogan.files import counted

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

TRAVEL, LITTLE = 10, 1
"""Adam moves a weight by its rate at most, so a search by the rate times the steps. `TRAVEL` is a good start, below
`LITTLE` nothing is decided: measured in docs/search.md, `velogan search demo`."""


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
    last = _winners(history[-1])
    since = _since(history, lambda tick: _winners(tick) == last, least=1)
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
            said.append(_pooled(history, network, letter, length) or _same(history, network, letter, length))
    return [sentence for sentence in (*said, _undecided(history, length)) if sentence]


def too_slow(rate: float, *, steps: int) -> str:
    """What there is to say before a search of so many steps of Adam at this rate, if it can decide nothing."""
    if rate * steps >= LITTLE:
        return ""
    return (
        f"architecture weights move by {rate * steps:.2g} at most in the {counted(steps, 'step')} of this search, "
        f"which decides nothing: search longer, or raise their rate (optimizer.rules arch_*:lr={TRAVEL / steps:.0e})"
    )


_RATE = f"times the number of steps it should be about {TRAVEL} (for 1,000 steps optimizer.rules arch_*:lr=1e-2)"
_LOWER = f"use --method two-step, or lower the rate of the architecture weights: {_RATE}"


def _pooled(history: Sequence[Tick], network: str, letter: str, length: int) -> str | None:
    """Pooling at all places that offer it, soon: it has next to no weights to learn, so it is good first."""
    since = _since(history, lambda tick: all(_pooling(one) > MAJORITY for one in _of(tick, network, letter)))
    if since is None or since > EARLY * length:
        return None
    return (
        f"{network}: pooling has most of the weight at all places of its {letter} cells since "
        f"{counted(since, 'image')}, before convolutions have learned to do better: {_LOWER}"
    )


def _same(history: Sequence[Tick], network: str, letter: str, length: int) -> str | None:
    """One operation at all places of a kind of cell."""
    last = _of(history[-1], network, letter)
    names = [winner(mixture) for mixture in last]
    name, count = max(((name, names.count(name)) for name in names), key=lambda found: found[1])
    if len(last) < MANY or count < EVERYWHERE * len(last):
        return None
    since = _since(history, lambda tick: _wins(name, _of(tick, network, letter)) >= EVERYWHERE * len(last))
    if since is not None and since <= EARLY * length:
        return (
            f"{network}: {name} has won nearly everywhere in its {letter} cells since {counted(since, 'image')}, "
            f"before the others were much compared with it: {_LOWER}"
        )
    since = _since(history, lambda tick: all(winner(one) == name for one in _of(tick, network, letter)))
    if since is None or not _decided(last):
        return None
    return (
        f"{network}: all {len(last)} choices of its {letter} cells are {name} since {counted(since, 'image')}, so the "
        "search tells no cell from another: compare it with a network of that operation alone, or give a --budget, "
        "under which large operations cost something"
    )


def _undecided(history: Sequence[Tick], length: int) -> str | None:
    if history[-1]["images"] < length / 2:
        return None
    networks = [
        network
        for network in history[-1]["shares"]
        if not any(_decided(list(tick["shares"][network].values())) for tick in history[-LASTING:])
    ]
    if not networks:
        return None
    return (
        f"{', '.join(networks)}: all operations still count nearly alike (entropy above {UNDECIDED:.1%} of its "
        "maximum), so that nothing is decided and what is derived may be no better than a draw by lot: search longer, "
        f"or raise the rate of the architecture weights: {_RATE}"
    )


def _of(tick: Tick, network: str, letter: str) -> list[Mixture]:
    """The mixtures of one kind of cell."""
    return [mixture for mixture in tick["shares"][network].values() if kind(mixture) == letter]


def _pooling(mixture: Mixture) -> float:
    return sum(mixture.get(name, 0.0) for name in POOLING)


def _wins(name: str, mixtures: Sequence[Mixture]) -> int:
    return sum(mixture.get(name, 0.0) > MAJORITY for mixture in mixtures)


def _decided(mixtures: Sequence[Mixture]) -> bool:
    return fmean(map(entropy, mixtures)) <= UNDECIDED


def _winners(tick: Tick) -> list[str]:
    return [winner(mixture) for mixtures in tick["shares"].values() for mixture in mixtures.values()]


def _since(history: Sequence[Tick], holds: Callable[[Tick], bool], *, least: int = LASTING) -> int | None:
    """The images since which `holds` is true up to the last line, if it is for `least` lines."""
    lasting = 0
    for tick in reversed(history):
        if not holds(tick):
            break
        lasting += 1
    return history[-lasting]["images"] if lasting >= least else None


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
