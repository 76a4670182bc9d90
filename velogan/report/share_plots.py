"""Plot an architecture search over time: the softmax weight (share) of each operation in every mixed operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velogan.report.plots import Drawing
from velogan.report.sections import text
from velogan.search.history import HistoryEntry, Mixture

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
"""CSS classes of operations, in the order in which plots stack them from the bottom; other names have `other`."""

_WIDTH, _HEIGHT = 100, 62


def group_by_cell(mixtures: Mapping[str, Mixture]) -> list[tuple[str, list[str]]]:
    """Group the names of a network's mixed operations by cell (`model.r1.cell.3`: r1); pair numbered ones by kind."""
    by_cell: dict[str, list[str]] = {}
    unnamed: dict[str, int] = {}
    for module, mixture in mixtures.items():
        label = module.removeprefix("model.").split(".")[0]
        if label.isdigit():
            letter = "e" if "max_pool" in mixture else "d" if "nearest" in mixture else "r"
            unnamed[letter] = unnamed.get(letter, 0) + 1
            label = f"{letter}{(unnamed[letter] + 1) // 2}"
        by_cell.setdefault(label, []).append(module)
    return list(by_cell.items())


def plot_shares(history: Sequence[HistoryEntry], network: str) -> str:
    """Return a small plot for each mixed operation of a network, by cell: softmax weights over images seen."""
    blocks = []
    for label, modules in group_by_cell(history[-1]["shares"][network]):
        figures = "".join(_figure(history, network, module, cell=label) for module in modules)
        blocks.append(f'<div class="cell"><h4>{text(label)}</h4>{figures}</div>')
    return f'<div class="cells">{"".join(blocks)}</div>'


def _figure(history: Sequence[HistoryEntry], network: str, module: str, *, cell: str) -> str:
    last = history[-1]["shares"][network][module]
    best = max(last, key=lambda name: last[name])
    drawing = Drawing(_WIDTH, _HEIGHT)
    scale = _WIDTH / max(history[-1]["images"], 1)
    names = sorted(last, key=_order)
    sums = [[0.0] for _ in history]
    for row, entry in zip(sums, history):
        for name in names:
            row.append(row[-1] + entry["shares"][network][module][name])
    # the highest area first: lower areas cover it
    for number, name in reversed([*enumerate(names, start=1)]):
        line = [(scale * entry["images"], _HEIGHT * (1 - row[number])) for row, entry in zip(sums, history)]
        area = [(0.0, _HEIGHT), (0.0, line[0][1]), *line, (line[-1][0], _HEIGHT)]
        drawing.polygon(area, OPERATIONS.get(name, "other"), title=f"{name} {last[name]:.0%}")
    label = f"{network}, cell {cell}: weights of operations; at the end {best} with {last[best]:.0%}"
    caption = f"<figcaption><b>{text(best)}</b><br>{last[best]:.0%}</figcaption>"
    return f"<figure>{drawing.to_inline_svg(label=label)}{caption}</figure>"


def _order(name: str) -> tuple[int, str]:
    known = list(OPERATIONS)
    return (known.index(name) if name in OPERATIONS else len(known), name)


def share_legend(history: Sequence[HistoryEntry]) -> str:
    """Return a legend of operations; those that never occur in one mixed operation may have one colour."""
    names = {name for mixtures in history[-1]["shares"].values() for mixture in mixtures.values() for name in mixture}
    by_colour: dict[str, list[str]] = {}
    for name in sorted(names, key=_order):
        by_colour.setdefault(OPERATIONS.get(name, "other"), []).append(name)
    items = "".join(
        f'<span><i class="{colour}"></i>{text(", ".join(group))}</span>' for colour, group in by_colour.items()
    )
    return f'<p class="operations">{items}</p>'
