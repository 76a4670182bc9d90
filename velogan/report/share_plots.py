"""An architecture search over time: the shares of operations in every mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velogan.report.plots import Drawing
from velogan.report.sections import text
from velogan.search.history import Mixture, Tick, kind, winner

OPERATIONS = {
    "max_pool": "soft light",
    "avg_pool": "soft",
    "nearest": "soft light",
    "bilinear": "soft",
    "conv3": "c1 pale",
    "transposed3": "c1 pale",
    "conv4": "c1 light",
    "conv5": "c1 middle",
    "conv7": "c1",
    "dilated3": "c0 light",
    "dilated5": "c0",
}
"""The classes of each operation's colour, from the bottom of a picture up; an unknown operation has `other`."""

_WIDTH, _HEIGHT = 100, 62


def cells(mixtures: Mapping[str, Mixture]) -> list[tuple[str, list[str]]]:
    """The places of a network by cell: `model.r1.cell.3` is of r1. Places without a name are paired by kind."""
    found: dict[str, list[str]] = {}
    unnamed: dict[str, int] = {}
    for place, mixture in mixtures.items():
        label = place.removeprefix("model.").split(".")[0]
        if label.isdigit():
            letter = kind(mixture)
            unnamed[letter] = unnamed.get(letter, 0) + 1
            label = f"{letter}{(unnamed[letter] + 1) // 2}"
        found.setdefault(label, []).append(place)
    return list(found.items())


def shares(history: Sequence[Tick], network: str) -> str:
    """A small picture for each mixture of a network, by cell: shares over images, with the winner's name below."""
    blocks = []
    for label, places in cells(history[-1]["shares"][network]):
        figures = "".join(_figure(history, network, place, label=label) for place in places)
        blocks.append(f'<div class="cell"><h4>{text(label)}</h4>{figures}</div>')
    return f'<div class="cells">{"".join(blocks)}</div>'


def _figure(history: Sequence[Tick], network: str, place: str, *, label: str) -> str:
    last = history[-1]["shares"][network][place]
    best = winner(last)
    picture = Drawing(_WIDTH, _HEIGHT)
    scale = _WIDTH / max(history[-1]["images"], 1)
    names = sorted(last, key=_order)
    sums = [[0.0] for _ in history]
    for row, tick in zip(sums, history):
        for name in names:
            row.append(row[-1] + tick["shares"][network][place][name])
    # the highest area first: what lies below covers it
    for number, name in reversed([*enumerate(names, start=1)]):
        line = [(scale * tick["images"], _HEIGHT * (1 - row[number])) for row, tick in zip(sums, history)]
        area = [(0.0, _HEIGHT), (0.0, line[0][1]), *line, (line[-1][0], _HEIGHT)]
        picture.polygon(area, OPERATIONS.get(name, "other"), title=f"{name} {last[name]:.0%}")
    told = f"{network}, cell {label}: shares of operations; last {best} with {last[best]:.0%}"
    caption = f"<figcaption><b>{text(best)}</b><br>{last[best]:.0%}</figcaption>"
    return f"<figure>{picture.inline(label=told)}{caption}</figure>"


def _order(name: str) -> tuple[int, str]:
    known = list(OPERATIONS)
    return (known.index(name) if name in OPERATIONS else len(known), name)


def legend(history: Sequence[Tick]) -> str:
    """Names and colours of all operations that occur; those that never meet in a mixture may share a colour."""
    names = {name for mixtures in history[-1]["shares"].values() for one in mixtures.values() for name in one}
    alike: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        alike.setdefault(OPERATIONS.get(name, "other"), []).append(name)
    items = "".join(f'<span><i class="{look}"></i>{text(", ".join(one))}</span>' for look, one in alike.items())
    return f'<p class="operations">{items}</p>'
