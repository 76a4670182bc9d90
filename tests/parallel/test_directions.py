"""Two processes that each have the networks of one direction train like one process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from velogan.engine.ranks import Ranks
from velogan.observe.log import read_stats
from velogan.recipes import RECIPES
from velogan.store.checkpoint import digest, list_checkpoints
from velogan.training.followers import as_split

SPLIT = ("--train.split", "directions")
STABILISED = ("--method.augment", "shift", "--method.augment-probability", "0.7")
CASES = {
    # plain kernels move a bias in front of a norm, too, whose gradient is a rounding error: by Adam a full step
    "as the preset": ["--engine.kernels", "native", "--method.pool-size", "2"],
    "all else": [
        *("--optimizer.kind", "sgd", "--engine.batched", "off", "--method.pool-size", "2"),
        *("--method.edges", "3", "--method.untranslated", "0.3"),
        *(*STABILISED, "--train.accumulate", "2"),
    ],
}
CLOSE = 1e-4
"""The most that the difference's norm may be of a tensor's: sums of float32 in another order."""

BREAK = """
import math, os
from dataclasses import replace
from velogan.methods.cyclegan import CycleGANObjective as Objective
plain, calls = Objective.discriminator_loss, []

def broken(self, *given):
    out = plain(self, *given)
    calls.append(1)
    return replace(out, total=out.total * math.nan) if os.environ["RANK"] == "1" and len(calls) in (2, 3) else out

Objective.discriminator_loss = broken
"""

DIE = """
import os
from velogan.engine.directions import DirectionRanks
plain, calls = DirectionRanks.swap, []

def dying(self, mine, shape):
    calls.append(1)
    if os.environ["RANK"] == "1" and len(calls) == 6:  # within a backward pass
        os._exit(9)
    return plain(self, mine, shape)

DirectionRanks.swap = dying
"""


@pytest.mark.parametrize("case", CASES)
def test_five_steps_are_those_of_one_process(case: str, start, flags, close, tmp_path: Path):
    more = CASES[case]
    images = 10 if "--train.accumulate" in more else 5
    jobs = [
        start(flags(tmp_path / "one", *more, images=images, every=images), ranks=1),
        start(flags(tmp_path / "two", *more, *SPLIT, images=images, every=images)),
    ]
    for job in jobs:
        codes, said = job.wait()
        assert not any(codes), "\n".join(said)
    close(tmp_path / "one", tmp_path / "two", most=CLOSE, moments="sgd" not in more)
    rows = [read_stats(tmp_path / run) for run in ("one", "two")]
    for mine, theirs in zip(*rows, strict=True):
        losses = {name: value for name, value in mine.items() if name.startswith("loss/")}
        assert {name: theirs[name] for name in losses} == pytest.approx(losses, rel=CLOSE)
    result = json.loads(said[0].splitlines()[-1])
    assert (result["images_seen"], result["ranks"]) == (images, 2)


def test_a_run_goes_on_bit_for_bit_and_in_one_process_too(start, flags, tmp_path: Path):
    run, more = tmp_path / "run", [*STABILISED, "--method.pool-size", "2", "--train.samples", "2"]
    given: dict[str, Any] = {"images": 6, "every": 3}
    assert start(flags(run, *more, *SPLIT, **given)).wait()[0] == [0, 0]
    last = list_checkpoints(run)[-1]
    unbroken = digest(last)
    shutil.rmtree(last)
    codes, said = start(flags(run, *more, *SPLIT, **given)).wait()
    assert codes == [0, 0], said
    assert "at 3 images" in said[0]
    assert digest(last) == unbroken

    shutil.rmtree(last)
    codes, said = start(flags(run, *more, **given), ranks=1).wait()
    assert codes == [0], said
    assert "trained by" not in said[0]  # an update is what it was
    assert digest(last) != unbroken  # to rounding
    assert start(flags(run, *more, *SPLIT, images=8)).wait()[0] == [0, 0]
    assert read_stats(run)[-1]["images"] == 8


def test_a_broken_number_of_one_is_skipped_by_both(start, flags, tmp_path: Path):
    run = tmp_path / "run"
    codes, said = start(flags(run, *SPLIT, "--on-nonfinite", "skip", images=5), code=BREAK).wait()
    assert codes == [0, 0], said
    assert read_stats(run)[-1]["skipped_steps"] == 2


def test_who_is_lost_in_a_backward_pass_is_named(start, flags, tmp_path: Path):
    codes, said = start(flags(tmp_path / "run", *SPLIT), code=DIE).wait()
    assert codes == [1, 9]
    assert re.search(r"velogan: lost rank 1 of 2 \(.*the same command goes on", said[0]), said[0]


@pytest.mark.parametrize(
    ("preset", "changes", "world", "said"),
    [
        ("cyclegan", {}, 1, "train.split=directions is for two processes, and there is 1: start with torchrun"),
        ("cyclegan", {}, 3, "train.split=directions is for two processes, and there are 3: start with torchrun"),
        ("onepair", {}, 2, "method=onepair has none: set method=cyclegan, or train.split=images"),
        ("cyclegan", {"train": {"exchange_precision": "bf16"}}, 2, "set train.exchange_precision=fp32"),
        ("cyclegan", {"generator": {"norm": "sync_batch"}}, 2, "norm=sync_batch has nothing to do: set norm=batch"),
    ],
)
def test_what_cannot_be_split_is_refused(preset: str, changes: dict[str, Any], world: int, said: str):
    config = RECIPES[preset]().change(train={"split": "directions"}).change(**changes)
    with pytest.raises(ValueError, match=said):
        as_split(Ranks(0, world), config)
