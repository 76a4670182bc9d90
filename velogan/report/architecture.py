"""The section on architectures: networks of cells that a search found or a run trained, and the search over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from velogan.files import counted
from velogan.networks.genotype import Genotype, read_genotype
from velogan.report.facts import Facts, mapping
from velogan.report.genotype import drawn
from velogan.report.pictures import evenly
from velogan.report.sections import key, text
from velogan.report.share_plots import legend, shares
from velogan.search.history import Tick

MOST_POINTS = 60
"""So many lines of the history are drawn, evenly chosen; the last is one of them."""

FEW = 8
"""Networks with fewer choices stand side by side."""


def architecture(runs: Sequence[Facts]) -> str:
    """The section as HTML; empty where no run has searched or has networks that were found."""
    if len(runs) == 1:
        history = runs[0].architecture
        body = _diagram(runs[0]) + (_shares(history) if history else "")
    else:
        diagrams = ((number, facts, _diagram(facts)) for number, facts in enumerate(runs))
        body = "".join(f"<h3>{key(number)}{text(facts.name)}</h3>{shown}" for number, facts, shown in diagrams if shown)
    return f'<section class="architecture"><h2>Architecture</h2>{body}</section>' if body else ""


def found(facts: Facts) -> Genotype | None:
    """What the search of a run chose, else the operations in its configuration; None without either."""
    try:
        return read_genotype(facts.folder / "genotype.json")
    except (OSError, ValueError):
        pass
    sections = {name: mapping(facts.config.get(name)) for name in ("generator", "discriminator")}
    chosen: dict[str, Any] = {f"{name}s": _by_direction(facts.config, name) for name in sections}
    try:
        return Genotype(space=sections["generator"].get("space") or "paper", **chosen)
    except ValidationError:
        return None


def _by_direction(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Operations of a2b, and of b2a where they differ."""
    ways = {"a2b": mapping(config.get(name)), "b2a": mapping(config.get(f"{name}_b"))}
    return {way: section["operations"] for way, section in ways.items() if section.get("operations")}


def _diagram(facts: Facts) -> str:
    """Draw a run's networks: the generators at the left, the discriminators and the legend at the right."""
    genotype = found(facts)
    if genotype is None:
        return ""
    cards = (f'<div class="card diagram">{drawing}</div>' for drawing in drawn(genotype, domains=facts.way("a2b")))
    return f'<div class="columns">{"".join(cards)}</div>'


def _shares(history: Sequence[Tick]) -> str:
    images, few = history[-1]["images"], evenly(history, MOST_POINTS)
    cards = "".join(
        f'<div class="card{" few" if len(mixtures) < FEW else ""}"><h3>{text(network)}</h3>{shares(few, network)}</div>'
        for network, mixtures in history[-1]["shares"].items()
    )
    return (
        "<h3>Shares of operations</h3>"
        f'<p class="note">A picture for each choice, from 0 to {counted(images, "image")}. The largest share at the '
        f'end is named.</p>{legend(history)}<div class="mixtures">{cards}</div>'
    )
