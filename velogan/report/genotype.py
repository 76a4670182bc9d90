"""Draw a genotype as a diagram: networks side by side, cells as shapes, and kernels to scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from velogan.networks.cells import CONVOLUTION_GEOMETRY, Kind, discriminator_kinds, generator_kinds
from velogan.networks.genotype import Genotype
from velogan.report.plots import Drawing, estimate_text_width
from velogan.types import Direction

WIDTH = 436
"""Width of two networks side by side, in SVG units; a phone shows a little less than one pixel per unit."""

_COLUMN, _GAP = 212, 12
_LEFT, _RIGHT = 14, 182
_SLANT = 9
"""Left and right edge of an r cell in its column, and how far an e or d cell exceeds them at its wide end."""

_ROW, _PAD = 27, 5
_BETWEEN = 18
_BAR, _LONGEST = 46, 130
"""Left edge of an operation's bar in its column, and the length of the bar of the largest kernel."""

_STEP, _DOT = 2.6, 2.0
_MAX_TAPS = max(geometry.kernel for geometry in CONVOLUTION_GEOMETRY.values()) ** 2


class Cell(NamedTuple):
    """A cell: its name in the diagram, its kind and its operations."""

    name: str
    kind: Kind
    operations: Sequence[str]


def count_taps(operation: str) -> int:
    """Count an operation's weights per pair of channels; 1 for pooling or interpolation (its 1x1 convolution)."""
    if operation == "transposed3":
        return 9
    return CONVOLUTION_GEOMETRY[operation].kernel ** 2 if operation in CONVOLUTION_GEOMETRY else 1


def colour_class(operation: str) -> str:
    """Return the CSS class of an operation: `c1` for convolutions, `c0` for dilated ones, `soft` for all others."""
    return "soft" if count_taps(operation) == 1 else "c0" if operation.startswith("dilated") else "c1"


def generator_cells(genotype: Genotype, direction: Direction) -> list[Cell]:
    """Return the cells of a generator, in order; in the space `code` also the single operations at both ends."""
    names = genotype.generators[direction]
    kinds = generator_kinds(0, genotype.space)
    outer = (len(kinds) - 4) // 2
    inner = names[outer : len(names) - outer]
    pairs = [inner[start : start + 2] for start in range(0, len(inner), 2)]
    residual = [Cell(f"r{number}", "r", pair) for number, pair in enumerate(pairs[1:-1], start=1)]
    cells = [Cell("e", "e", pairs[0]), *residual, Cell("d", "d", pairs[-1])]
    return [Cell("stem", "r", names[:1]), *cells, Cell("head", "r", names[-1:])] if outer else cells


def discriminator_cells(genotype: Genotype, direction: Direction) -> list[Cell]:
    """Return the cells of a discriminator, in order: pairs of operations of one kind."""
    names, kinds = genotype.discriminators[direction], discriminator_kinds(genotype.space)
    cells: list[Cell] = []
    for kind in dict.fromkeys(kinds):
        of_kind = [name for name, other in zip(names, kinds) if other == kind]
        pairs = [of_kind[start : start + 2] for start in range(0, len(of_kind), 2)]
        cells += [Cell(f"{kind}{number}", kind, pair) for number, pair in enumerate(pairs, start=1)]
    return cells


def draw_generators(drawing: Drawing, genotype: Genotype, y: float, *, domains: Sequence[str] = ("A", "B")) -> float:
    """Draw the generators from `y` downwards; return the `y` at which they end."""
    titles: dict[Direction, str] = {"a2b": " → ".join(domains), "b2a": " → ".join(reversed(domains))}
    directions: list[Direction] = [direction for direction in titles if direction in genotype.generators]
    if len(directions) == 1:
        heads = {directions[0]: ("Generator", "")}
    else:
        heads = {direction: (f"G_{letter}", titles[direction]) for direction, letter in zip(titles, "AB")}
    cells = {heads[direction]: generator_cells(genotype, direction) for direction in directions}
    return _draw_networks(drawing, y, cells, has_skips=True)


def draw_discriminators(
    drawing: Drawing, genotype: Genotype, y: float, *, domains: Sequence[str] = ("A", "B")
) -> float:
    """Draw the discriminators from `y` downwards; return the `y` at which they end."""
    heads: dict[Direction, tuple[str, str]] = {
        "a2b": ("D_A", f"judges {domains[1]}"),
        "b2a": ("D_B", f"judges {domains[0]}"),
    }
    cells = {
        head: discriminator_cells(genotype, direction)
        for direction, head in heads.items()
        if direction in genotype.discriminators
    }
    return _draw_networks(drawing, y, cells, has_skips=False)


def draw_legend(drawing: Drawing, y: float) -> float:
    """Draw the legend of shapes and colours from `y` downwards; return the `y` at which it ends."""
    entries = [
        ("conv5", "(transposed) convolution: its taps, to scale"),
        ("dilated3", "dilated: every second pixel"),
        ("avg_pool", "pooling or interpolation, with a 1×1 convolution"),
    ]
    for operation, description in entries:
        _draw_glyph(drawing, _LEFT + 14, y + 12, operation)
        drawing.text(_LEFT + 34, y + 16, description, css_class="soft", size=13)
        y += _ROW
    drawing.rect(_LEFT + 2, y + 5, 24, 14, "c1", opacity=0.2, rx=3)
    drawing.text(_LEFT + 34, y + 16, f"bar: number of taps, at most {_MAX_TAPS}", css_class="soft", size=13)
    y += _ROW
    shapes: list[tuple[Kind, str]] = [("e", "halves the size"), ("r", "preserves it"), ("d", "doubles it")]
    for number, (kind, description) in enumerate(shapes):
        x = _LEFT + number * 128
        _draw_outline(drawing, x + 2, x + 26, y + 3, 18, kind, slant=4)
        drawing.text(x + 34, y + 16, description, css_class="soft", size=13)
    y += _ROW
    _draw_plus(drawing, _LEFT + 14, y + 12)
    drawing.text(_LEFT + 34, y + 16, "adds the input of the cell (r cells of generators)", css_class="soft", size=13)
    return y + _ROW


def draw_genotype(genotype: Genotype, *, domains: Sequence[str]) -> list[str]:
    """Return two inline SVG drawings: the generators, and a legend below the discriminators, if there are any."""
    left, right = Drawing(WIDTH, 0), Drawing(WIDTH, 0)
    left.height = draw_generators(left, genotype, 0, domains=domains)
    y = draw_discriminators(right, genotype, 0, domains=domains) + 24 if genotype.discriminators else 0
    right.height = draw_legend(right, y)
    subject = "The cells of the discriminators, and the meaning of" if genotype.discriminators else "The meaning of"
    return [
        left.to_inline_svg(label="The cells of the generators, from top to bottom"),
        right.to_inline_svg(label=f"{subject} shapes and colours"),
    ]


def _draw_networks(
    drawing: Drawing, y: float, columns: Mapping[tuple[str, str], list[Cell]], *, has_skips: bool
) -> float:
    bottoms = []
    for number, ((name, subtitle), cells) in enumerate(columns.items()):
        x = number * (_COLUMN + _GAP)
        middle = x + (_LEFT + _RIGHT) / 2
        drawing.text(middle, y + 16, name, size=16, weight=600, anchor="middle")
        drawing.text(middle, y + 33, _truncate(subtitle), css_class="soft", size=13, anchor="middle")
        end = y + 42
        for cell in cells:
            end = _draw_cell(drawing, x, end, cell, is_residual=has_skips and _is_residual(cell))
        counted = [operation for cell in cells if not has_skips or _is_residual(cell) for operation in cell.operations]
        total = f"{sum(map(count_taps, counted))} taps" + (" in its r cells" if has_skips else "")
        drawing.text(middle, end + 15, total, css_class="soft", size=13, anchor="middle")
        bottoms.append(end + 22)
    return max(bottoms)


def _draw_cell(drawing: Drawing, x: float, y: float, cell: Cell, *, is_residual: bool) -> float:
    """Draw a cell, the arrow into it and its skip connection, if any; return the `y` at which they end."""
    name, kind, operations = cell
    middle, top = x + (_LEFT + _RIGHT) / 2, y + _BETWEEN
    height = _ROW * len(operations) + 2 * _PAD
    drawing.line([(middle, y), (middle, top)], "flow")
    drawing.polygon([(middle - 4, top - 6), (middle + 4, top - 6), (middle, top)], "soft")
    _draw_outline(drawing, x + _LEFT, x + _RIGHT, top, height, kind, slant=_SLANT)
    drawing.text(x + _LEFT + 8, top + height / 2 + 4, name, css_class="soft", size=13)
    for row, operation in enumerate(operations):
        _draw_operation(drawing, x + _BAR, top + _PAD + _ROW * row, operation)
    if not is_residual:
        return top + height
    side, joined = x + _RIGHT + 14, top + height + 8
    drawing.line([(middle, y + 4), (side, y + 4), (side, joined), (middle + 6, joined)], "flow")
    drawing.line([(middle, top + height), (middle, joined)], "flow")
    _draw_plus(drawing, middle, joined)
    return joined + 6


def _is_residual(cell: Cell) -> bool:
    """Return whether a generator's cell is residual: r cells are, except single operations (space `code`)."""
    return cell.kind == "r" and len(cell.operations) == 2


def _draw_outline(
    drawing: Drawing, left: float, right: float, y: float, height: float, kind: Kind, *, slant: float
) -> None:
    upper, lower = (slant if kind == "e" else 0), (slant if kind == "d" else 0)
    corners = [(left - upper, y), (right + upper, y), (right + lower, y + height), (left - lower, y + height)]
    drawing.line([*corners, corners[0]], "flow")


def _draw_operation(drawing: Drawing, x: float, y: float, name: str) -> None:
    length = _LONGEST * count_taps(name) / _MAX_TAPS
    drawing.rect(
        x, y + 1.5, length, _ROW - 3, colour_class(name), opacity=0.2, rx=3, title=f"{name}: {count_taps(name)} taps"
    )
    _draw_glyph(drawing, x + 14, y + _ROW / 2, name)
    drawing.text(x + 33, y + _ROW / 2 + 5, name.replace("_", " "), size=14)


def _draw_glyph(drawing: Drawing, x: float, y: float, name: str) -> None:
    """Draw the weights of a kernel as dots around (x, y), or four pixels for an operation without a kernel."""
    if count_taps(name) > 1:
        kernel, dilation, _ = CONVOLUTION_GEOMETRY.get(name) or CONVOLUTION_GEOMETRY["conv3"]
        step = _STEP * dilation
        start = step * (kernel - 1) / 2
        drawing.dot_grid(x - start, y - start, step, kernel, kernel, css_class=colour_class(name), side=_DOT)
        return
    # pooling: one of four pixels or their mean; interpolation: four equal pixels or a gradient
    shades = {"max_pool": (0.25, 1, 0.25, 0.25), "bilinear": (1, 0.7, 0.7, 0.4)}.get(name, (0.65,) * 4)
    for number, shade in enumerate(shades):
        column, row = number % 2, number // 2
        drawing.rect(x - 6.5 + 7 * column, y - 6.5 + 7 * row, 6, 6, "soft", opacity=shade)


def _draw_plus(drawing: Drawing, x: float, y: float) -> None:
    drawing.rect(x - 6, y - 6, 12, 12, "sum", rx=6)
    drawing.line([(x - 3.5, y), (x + 3.5, y)], "flow")
    drawing.line([(x, y - 3.5), (x, y + 3.5)], "flow")


def _truncate(text: str) -> str:
    """Truncate `text` to the drawn width of a network."""
    max_length = int((_COLUMN - 4) / estimate_text_width("n", 13))
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
