"""What a step exchanges and computes, on the real networks."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.simulate.__main__ import main
from benchmarks.simulate.load import load_of
from velogan.engine.distributed import DistributedContext
from velogan.recipes import RECIPES
from velogan.training.build import build_step

TINY = {
    "generator": {"channels": 4, "blocks": 1},
    "discriminator": {"channels": 4},
    "data": {"crop_size": 32},
    "engine": {"precision": "fp32", "kernels": "plain", "threads": 1},
}
FLAGS = ["--image-size", "32", "--size", "xs"]


class Counting(DistributedContext):
    """One of two, whose peer is not there: counts what it would send."""

    def __init__(self):
        super().__init__(0, 2)
        self.sent: list[int] = []


@pytest.mark.parametrize("preset", ["cyclegan", "onepair"])
def test_counts_the_bytes_that_a_step_exchanges(preset: str, monkeypatch: pytest.MonkeyPatch):
    config = RECIPES[preset]().change(**TINY)
    distributed = Counting()
    monkeypatch.setattr("torch.distributed.all_reduce", lambda flat: distributed.sent.append(flat.nbytes))
    step, objective, _ = build_step(config, shape=(32, 32), distributed=distributed)
    batch = {letter: torch.rand(1, 3, 32, 32) for letter in "AB"} | {
        "uniform": torch.rand(objective.num_uniforms["train"], 1)
    }
    step({"train": batch})
    assert [phase.bytes for phase in load_of(config).phases] == distributed.sent


def test_counts_the_operations_of_the_paper():
    load = load_of(RECIPES["cyclegan"]())
    assert load.flops == pytest.approx(1.88e12, rel=0.01)
    generator, discriminator = load.phases
    assert generator.flops_alone == generator.flops  # it needs nothing of others
    assert discriminator.flops_alone - discriminator.flops == pytest.approx(4 * 49.55e9, rel=0.01)  # two fakes
    assert load.weights == 4 * 2 * (11_378_179 + 2_764_737)


def test_command_prints_json_and_a_table(capsys: pytest.CaptureFixture[str]):
    words = [*FLAGS, "--step-ms", "10", "--devices", "1..4", "--trials", "3", "--images", "3600"]
    main(["onepair", *words, "--memory", "10GB", "--json"])
    out = capsys.readouterr()
    result = json.loads(out.out)
    assert [row["devices"] for row in result["rows"]] == [1, 2, 4]
    first = result["rows"][0]
    assert first["images_per_s"] == pytest.approx(100)
    assert first["hours"] == pytest.approx(0.01)
    assert first["efficiency"] == 1
    assert result["rows"][1]["efficiency"] < 1
    assert result["factors"]["nodes"] == 9
    assert "efficiency" in out.err


def test_compares_a_method_with_the_default_preset(capsys: pytest.CaptureFixture[str]):
    main(["onepair", "--set", "generator.decoder=simple", "--step-ms", "10", "--memory", "10GB", "--json"])
    assert json.loads(capsys.readouterr().out)["factors"]["method"] == pytest.approx(3.11, abs=0.005)


@pytest.mark.parametrize("words", ["--devices 0", "--per-host 8", "--step-ms -1", "--set generator.block=3"])
def test_rejects_bad_input(words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main([*FLAGS, "--step-ms", "10", *words.split()])
    out = capsys.readouterr()
    assert words.split()[0] in out.err.splitlines()[-1] or "generator.block" in out.err
    assert not out.out
