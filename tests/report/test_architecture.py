from __future__ import annotations

import json
import math
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.draw_genotype import genotype_to_svg
from velogan.networks.cells import discriminator_kinds, generator_kinds, operation_names
from velogan.networks.genotype import Genotype, read_genotype
from velogan.report import write_report

MakeRun = Callable[..., Path]

RESIDUAL = [f"model.r{number}.cell.{layer}" for number in range(1, 10) for layer in (0, 3)]
GENERATOR = dict(zip(["model.e.0", "model.e.3", *RESIDUAL, "model.d.0", "model.d.3"], generator_kinds(9)))
DISCRIMINATOR = dict(zip(["model.0", "model.3", "model.6", "model.9"], discriminator_kinds()))
NETWORKS = {"G_A": GENERATOR, "G_B": GENERATOR, "D_A": DISCRIMINATOR, "D_B": DISCRIMINATOR}
ROWS = 100
INCOMPLETE = '{"images": 12'


def search_history(seed: int = 0) -> list[dict[str, Any]]:
    """Return the history of a search of four networks: weights drift in a random direction, with noise."""
    draw = random.Random(seed)
    drifts = {
        (net, place): {name: draw.gauss(0, 0.03) for name in operation_names(kind)}
        for net, places in NETWORKS.items()
        for place, kind in places.items()
    }
    alpha = {at: dict.fromkeys(names, 0.0) for at, names in drifts.items()}
    rows = []
    for row in range(1, ROWS + 1):
        shares: dict[str, dict[str, dict[str, float]]] = {net: {} for net in NETWORKS}
        for (net, place), names in drifts.items():
            weights = alpha[net, place]
            weights.update({name: weights[name] + drift + draw.gauss(0, 0.02) for name, drift in names.items()})
            total = sum(map(math.exp, weights.values()))
            shares[net][place] = {name: math.exp(weight) / total for name, weight in weights.items()}
        rows.append({"images": 120 * row, "shares": shares})
    return rows


def derived(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of the genotype with the largest shares."""
    winners = {
        net: [max(mixture, key=mixture.__getitem__) for mixture in mixtures.values()]
        for net, mixtures in rows[-1]["shares"].items()
    }
    generators, discriminators = ({"a2b": winners[f"{kind}_A"], "b2a": winners[f"{kind}_B"]} for kind in "GD")
    return {"generators": generators, "discriminators": discriminators}


def with_search(run: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(row) for row in rows]
    (run / "architecture.jsonl").write_text("\n".join([*lines, INCOMPLETE]))
    (run / "genotype.json").write_text(json.dumps(derived(rows)))
    return run


def page(*runs: Path) -> str:
    return write_report(list(runs)).read_text()


def test_shows_a_search(make_run: MakeRun) -> None:
    rows = search_history()
    source = page(with_search(make_run(), rows))
    assert source.count("<figcaption><b>") == len(GENERATOR) * 2 + len(DISCRIMINATOR) * 2
    for network, mixtures in rows[-1]["shares"].items():
        for place, mixture in mixtures.items():
            name = max(mixture, key=mixture.__getitem__)
            label = place.split(".")[1]
            if not label.isdigit():
                winner = f"{name} with {mixture[name]:.0%}"
                assert f"{network}, cell {label}: weights of operations; at the end {winner}" in source
    for sentence in ("from 0 to 12,000 images", "apples → oranges", "judges oranges", "taps in its r cells"):
        assert sentence in source
    assert len(source) < 600_000
    assert "http:" not in source.replace("http://www.w3.org/2000/svg", "")


def test_shows_the_networks_of_a_derived_genotype(make_run: MakeRun) -> None:
    both = derived(search_history())
    sections = {
        f"{name[:-1]}{suffix}": {"network": None if suffix else "cells", "operations": both[name][direction]}
        for name in ("generators", "discriminators")
        for direction, suffix in (("a2b", ""), ("b2a", "_b"))
    }
    source = page(make_run("derived", config=sections))
    assert "The cells of the generators" in source
    assert "The cells of the discriminators" in source
    assert "Weights of operations" not in source
    alone = page(make_run("alone", config={"generator": sections["generator"]}))
    assert "The cells of the generators" in alone
    assert "The cells of the discriminators" not in alone


@pytest.mark.parametrize(
    "config",
    [
        {"generator": {"network": "resnet"}},
        {"generator": {"operations": 5, "space": []}},
    ],
)
def test_other_runs_have_no_section(make_run: MakeRun, config: dict[str, Any]) -> None:
    run = make_run(config=config)
    (run / "architecture.jsonl").write_text(INCOMPLETE)
    (run / "genotype.json").write_text("{}")
    assert "<h2>Architecture</h2>" not in page(run)


def test_escapes_names_of_a_search(make_run: MakeRun) -> None:
    run, name = make_run(), '"><script>alert(1)</script>'
    row = {"images": 0, "shares": {name: {name: {name: 0.5, "max_pool": 0.5}, "x": {"nearest": 1}}}}
    (run / "architecture.jsonl").write_text(f"{json.dumps(row)}\n" * 30)
    source = page(run)
    assert "Weights of operations" in source
    assert "<script>alert" not in source


def test_draws_every_operation_in_order() -> None:
    genotype = Genotype.model_validate(derived(search_history()))
    tree = ElementTree.fromstring(genotype_to_svg(genotype))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    names = {name.replace("_", " ") for kind in ("e", "r", "d") for name in operation_names(kind)}
    drawn = [text.replace(" ", "_") for text in texts if text in names]
    assert drawn == [
        name
        for networks in (genotype.generators, genotype.discriminators)
        for names in networks.values()
        for name in names
    ]


def test_the_drawing_in_the_documents_is_current() -> None:
    """To update it: python -m benchmarks.draw_genotype docs/genotype.json docs/genotype.svg "TITLE"."""
    docs = Path(__file__).parents[2] / "docs"
    drawing = (docs / "genotype.svg").read_text()
    title = drawing.split("<title>")[1].split("</title>")[0]
    assert genotype_to_svg(read_genotype(docs / "genotype.json"), title=title) == drawing
