from __future__ import annotations

import json
import math
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from velogan.networks.cells import discriminator_kinds, generator_kinds, operation_names
from velogan.networks.genotype import Genotype, read_genotype
from velogan.report import write_report
from velogan.report.genotype import discriminator_cells, generator_cells, genotype_to_svg
from velogan.report.share_plots import group_by_cell

MakeRun = Callable[..., Path]

RESIDUAL = [f"model.r{number}.cell.{layer}" for number in range(1, 10) for layer in (0, 3)]
GENERATOR = dict(zip(["model.e.0", "model.e.3", *RESIDUAL, "model.d.0", "model.d.3"], generator_kinds(9)))
DISCRIMINATOR = dict(zip(["model.0", "model.3", "model.6", "model.9"], discriminator_kinds()))
NETWORKS = {"G_A": GENERATOR, "G_B": GENERATOR, "D_A": DISCRIMINATOR, "D_B": DISCRIMINATOR}
ROWS = 100
TORN = '{"images": 12'


def walk(seed: int = 0) -> list[dict[str, Any]]:
    """A search of four networks: weights drift to what each place likes, with noise."""
    draw = random.Random(seed)
    liked = {
        (net, place): {name: draw.gauss(0, 0.03) for name in operation_names(kind)}
        for net, places in NETWORKS.items()
        for place, kind in places.items()
    }
    alpha = {at: dict.fromkeys(names, 0.0) for at, names in liked.items()}
    rows = []
    for row in range(1, ROWS + 1):
        shares: dict[str, dict[str, dict[str, float]]] = {net: {} for net in NETWORKS}
        for (net, place), names in liked.items():
            weights = alpha[net, place]
            weights.update({name: weights[name] + drift + draw.gauss(0, 0.02) for name, drift in names.items()})
            total = sum(map(math.exp, weights.values()))
            shares[net][place] = {name: math.exp(weight) / total for name, weight in weights.items()}
        rows.append({"images": 120 * row, "shares": shares})
    return rows


def found(rows: list[dict[str, Any]]) -> dict[str, Any]:
    won = {net: [max(one, key=one.__getitem__) for one in of.values()] for net, of in rows[-1]["shares"].items()}
    ways = ("a2b", "b2a")
    generators, discriminators = ({way: won[f"{x}_{y}"] for way, y in zip(ways, "AB")} for x in "GD")
    return {"generators": generators, "discriminators": discriminators}


def searched(run: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps(row) for row in rows]
    (run / "architecture.jsonl").write_text("\n".join([*lines, TORN]))
    (run / "genotype.json").write_text(json.dumps(found(rows)))
    return run


def page(*runs: Path) -> str:
    return write_report(list(runs)).read_text()


def test_a_search_is_shown(make_run: MakeRun) -> None:
    rows = walk()
    source = page(searched(make_run(), rows))
    assert source.count("<figcaption><b>") == len(GENERATOR) * 2 + len(DISCRIMINATOR) * 2
    for network, mixtures in rows[-1]["shares"].items():
        for place, mixture in mixtures.items():
            name = max(mixture, key=mixture.__getitem__)
            label = place.split(".")[1]
            if not label.isdigit():
                winner = f"{name} with {mixture[name]:.0%}"
                assert f"{network}, cell {label}: weights of operations; at the end {winner}" in source
    for said in ("from 0 to 12,000 images", "apples → oranges", "judges oranges", "taps in its r cells"):
        assert said in source
    assert len(source) < 600_000
    assert "http:" not in source.replace("http://www.w3.org/2000/svg", "")


def test_a_search_waits_for_no_scores(make_run: MakeRun) -> None:
    source = page(searched(make_run(scores=[]), walk()))
    assert "A search: the command “velogan train --genotype” trains the architecture that it chose." in source
    assert "velogan evaluate" not in source


def test_a_run_of_found_networks_shows_them(make_run: MakeRun) -> None:
    both = found(walk())
    sections = {
        f"{name[:-1]}{end}": {"network": "cells" if not end else None, "operations": both[name][way]}
        for name in ("generators", "discriminators")
        for way, end in (("a2b", ""), ("b2a", "_b"))
    }
    source = page(make_run("found", config=sections))
    assert "The cells of the generators" in source
    assert "The cells of the discriminators" in source
    assert "Weights of operations" not in source
    alone = page(make_run("alone", config={"generator": sections["generator"]}))
    assert "The cells of the generators" in alone
    assert "The cells of the discriminators" not in alone


def test_two_searches_are_compared_by_their_networks(make_run: MakeRun) -> None:
    runs = [searched(make_run(name), walk(seed)) for seed, name in enumerate(("first", "second"))]
    source = page(*runs)
    assert source.count("The cells of the generators") == 2
    assert "Weights of operations" not in source


@pytest.mark.parametrize(
    "config",
    [
        {"generator": {"network": "resnet"}},
        {"generator": {"operations": ["conv3"]}},
        {"generator": {"operations": 5, "space": []}},
        {"generator": "none"},
    ],
)
def test_other_runs_have_no_such_section(make_run: MakeRun, config: dict[str, Any]) -> None:
    run = make_run(config=config)
    (run / "architecture.jsonl").write_text(TORN)
    (run / "genotype.json").write_text("{}")
    assert "<h2>Architecture</h2>" not in page(run)


def test_names_in_a_search_stay_text(make_run: MakeRun) -> None:
    run, bad = make_run(), '"><script>alert(1)</script>'
    row = {"images": 0, "shares": {bad: {bad: {bad: 0.5, "max_pool": 0.5}, "x": {"nearest": 1}}}}
    (run / "architecture.jsonl").write_text(f"{json.dumps(row)}\n" * 30)
    source = page(run)
    assert "Weights of operations" in source
    assert "<script>alert" not in source


def test_the_file_of_a_genotype_has_every_operation_in_its_place() -> None:
    genotype = Genotype.model_validate(found(walk()))
    tree = ElementTree.fromstring(genotype_to_svg(genotype))
    texts = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    names = {name.replace("_", " ") for kind in ("e", "r", "d") for name in operation_names(kind)}
    drawn = [text.replace(" ", "_") for text in texts if text in names]
    assert drawn == [
        name for ways in (genotype.generators, genotype.discriminators) for one in ways.values() for name in one
    ]
    assert texts.count("r9") == 2
    bars = [float(element.get("width", 0)) for element in tree.iter() if len(element) and element.get("rx") == "3"]
    assert max(bars) == pytest.approx(49 / 9 * min(bar for bar in bars if bar > 5), rel=0.01)


def test_the_picture_in_the_documents_is_of_its_genotype() -> None:
    """Else: python -m benchmarks.draw_genotype docs/genotype.json docs/genotype.svg "TITLE"."""
    docs = Path(__file__).parents[2] / "docs"
    shown = (docs / "genotype.svg").read_text()
    title = shown.split("<title>")[1].split("</title>")[0]
    assert genotype_to_svg(read_genotype(docs / "genotype.json"), title=title) == shown


def test_cells_of_the_code_have_single_operations_at_their_ends() -> None:
    generator = ["conv7", "conv3", "conv4", "conv5", "dilated3", "nearest", "bilinear", "conv7"]
    judge = ["conv3", "conv4", "conv5", "dilated3", "conv7"]
    genotype = Genotype(space="code", generators={"a2b": tuple(generator)}, discriminators={"a2b": tuple(judge)})
    shown = [(name, list(names)) for name, _, names in generator_cells(genotype, "a2b")]
    assert [name for name, _ in shown] == ["stem", "e", "r1", "d", "head"]
    assert [one for _, names in shown for one in names] == generator
    assert [(name, len(names)) for name, _, names in discriminator_cells(genotype, "a2b")] == [
        ("e1", 2),
        ("e2", 1),
        ("r1", 2),
    ]


def test_places_are_gathered_by_cell() -> None:
    mixture = {"max_pool": 1.0}
    assert group_by_cell(dict.fromkeys(DISCRIMINATOR, mixture)) == [
        ("e1", ["model.0", "model.3"]),
        ("e2", ["model.6", "model.9"]),
    ]
    named = group_by_cell({place: {"conv3": 1.0} for place in GENERATOR})
    assert [label for label, _ in named] == ["e", *(f"r{n}" for n in range(1, 10)), "d"]
