"""Two processes that each have the networks of one direction train like one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from velogan.observe.log import read_stats

SPLIT = ("--train.split", "directions")
POOLED = ("--method.pool-size", "2")
CASES = {
    "as the default, with kernels": ["--engine.kernels", "native", *POOLED],
    "all apart": [
        *("--engine.mode", "reference", "--optimizer.kind", "sgd", "--method.identity-a", "0"),
        *("--method.discriminator-steps", "2", "--train.accumulate", "2"),
    ],
    "kept stable": [
        *("--optimizer.kind", "sgd", *POOLED, "--method.augment", "shift", "--method.augment-probability"),
        *("adaptive", "--method.penalty", "r1", "--method.penalty-every", "2"),
    ],
}
CLOSE = 1e-4


@pytest.mark.parametrize("case", CASES)
def test_five_steps_are_those_of_one_process(case: str, start, flags, computed, tmp_path: Path):
    more = CASES[case]
    images = 10 if "--train.accumulate" in more else 5
    jobs = [
        start(flags(tmp_path / "one", *more, images=images, every=images), ranks=1),
        start(flags(tmp_path / "two", *more, *SPLIT, images=images, every=images)),
    ]
    for job in jobs:
        codes, said = job.wait()
        assert not any(codes), "\n".join(said)
    one, two = computed(tmp_path / "one"), computed(tmp_path / "two")
    assert one.keys() == two.keys()
    worst = max((two[name].double() - value).norm() / (value.double().norm() + 1e-9) for name, value in one.items())
    print(case, float(worst), len(one), [n for n in one if "fake" in n or "exp" in n][:3])
    for name, value in one.items():
        assert (two[name].double() - value).norm() <= CLOSE * value.double().norm() + 1e-6, name
    rows = [read_stats(tmp_path / run) for run in ("one", "two")]
    for mine, theirs in zip(*rows, strict=True):
        losses = {name: value for name, value in mine.items() if name.startswith("loss/")}
        assert {name: theirs[name] for name in losses} == pytest.approx(losses, rel=CLOSE)
