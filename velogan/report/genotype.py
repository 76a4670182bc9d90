"""A genotype as a diagram: networks side by side, cells by their shape, operations by their kernels, drawn to scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from velogan.networks.cells import GEOMETRY, Kind, discriminator_kinds, generator_kinds
from velogan.networks.genotype import Genotype
from velogan.report.plots import Drawing, text_width
from velogan.types import Direction

WIDTH = 436
"""Of two networks side by side, in SVG units; a phone shows somewhat less than one pixel for each."""

_COLUMN, _GAP = 212, 12
_LEFT, _RIGHT, _SLANT = 14, 182, 9
"""Sides of a residual cell in its column, and how much wider the outer end of an e cell or a d cell is."""

_ROW, _PAD, _BETWEEN = 27, 5, 18
_BAR, _LONGEST = 46, 130
"""Where an operation begins, and how long the bar of the largest kernel is."""

_STEP, _DOT = 2.6, 2.0
_MOST_TAPS = max(geometry.kernel for geometry in GEOMETRY.values()) ** 2


class Cell(NamedTuple):
    """A cell to be drawn."""

    name: str
    kind: Kind
    operations: Sequence[str]


def taps(operation: str) -> int:
    """The weights of an operation between two channels; what has no kernel has a 1x1 convolution."""
    if operation == "transposed3":
        return 9
    return GEOMETRY[operation].kernel ** 2 if operation in GEOMETRY else 1


def hue(operation: str) -> str:
    """The class of its colour: `c1` for convolutions, `c0` for dilated ones, `soft` where there is no kernel."""
    return "soft" if taps(operation) == 1 else "c0" if operation.startswith("dilated") else "c1"


def generator_cells(genotype: Genotype, way: Direction) -> list[Cell]:
    """The cells of a generator, in order. Outside of e and d cells, `code` has a single operation at either end."""
    names = genotype.generators[way]
    kinds = generator_kinds(0, genotype.space)
    ends = (len(kinds) - 4) // 2
    inner = names[ends : len(names) - ends]
    pairs = [inner[place : place + 2] for place in range(0, len(inner), 2)]
    residual = [Cell(f"r{number}", "r", pair) for number, pair in enumerate(pairs[1:-1], start=1)]
    cells = [Cell("e", "e", pairs[0]), *residual, Cell("d", "d", pairs[-1])]
    return [Cell("stem", "r", names[:1]), *cells, Cell("head", "r", names[-1:])] if ends else cells


def discriminator_cells(genotype: Genotype, way: Direction) -> list[Cell]:
    """The cells of a discriminator, in order: pairs of one kind."""
    names, kinds = genotype.discriminators[way], discriminator_kinds(genotype.space)
    cells: list[Cell] = []
    for kind in dict.fromkeys(kinds):
        own = [name for name, one in zip(names, kinds) if one == kind]
        pairs = [own[place : place + 2] for place in range(0, len(own), 2)]
        cells += [Cell(f"{kind}{number}", kind, pair) for number, pair in enumerate(pairs, start=1)]
    return cells


def generators(picture: Drawing, genotype: Genotype, y: float, *, domains: Sequence[str] = ("A", "B")) -> float:
    """Draws the generators from `y` on and returns where they end."""
    ends: dict[Direction, str] = {"a2b": " → ".join(domains), "b2a": " → ".join(reversed(domains))}
    ways: list[Direction] = [way for way in ends if way in genotype.generators]
    if len(ways) == 1:
        heads = {ways[0]: ("Generator", "")}
    else:
        heads = {way: (f"G_{letter}", ends[way]) for way, letter in zip(ends, "AB")}
    return _networks(picture, y, {heads[way]: generator_cells(genotype, way) for way in ways}, residual=True)


def discriminators(picture: Drawing, genotype: Genotype, y: float, *, domains: Sequence[str] = ("A", "B")) -> float:
    """Draws the discriminators from `y` on and returns where they end."""
    judged: dict[Direction, tuple[str, str]] = {
        "a2b": ("D_A", f"judges {domains[1]}"),
        "b2a": ("D_B", f"judges {domains[0]}"),
    }
    cells = {head: discriminator_cells(genotype, way) for way, head in judged.items() if way in genotype.discriminators}
    return _networks(picture, y, cells, residual=False)


def legend(picture: Drawing, y: float) -> float:
    """Draws what shapes and colours mean, from `y` on, and returns where it ends."""
    entries = [
        ("conv5", "convolution, transposed too: its taps, to scale"),
        ("dilated3", "dilated: every second pixel"),
        ("avg_pool", "pooling or interpolation, with a 1×1 convolution"),
    ]
    for operation, words in entries:
        _glyph(picture, _LEFT + 14, y + 12, operation)
        picture.text(_LEFT + 34, y + 16, words, kind="soft", size=13)
        y += _ROW
    picture.rect(_LEFT + 2, y + 5, 24, 14, "c1", opacity=0.2, rx=3)
    picture.text(_LEFT + 34, y + 16, f"bar: number of taps, {_MOST_TAPS} at most", kind="soft", size=13)
    y += _ROW
    shapes: list[tuple[Kind, str]] = [("e", "halves sides"), ("r", "keeps them"), ("d", "doubles them")]
    for place, (kind, words) in enumerate(shapes):
        x = _LEFT + place * 128
        _outline(picture, x + 2, x + 26, y + 3, 18, kind, slant=4)
        picture.text(x + 34, y + 16, words, kind="soft", size=13)
    y += _ROW
    _plus(picture, _LEFT + 14, y + 12)
    picture.text(_LEFT + 34, y + 16, "adds what the cell was given (r cells of generators)", kind="soft", size=13)
    return y + _ROW


def genotype_file(genotype: Genotype, *, title: str = "A genotype") -> str:
    """All networks of a genotype and the legend, as an SVG file."""
    picture = Drawing(WIDTH, 0)
    y = generators(picture, genotype, 14)
    if genotype.discriminators:
        y = discriminators(picture, genotype, y + 24)
    picture.height = legend(picture, y + 24) + 14
    return picture.file(title=title)


def drawn(genotype: Genotype, *, domains: Sequence[str]) -> list[str]:
    """Draw for a page, as two inline pictures: the generators; the discriminators, if there are any, and the legend."""
    left, right = Drawing(WIDTH, 0), Drawing(WIDTH, 0)
    left.height = generators(left, genotype, 0, domains=domains)
    y = discriminators(right, genotype, 0, domains=domains) + 24 if genotype.discriminators else 0
    right.height = legend(right, y)
    below = "The cells of the discriminators, and what shapes" if genotype.discriminators else "What shapes"
    return [
        left.inline(label="The cells of the generators, from top to bottom"),
        right.inline(label=f"{below} and colours mean"),
    ]


def _networks(picture: Drawing, y: float, columns: Mapping[tuple[str, str], list[Cell]], *, residual: bool) -> float:
    ends = []
    for number, ((name, words), cells) in enumerate(columns.items()):
        x = number * (_COLUMN + _GAP)
        middle = x + (_LEFT + _RIGHT) / 2
        picture.text(middle, y + 16, name, size=16, weight=600, anchor="middle")
        picture.text(middle, y + 33, _short(words), kind="soft", size=13, anchor="middle")
        end = y + 42
        for cell in cells:
            end = _cell(picture, x, end, cell, adds=residual and _adds(cell))
        inside = [name for cell in cells if not residual or _adds(cell) for name in cell.operations]
        total = f"{sum(map(taps, inside))} taps" + (" in its r cells" if residual else "")
        picture.text(middle, end + 15, total, kind="soft", size=13, anchor="middle")
        ends.append(end + 22)
    return max(ends)


def _cell(picture: Drawing, x: float, y: float, cell: Cell, *, adds: bool) -> float:
    """A cell with the arrow into it, and with what it adds."""
    name, kind, operations = cell
    middle, top = x + (_LEFT + _RIGHT) / 2, y + _BETWEEN
    height = _ROW * len(operations) + 2 * _PAD
    picture.line([(middle, y), (middle, top)], "flow", width=1.5)
    picture.polygon([(middle - 4, top - 6), (middle + 4, top - 6), (middle, top)], "soft")
    _outline(picture, x + _LEFT, x + _RIGHT, top, height, kind, slant=_SLANT)
    picture.text(x + _LEFT + 8, top + height / 2 + 4, name, kind="soft", size=13)
    for place, operation in enumerate(operations):
        _operation(picture, x + _BAR, top + _PAD + _ROW * place, operation)
    if not adds:
        return top + height
    side, joined = x + _RIGHT + 14, top + height + 8
    picture.line([(middle, y + 4), (side, y + 4), (side, joined), (middle + 6, joined)], "flow", width=1.5)
    picture.line([(middle, top + height), (middle, joined)], "flow", width=1.5)
    _plus(picture, middle, joined)
    return joined + 6


def _adds(cell: Cell) -> bool:
    """Whether a generator's cell adds its input; what stands at the ends of `code` does not."""
    return cell.kind == "r" and len(cell.operations) == 2


def _outline(picture: Drawing, left: float, right: float, y: float, height: float, kind: Kind, *, slant: float) -> None:
    upper, lower = (slant if kind == "e" else 0), (slant if kind == "d" else 0)
    corners = [(left - upper, y), (right + upper, y), (right + lower, y + height), (left - lower, y + height)]
    picture.line([*corners, corners[0]], "flow", width=1.5)


def _operation(picture: Drawing, x: float, y: float, name: str) -> None:
    length = _LONGEST * taps(name) / _MOST_TAPS
    picture.rect(x, y + 1.5, length, _ROW - 3, hue(name), opacity=0.2, rx=3, title=f"{name}: {taps(name)} taps")
    _glyph(picture, x + 14, y + _ROW / 2, name)
    picture.text(x + 33, y + _ROW / 2 + 5, name.replace("_", " "), size=14)


def _glyph(picture: Drawing, x: float, y: float, name: str) -> None:
    """The taps of a kernel around (x, y); four pixels for what has none."""
    if taps(name) > 1:
        kernel, dilation, _ = GEOMETRY.get(name) or GEOMETRY["conv3"]
        step = _STEP * dilation
        start = step * (kernel - 1) / 2
        picture.dots(x - start, y - start, step, kernel, kernel, kind=hue(name), side=_DOT)
        return
    # one of four pixels is taken, or all alike; one pixel becomes four, alike or in between
    shades = {"max_pool": (0.25, 1, 0.25, 0.25), "bilinear": (1, 0.7, 0.7, 0.4)}.get(name, (0.65,) * 4)
    for place, shade in enumerate(shades):
        across, down = place % 2, place // 2
        picture.rect(x - 6.5 + 7 * across, y - 6.5 + 7 * down, 6, 6, "soft", opacity=shade)


def _plus(picture: Drawing, x: float, y: float) -> None:
    picture.rect(x - 6, y - 6, 12, 12, "sum", rx=6)
    picture.line([(x - 3.5, y), (x + 3.5, y)], "flow", width=1.5)
    picture.line([(x, y - 3.5), (x, y + 3.5)], "flow", width=1.5)


def _short(words: str) -> str:
    """As much of `words` as is beside another network."""
    most = int((_COLUMN - 4) / text_width("n", 13))
    return words if len(words) <= most else f"{words[: most - 1]}…"
