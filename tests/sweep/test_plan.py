from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from velogan.recipes import RECIPES
from velogan.sweep.dimensions import parse_dimension
from velogan.sweep.plan import SweepPlan, Trial, read_plan

PLANS = sorted((Path(__file__).parents[2] / "benchmarks" / "plans").glob("*.yaml"))


def plan(*vary: str, **changes: Any) -> SweepPlan:
    options: dict[str, Any] = {"bases": {"demo": RECIPES["demo"]()}, "images": 500} | changes
    return SweepPlan(vary=tuple(map(parse_dimension, vary)), **options)


def names(trials: list[Trial]) -> list[str]:
    return [trial.name for trial in trials]


def test_a_grid_is_every_value_with_every_seed() -> None:
    trials = plan("optimizer.lr=0.005,1e-2", "discriminator.norm=none,instance", seeds=2).known_trials()
    assert len(trials) == 8
    assert trials[0].name == "optimizer.lr=0.005,discriminator.norm=none,seed=0"
    assert trials[0].setting_name == trials[4].setting_name
    first = trials[0].config
    assert (first.optimizer.lr, first.discriminator.norm, first.train.seed) == (0.005, "none", 0)
    assert {trial.config.train.length for trial in trials} == {"500 images"}
    assert trials[-1].config.optimizer.lr == 0.01


def test_a_larger_sweep_keeps_the_names_of_its_runs() -> None:
    before = set(names(plan("optimizer.lr=0.005,0.01").known_trials()))
    assert before < set(names(plan("optimizer.lr=2e-4,0.01,0.005", seeds=3).known_trials()))
    few = names(plan("optimizer.lr=1e-5..1e-3:log", search="random", trials=3).known_trials())
    more = names(plan("optimizer.lr=1e-5..1e-3:log", search="random", trials=6, seeds=2).known_trials())
    assert len(set(few)) == 3
    assert set(few) < set(more)
    assert len(more) == 12


def test_trials_have_distinct_names_that_are_valid_for_folders() -> None:
    distinct = set(names(plan("data.group=a/b,a:b").known_trials()))
    assert len(distinct) == 2
    assert not any("/" in name for name in distinct)
    with pytest.raises(ValueError, match="the same"):
        plan("optimizer.lr=0.01,1e-2").known_trials()


def test_random_values_lie_in_the_range() -> None:
    fractions = plan("method.identity=0..1", search="random", trials=5).known_trials()
    assert len({trial.settings["method.identity"] for trial in fractions}) == 5
    trials = plan("generator.channels=4..9", "optimizer.lr=1e-5..1e-3:log", search="random", trials=20).known_trials()
    assert {trial.config.generator.channels for trial in trials} <= set(range(4, 10))
    rates = [trial.config.optimizer.lr for trial in trials]
    assert min(rates) >= 1e-5
    assert max(rates) <= 1e-3
    assert min(rates) < 1e-4 < max(rates)


@pytest.mark.parametrize(
    ("vary", "changes", "message"),
    [
        ("optimizer.lrr=1", {}, "did you mean optimizer.lr"),
        ("optimizer.lr", {}, "field=value"),
        ("optimizer.lr=3..1", {"search": "random", "trials": 2}, "the smaller one first"),
        ("optimizer.lr=0..1:log", {"search": "random", "trials": 2}, "above 0"),
        ("optimizer.lr=1e-5..1e-3:log", {}, "--search random or optuna"),
        ("optimizer.lr=-1..1", {"search": "optuna", "trials": 2}, "optimizer.lr=-1"),
        ("size=huge", {}, "size=huge"),
        ("train.seed=1,2", {}, "--seeds"),
        ("train.patience=1,2", {}, "--stop-early asha"),
        (
            "optimizer.lr=1",
            {"bases": {"demo": RECIPES["demo"]().change(train={"patience": 3})}},
            "train.patience=3 ends",
        ),
        ("optimizer.lr=0.1", {"search": "random"}, "--trials"),
        ("optimizer.lr=0.1", {"trials": 3}, "--search random"),
        ("optimizer.lr=0.1", {"images": None}, "either --minutes or --images"),
        ("optimizer.lr=0.1", {"metric": "loss/generator/total"}, "unknown metric"),
    ],
)
def test_rejects_a_wrong_plan(vary: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        plan(vary, **changes).known_trials()


def test_a_plan_file_is_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "data: apples2oranges\npresets: [demo]\nconfig: {train: {samples: 2}}\n"
        "vary: {optimizer.lr: [0.005, 1e-2], generator.norm: none}\nimages: 500\nseeds: 2\n"
    )
    base = {"demo": RECIPES["demo"]().change(train={"samples": 2})}
    expected = plan("optimizer.lr=0.005,1e-2", "generator.norm=none", seeds=2, bases=base)
    assert names(read_plan(path).known_trials()) == names(expected.known_trials())
    assert read_plan(path).known_trials()[0].config == expected.known_trials()[0].config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: x\nimages: 5\npresets: {demo: {method.dirrection: both}}\n",
            "method.dirrection: there is no such field",
        ),
        ("[1]\n", "a plan is a mapping"),
        ("data: x\nimages: 5\nsteps: 3\n", "steps: unknown field"),
        ("data: x\nimages: 5\npresets: [demmo]\n", "did you mean demo"),
    ],
)
def test_rejects_a_wrong_plan_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read_plan(path)
    assert str(path) in str(raised.value)


def test_overrides_keys_of_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("data: x\nimages: 5\nseeds: 2\npresets: [demo]\n")
    result = read_plan(path, data="y", images=None, minutes=2.5)
    assert (result.budget, result.seeds, result.bases["demo"].data.path) == ("2.5 minutes", 2, ("y",))


@pytest.mark.parametrize("name", [path.stem for path in PLANS])
def test_the_plans_of_the_benchmarks_are_plans(name: str) -> None:
    assert len(read_plan(PLANS[0].with_stem(name)).known_trials()) >= 3


def test_the_rate_of_each_network_may_have_a_range() -> None:
    vary = ("optimizer.rules=G_A:lr=1e-5..1e-3:log", "optimizer.rules=D_*:lr=1e-4..2e-4")
    first, second = plan(*vary, search="random", trials=2).known_trials()
    assert first.name != second.name
    assert first.name.startswith("optimizer.rules.G_A.lr=")
    generator, discriminator, *_ = first.config.optimizer.rules
    assert generator == f"G_A:lr={first.settings['optimizer.rules:G_A:lr']}"
    assert discriminator == f"D_*:lr={first.settings['optimizer.rules:D_*:lr']}"
    assert 1e-5 <= first.config.optimizer.parameter_group("G_A")[1]["lr"] <= 1e-3
