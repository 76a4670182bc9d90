"""Build the architecture section of a report: diagrams of networks, and operation weights during a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from velogan.files import pluralize
from velogan.networks.genotype import Genotype, read_genotype
from velogan.report.genotype import draw_genotype
from velogan.report.pictures import pick_evenly
from velogan.report.run_data import RunData, as_mapping
from velogan.report.sections import make_dot, text
from velogan.report.share_plots import plot_shares, share_legend
from velogan.search.history import HistoryEntry

MAX_POINTS = 60
"""Maximum number of points in a plot: evenly spaced entries of the history, including first and last."""

MIN_FULL_WIDTH = 8
"""Minimum number of mixed operations of a network whose plots take the full width; others are side by side."""


def build_architecture(runs: Sequence[RunData]) -> str:
    """Return the section as HTML; empty if no run is a search or has networks of cells."""
    if len(runs) == 1:
        history = runs[0].architecture
        body = _diagram(runs[0]) + (_share_plots(history) if history else "")
    else:
        diagrams = ((number, run, _diagram(run)) for number, run in enumerate(runs))
        body = "".join(
            f"<h3>{make_dot(number)}{text(run.name)}</h3>{diagram}" for number, run, diagram in diagrams if diagram
        )
    return f'<section class="architecture"><h2>Architecture</h2>{body}</section>' if body else ""


def read_run_genotype(run: RunData) -> Genotype | None:
    """Return the genotype that a search derived, else one of the configured operations; None if there are none."""
    try:
        return read_genotype(run.folder / "genotype.json")
    except (OSError, ValueError):
        pass
    sections = {name: as_mapping(run.config.get(name)) for name in ("generator", "discriminator")}
    chosen: dict[str, Any] = {f"{name}s": _configured_operations(run.config, name) for name in sections}
    try:
        return Genotype(space=sections["generator"].get("space") or "paper", **chosen)
    except ValidationError:
        return None


def _configured_operations(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configured operations by direction, where set; `name`: "generator" or "discriminator"."""
    by_direction = {"a2b": as_mapping(config.get(name)), "b2a": as_mapping(config.get(f"{name}_b"))}
    return {
        direction: section["operations"] for direction, section in by_direction.items() if section.get("operations")
    }


def _diagram(run: RunData) -> str:
    """Return a diagram of a run's networks, with a legend, as HTML; empty if the run has no genotype."""
    genotype = read_run_genotype(run)
    if genotype is None:
        return ""
    cards = (
        f'<div class="card diagram">{drawing}</div>'
        for drawing in draw_genotype(genotype, domains=run.domain_names("a2b"))
    )
    return f'<div class="columns">{"".join(cards)}</div>'


def _share_plots(history: Sequence[HistoryEntry]) -> str:
    images, points = history[-1]["images"], pick_evenly(history, MAX_POINTS)
    cards = "".join(
        f'<div class="card{" few" if len(mixtures) < MIN_FULL_WIDTH else ""}"><h3>{text(network)}</h3>'
        f"{plot_shares(points, network)}</div>"
        for network, mixtures in history[-1]["shares"].items()
    )
    return (
        "<h3>Weights of operations</h3>"
        f'<p class="note">A plot for each mixed operation, from 0 to {pluralize(images, "image")}. The operation with '
        f'the largest weight at the end is named.</p>{share_legend(history)}<div class="mixtures">{cards}</div>'
    )
