"""Variants whose networks a search finds: what they are built of, and the search as the first stage of a trial."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from velogan.config import Config, read_config, write_yaml
from velogan.measure.probe import StepCost
from velogan.networks.genotype import read_genotype
from velogan.networks.sizes import size
from velogan.store.checkpoint import list_checkpoints
from velogan.sweep.attempt import attempt
from velogan.sweep.cost import cost
from velogan.sweep.folder import TrialState
from velogan.sweep.plan import SweepPlan, Trial
from velogan.sweep.planfile import read_plan
from velogan.sweep.sweep import check_folders, rows_of, summary

SEARCH = "found: {train.length: 9 images, generator.channels: 4}"
VARIANTS = """
  C: {}
  N: {genotype: found}
  random: {genotype: {from: found, random: true, hidden: 5}}
  sizes: {genotype: {from: found, only: sizes}}
  patchgan: {genotype: {from: found, only: generators}}
"""


@pytest.fixture
def make(tiny_config: Callable[..., Config], tmp_path: Path) -> Callable[..., SweepPlan]:
    base = tiny_config(
        data={"render_count": 22, "validation": 2},
        train={"checkpoint_every": "3 images"},
        engine={"threads": None, "kernels": "plain", "precision": "fp32"},
    )
    sections = base.model_dump(mode="json", exclude={"method"})

    def plan(search: str = SEARCH, variants: str = VARIANTS) -> SweepPlan:
        path = tmp_path / "plan.yaml"
        head = f"data: apples2oranges\nimages: 2\nseeds: 2\nconfig: {json.dumps(sections)}\n"
        path.write_text(f"{head}searches:\n  {search}\nvariants:{variants}\n")
        return read_plan(path)

    return plan


def of(plan: SweepPlan, name: str, seed: int = 0) -> Trial:
    return next(one for one in plan.known_trials() if one.name == f"preset={name},seed={seed}")


def start(out: Path, plan: SweepPlan, name: str) -> TrialState:
    trial = of(plan, name)
    common: dict[str, Any] = {"budget": plan.budget, "metric": plan.metric, "origin": {"command": "here"}, "cores": 1}
    tree = trial.config.model_dump(mode="json")
    return attempt(out, trial.name, tree, report=lambda *_: None, source=trial.source, **common)


@pytest.mark.usefixtures("forked")
def test_a_search_is_the_first_stage_of_the_trials_that_share_it(
    make: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    plan, out = make(), tmp_path / "out"
    search = out / "searches" / "found,seed=0"
    killed: list[int] = []

    def kill() -> None:
        while not list_checkpoints(search):
            time.sleep(0.01)
        killed.append(int((search / ".lock").read_text().split()[0]))
        os.kill(killed[0], signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    found = start(out, plan, "N")
    killer.join()
    assert (found.status, found.images) == ("done", 2), found
    assert f"continuing {search}" in (out / "status" / "preset=N,seed=0.log").read_text()
    genotype = read_genotype(Path(f"{search}.json"))
    assert genotype.provenance["images"] == 9

    runs = {name: of(plan, name).settled(out).spec for name in ("random", "sizes", "patchgan")}
    runs["N"] = read_config(out / "trials" / "preset=N,seed=0").spec
    operations = {name: [one.operations for one in spec.generators.values()] for name, spec in runs.items()}
    assert operations["N"] == operations["patchgan"] == list(genotype.generators.values())
    assert operations["random"] not in (operations["N"], [(), ()])
    judges = {name: [one.operations for one in spec.discriminators.values()] for name, spec in runs.items()}
    assert judges["N"] == list(genotype.discriminators.values())
    assert judges["patchgan"] == judges["sizes"] == [(), ()]
    assert {one.channels for one in runs["random"].generators.values()} == {5}
    for way, one in runs["sizes"].generators.items():
        goal = size(runs["N"].generators[way]).parameters
        off = [
            abs(size(one.model_copy(update={"channels": one.channels + more})).parameters - goal)
            for more in (-1, 0, 1)
            if one.channels + more > 0
        ]
        assert off[-2] == min(off)
        assert one.network == "resnet"

    check_folders(out, plan.known_trials())  # what is there is this sweep, and what was found belongs to it
    (row,) = summary(plan, rows_of(plan, out, [of(plan, "N")]), out)["trials"]
    assert 0 < row["search_seconds"] < row["seconds"]
    with pytest.raises(ValueError, match=r"name a new --out.*has ended after 9 images.* is 90 images now"):
        check_folders(out, make(SEARCH.replace("9", "90")).known_trials())


def test_seeds_search_and_draw_for_themselves(make: Callable[..., SweepPlan]) -> None:
    plan = make()
    sources = [of(plan, "N", seed).source for seed in (0, 1)]
    assert [one and one.search.train.seed for one in sources] == [0, 1]
    drawn = [of(plan, "random", seed).config for seed in (0, 1)]
    assert drawn[0].generator.operations != drawn[1].generator.operations
    assert write_yaml(drawn[0]) == write_yaml(of(make(), "random").config)
    fixed = make(SEARCH.replace("{", "{train.seed: 7, "))
    assert {str(of(fixed, "N", seed).source.folder(Path())) for seed in (0, 1)} == {"searches/found,seed=7"}  # pyright: ignore


def test_found_networks_cost_what_others_of_their_size_do(make: Callable[..., SweepPlan]) -> None:
    plan, probed, said = make(), [], []

    def probe(config: Config, cores: Sequence[int]) -> StepCost:
        probed.append(config.generator.operations)
        return StepCost(seconds=1.0, memory_mb=100.0, gpu_memory_mb=0.0)

    found = cost(plan, plan.known_trials(), parallel=1, fit=lambda config: config, probe=probe, say=said.append)
    assert [len(operations) for operations in probed] == [0, 6, 6, 0, 6]
    assert found["seconds"] == 20
    assert "2 searches" in said[0]


def test_what_cannot_have_its_size_fails_alone(make: Callable[..., SweepPlan], tmp_path: Path) -> None:
    plan = make(
        variants="\n  C: {}\n  N: {genotype: {from: found, match: own}}"
    )  # of 16 feature maps none are within 1 %
    trial = of(plan, "N")
    assert trial.source
    file = Path(f"{trial.source.folder(tmp_path)}.json")
    file.parent.mkdir()
    file.write_text(trial.source.drawn(0).text())
    with pytest.raises(ValueError, match="nearest differs"):
        trial.source.built(trial.config, trial.source.drawn(0))
    check_folders(tmp_path, plan.known_trials())


@pytest.mark.parametrize(
    ("search", "genotype", "said"),
    [
        ("found: {train.length: 2 images}", "fuond", "from='fuond' is no search; did you mean found"),
        ("found: {train.length: 2 images}", "{from: found, width: 3}", r"variants\.N\.genotype: width: there is no"),
        ("found: {train.length: 2 images}", "{from: found, match: big}", "match=big: write own"),
        ("found: {train.length: 2 images}", "{from: found, match: own, hidden: 3}", "contradict each other"),
        ("found: {train.length: 2 images}", "[found]", "is no genotype"),
        ("found: {}", "found", r"searches\.found: how long"),
        ("found: {train.length: 2 images, method.shceme: halves}", "found", "did you mean method.scheme"),
        ("found: {train.length: 2 images, method.scheme: third}", "found", r"searches\.found: .*method.scheme='third'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    search: str, genotype: str, said: str, make: Callable[..., SweepPlan]
) -> None:
    with pytest.raises(ValueError, match=said):
        make(search, f"\n  N: {{genotype: {genotype}}}")


def test_a_search_that_nothing_is_built_of_is_refused(make: Callable[..., SweepPlan]) -> None:
    with pytest.raises(ValueError, match=r"searches\.found: no variant has it"):
        make(variants="\n  C: {}")
