"""The look of a profile's figures: names, colours, times, shares, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Profile = Mapping[str, Any]
"""What `velogan profile` writes to profile.json."""

HUES = {
    "compute": "var(--c0)",
    "non_compute": "var(--c1)",
    "memory": "var(--c1)",
    "communication": "var(--c3)",
    "host_wait": "var(--worse)",
    "kernel_wait": "var(--c4)",
    "convolution": "var(--c0)",
    "norm, activation, padding": "var(--c1)",
    "copies and fills": "var(--c4)",
    "optimizer": "var(--c5)",
    "fused by the compiler": "var(--c3)",
    "G_A": "var(--c0)",
    "G_B": "var(--c4)",
    "D_A": "var(--c1)",
    "D_B": "var(--c5)",
    "losses": "var(--c6)",
    "loader": "var(--c2)",
    "weights": "var(--c0)",
    "moments": "var(--c4)",
    "averages": "var(--c5)",
    "pool of fakes": "var(--c6)",
    "gradients": "var(--c2)",
    "activations": "var(--c1)",
    "images": "var(--c3)",
}
GREY = "var(--c7)"

NAMES = {
    "compute": "computes",
    "non_compute": "only copies or communicates",
    "idle": "idle",
    "host_wait": "waits for the host",
    "kernel_wait": "between two waiting kernels",
    "other": "other",
    "memory": "memory",
    "communication": "communication",
}


def hue(name: str) -> str:
    """The CSS colour of a category, group or network; grey for what has none."""
    return HUES.get(name, GREY)


def time(microseconds: float) -> str:
    """A time with three digits: "1.25 s", "34.5 ms", "870 µs"."""
    value, unit = microseconds, "µs"
    for larger in ("ms", "s"):
        if value >= 999.5:
            value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if value >= 999.5 else f"{value:.3g} {unit}"


def percent(value: float | None) -> str:
    """A share in percent; a dash if there is none."""
    if value is None:
        return "–"
    return f"{value:.0%}" if value >= 0.1 or value == 0 else f"{value:.1%}" if value >= 0.001 else "<0.1%"


def piece(profile: Profile) -> str:
    """The unit of work: "operator" on a CPU, else "kernel"."""
    return "operator" if profile["device"] == "cpu" else "kernel"


def table(head: Iterable[str], rows: Iterable[str], kind: str = "") -> str:
    """A table of `head`'s cells, as HTML, over `rows` that are HTML already."""
    cells = "".join(f"<th>{cell}</th>" for cell in head)
    return f'<table class="parts {kind}"><thead><tr>{cells}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def card(title: str, note: str, body: str) -> str:
    """A titled box; `note` and `body` are HTML already."""
    return f'<div class="card"><h3>{title}</h3><p class="note">{note}</p>{body}</div>'
