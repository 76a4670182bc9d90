"""From a genotype's file to a trained, translating run, and the count of the search space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from velogan.cli import main
from velogan.cli.search import Search, configure_search
from velogan.cli.train import Train, configure_train
from velogan.config import Config
from velogan.networks.genotype import Genotype, read_genotype
from velogan.networks.sizes import network_size
from velogan.recipes import RECIPES

A = ("conv3", "max_pool", "conv3", "dilated5", "nearest", "bilinear")
B = ("conv7", "avg_pool", "conv5", "conv3", "transposed3", "bilinear")
JUDGE, OTHER = ("conv3", "conv4", "avg_pool", "conv5"), ("conv7", "dilated3", "dilated5", "max_pool")
TINY = "--images 2 --image-size 32 --discriminator.channels 2 --data.render-count 2 --data.render-test 1 "
TINY += "--train.samples 1 --train.logger none --engine.threads 1 --engine.precision fp32"


@pytest.fixture
def genotype(tmp_path: Path) -> Path:
    file = tmp_path / "genotype.json"
    genotype = Genotype(generators={"a2b": A, "b2a": B}, discriminators={"a2b": JUDGE, "b2a": OTHER})
    file.write_text(genotype.to_json())
    return file


def _configured(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[Config, str]:
    train = Train.parse([*map(str, argv), "--data", "here"], prog="velogan train", description="")
    return configure_train(train), capsys.readouterr().err


def test_a_genotype_is_an_ordinary_configuration(genotype: Path, capsys: pytest.CaptureFixture[str]):
    config, table = _configured(capsys, "--genotype", genotype, "--hidden", 12, "--image-size", 96)
    spec = config.spec
    assert {direction: config.operations for direction, config in spec.generators.items()} == {"a2b": A, "b2a": B}
    assert {direction: config.operations for direction, config in spec.discriminators.items()} == {
        "a2b": JUDGE,
        "b2a": OTHER,
    }
    assert {generator.channels for generator in spec.generators.values()} == {12}
    assert "asymmetry: b2a has" in table
    assert f"for one image of {config.data.crop_size}x{config.data.crop_size}" in table
    as_wide, _ = _configured(capsys, "--genotype", genotype)
    assert as_wide.generator.channels == Config().generator.encoding_channels == 256
    matched, _ = _configured(capsys, "--genotype", genotype, "--match-size", "C4")
    assert matched.generator.channels > 16


def test_resnets_may_have_the_size_of_the_searched_generators(genotype: Path, capsys: pytest.CaptureFixture[str]):
    """The paper's C'64: the default preset's networks, in the two sizes of N64."""
    searched, _ = _configured(capsys, "--genotype", genotype, "--match-size", "C64")
    config, table = _configured(capsys, "--genotype", genotype, "--match-size", "C64", "--sizes-only")
    assert config.spec.discriminators == Config().spec.discriminators
    for direction, generator in config.spec.generators.items():
        assert generator.model_copy(update={"channels": 64}) == Config().generator
        expected = network_size(searched.spec.generators[direction]).bytes
        assert network_size(generator).bytes == pytest.approx(expected, rel=1 / generator.channels)
    assert config.spec.generators["a2b"].channels != config.spec.generators["b2a"].channels
    assert "asymmetry" in table


def test_keeps_networks_that_the_genotype_lacks(genotype: Path, capsys: pytest.CaptureFixture[str]):
    genotype.write_text(Genotype(generators={"a2b": A}).to_json())
    config, _ = _configured(capsys, "--genotype", genotype)
    assert config.discriminator == Config().discriminator
    assert config.spec.generators["b2a"].operations == A
    onepair, _ = _configured(capsys, "onepair", "--genotype", genotype)
    assert onepair.spec.generators["b2a"] == onepair.spec.generators["a2b"]


@pytest.mark.parametrize("method", ["cyclegan", "onepair"])
def test_a_run_from_a_genotype_trains_and_translates(
    method: str, genotype: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = tmp_path / "run"
    words = ["train", method, "--genotype", str(genotype), "--hidden", "6", "--data", "apples2oranges"]
    assert main([*words, *TINY.split(), "--out", str(run)]) == 0
    pictures = tmp_path / "pictures"
    assert main(["data", "render", "apples2oranges", str(pictures), "--count", "1", "--test-count", "1"]) == 0
    translate = ["translate", str(run), str(pictures / "testA"), str(tmp_path / "out"), "--tile", "128", "--json"]
    capsys.readouterr()
    assert main(translate) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["tiled"] == 1


SEARCH = "search --data apples2oranges --images 2 --image-size 32 --hidden 8 --cells 3 --discriminator.channels 2 "
SEARCH += TINY.partition("--discriminator.channels 2 ")[2]


def _search(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    paper = ["--space", "paper"]  # whose discriminators take pictures of 32x32
    assert main([*SEARCH.split(), *paper, "--json", *map(str, words)]) == code
    output = capsys.readouterr()
    return json.loads(output.out.splitlines()[-1]) if code == 0 else {}, output.err


def test_from_two_folders_to_a_translator(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, out = tmp_path / "search", ("--out", tmp_path / "search")
    result, _ = _search(capsys, "--method", "halves", "--method.hidden", 12, *out)
    assert result.keys() == {"run", "genotype", "sizes", "images_seen", "seconds"}
    assert result["images_seen"] == 2
    assert {size["hidden"] for size in result["sizes"].values()} == {12}
    genotype = read_genotype(Path(result["genotype"]))
    assert genotype.provenance["config"]["method"]["scheme"] == "halves"
    assert genotype.provenance["images"] == 2
    longer, messages = _search(capsys, "--method", "halves", "--method.hidden", 12, *out, "--images", 4)
    assert longer["images_seen"] == 4
    assert "at 2 images" in messages
    rows = (run / "architecture.jsonl").read_text().splitlines()
    assert [json.loads(row)["images"] for row in rows] == [0, 1, 2, 3, 4]
    _, message = _search(capsys, "--method", "two-step", "--method.hidden", 12, *out, code=2)
    assert "--method is 'two-step' here and 'halves' there" in message
    assert main(["translate", str(run), str(run), str(tmp_path / "no")]) == 2
    assert "velogan train --genotype RUN/genotype.json" in capsys.readouterr().err

    words = ["train", "--genotype", result["genotype"], "--data", "apples2oranges", "--out", str(tmp_path / "run")]
    assert main([*words, *TINY.split()]) == 0
    spec = Config.model_validate(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())).spec
    assert {direction: config.channels for direction, config in spec.generators.items()} == read_genotype(
        Path(longer["genotype"])
    ).hidden
    assert spec.generators["a2b"].operations == read_genotype(Path(longer["genotype"])).generators["a2b"]


def test_a_search_has_the_preset_s_networks_as_cells():
    for preset in (name for name, recipe in RECIPES.items() if recipe().method.is_searchable):
        argv = [preset, "--data", "here", "--space", "code"]
        config = configure_search(Search.parse(argv, prog="velogan search", description=""))
        before = RECIPES[preset]()
        assert config.generator.network == "cells"
        assert config.generator.encoding_channels == max(before.generator.encoding_channels // 4, 4)
        assert config.generator.blocks == before.generator.blocks
        assert config.generator.space == "code"
        assert config.schedule.kind == "constant"
        assert config.optimizer == before.optimizer
        assert config.train.length == (
            "400 epochs" if before.train.length == Config().train.length else before.train.length
        )
