"""A simulation for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from velogan.files import pluralize


def render(result: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield a table with a row per number of devices, and the possible speed-ups of a training on several nodes."""
    images = result["images_per_step"]
    table = Table(
        title=f"a step of {pluralize(images, 'image')} a domain on one device: {result['step_ms']:,.4g} ms "
        f"({result['step_from']}); gradients: {sum(phase['bytes'] for phase in result['phases']) / 1e6:,.1f} MB",
        title_justify="left",
        padding=(0, 1, 0, 0),
        box=SIMPLE_HEAD,
    )
    columns = {"devices": ",d", "images_per_s": ",.4g", "efficiency": ".1%", "hours": ",.4g"}
    columns |= {"step_ms": ",.4g", "exchange_ms": ",.4g", "agree_ms": ",.4g"}
    for name in columns:
        table.add_column(name.replace("_per_s", "/s").replace("_ms", " ms"), justify="right", no_wrap=True)
    for row in result["rows"]:
        table.add_row(*(format(row[name], form) for name, form in columns.items()))
    yield table
    factors, split = result["factors"], result["factors"]["modules"]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in split["shares"].items())
    yield f"method: {factors['method']:.3g} times the default method's images, by arithmetic"
    yield (
        f"modules on {pluralize(split['nodes'], 'node')}, weights exchanged every "
        f"{pluralize(split['every'], 'image')}: {split['times']:.3g} times, "
        f"at most {split['most']:.3g} (each node's share of a step: {shares})"
    )
    yield f"trials side by side: {factors['trials']} times as many, of the same length each"
    yield f"together: {factors['together']:.3g} times on {pluralize(factors['nodes'], 'node')}"
