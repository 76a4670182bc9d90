"""Two processes with a batch of one each train like one process with a batch of two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velogan.observe.log import read_stats

CASES = {
    # plain kernels move a bias in front of a norm, too, whose gradient is a rounding error: by Adam a full step
    "cyclegan": ["cyclegan", "--engine.kernels", "native"],
    "onepair, two parts each": ["onepair", "--engine.kernels", "native", "--train.accumulate", "2"],
    "contrast": ["contrast", "--engine.kernels", "native"],
    "annotated": ["cyclegan", "--engine.kernels", "native"],
    "volumes": ["cyclegan", "--engine.kernels", "native"],
    "search": [
        *("cyclegan", "--method", "two-step", "--space", "paper"),
        *("--optimizer.kind", "sgd", "--optimizer.lr", "0.01"),
    ],
}
CLOSE = 1e-4
"""The most that the difference's norm may be of a tensor's: sums of float32 in another order."""
SEEDS = (3, 4, 5)
"""One after another until one is close: rounding may turn a ReLU's gradient on or off. A fault is one with each."""


@pytest.mark.parametrize("case", CASES)
def test_five_steps_of_two_ranks_are_those_of_one_with_their_batch(
    case: str, start, flags, close, tmp_path: Path, request: pytest.FixtureRequest
):
    preset, *more = CASES[case]
    images = 20 if "--train.accumulate" in more else 10
    command = "search" if case == "search" else "train"
    common: dict[str, Any] = {"command": command, "preset": preset, "images": images, "every": images}
    common["data"] = request.getfixturevalue(case) if case in ("annotated", "volumes") else None
    apart = []
    for seed in SEEDS:
        runs = tmp_path / f"one{seed}", tmp_path / f"two{seed}"
        jobs = [
            start(flags(runs[0], *more, "--data.batch-size", "2", seed=seed, **common), ranks=1),
            start(flags(runs[1], *more, seed=seed, **common)),
        ]
        for job in jobs:
            codes, logs = job.wait()
            assert not any(codes), "\n".join(logs)
        rows = [read_stats(run) for run in runs]
        assert [row["images"] for row in rows[0]] == [row["images"] for row in rows[1]]
        try:
            close(*runs, most=CLOSE, moments="sgd" not in more)
            for name in (
                "loss/discriminator/total",
                f"loss/{'translator' if preset == 'onepair' else 'generator'}/total",
            ):
                assert [row[name] for row in rows[1]] == pytest.approx([row[name] for row in rows[0]], rel=CLOSE)
            break
        except AssertionError as error:
            apart.append(str(error))
    assert len(apart) < len(SEEDS), apart

    result = json.loads(logs[0].splitlines()[-1])
    assert command == "search" or result["world_size"] == 2
    assert result["images_seen"] == images
    assert logs[1] == ""
