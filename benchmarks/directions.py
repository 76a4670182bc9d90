"""Two processes with a direction each, against one process and against two that share the images, by turns.

    torchrun --nproc-per-node 2 benchmarks/directions.py [SIDE] [ROUNDS]

`one`: the first process steps alone. `images`: both step on an image each and average their gradients. `directions`:
both step on the same image, each with the networks of one direction (`--train.split directions`). One thread each.
Prints medians over rounds of a step's milliseconds: of the processor, for each process, which other work on the machine
changes least; the wall's; the images/s that processes with a core each would make, by the processor time of the
slower one; how many times those of `one`, the median over turns; and the megabytes over the loopback, where nothing
else should be sent meanwhile (`unshare -n`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from velogan.engine.directions import DirectionRanks
from velogan.engine.ranks import Ranks, joined
from velogan.engine.step import Step
from velogan.recipes import cyclegan
from velogan.training.choices import decide
from velogan.training.trial import step_of

Spent = tuple[float, float]
"""Milliseconds of the wall and of the processor."""


def main(side: int, rounds: int) -> None:
    with joined("cpu", lost_after=600) as ranks:
        config = cyclegan().change(engine={"threads": 1}, data={"crop_size": side})
        config = config.model_copy(update={"engine": ranks.share(decide(config)[0])})
        torch.set_num_threads(1)
        draws = step_of(config, shape=(side, side))[1].draws["train"]
        torch.manual_seed(0)
        batch = {letter: torch.rand(1, 3, side, side) * 2 - 1 for letter in "AB"} | {"uniform": torch.rand(draws, 1)}

        def steps(of: Ranks) -> Callable[[], None]:
            step, _, _ = step_of(config, shape=(side, side), ranks=of)
            assert isinstance(step, Step)

            def run() -> None:
                step({"train": dict(batch)})
                of.agree(seconds=0.0, stopping=False)

            return run

        alone = steps(Ranks())
        ways = {
            "one": lambda: alone() if ranks.first else None,
            "images": steps(ranks),
            "directions": steps(DirectionRanks(ranks)),
        }
        took: dict[str, list[list[Spent]]] = {name: [] for name in ways}
        sent: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                ranks.gather(None)
                bytes_before, began, before = _sent(), time.perf_counter(), time.process_time()
                way()
                wall, used = time.perf_counter() - began, time.process_time() - before
                time.sleep(0.1)  # until the other one is at the end of its step
                over = _sent() - bytes_before
                spent = ranks.gather((1000 * wall, 1000 * used))
                if number:
                    took[name].append(spent)
                    sent[name].append(over / 1e6)
        if ranks.first:
            engine = config.engine
            print(f"{side}x{side}, {rounds} rounds, {engine.precision}, kernels {engine.kernels}")
            for name, turns in took.items():
                _print(name, turns, took["one"], sent[name])


def _print(name: str, turns: list[list[Spent]], one: list[list[Spent]], sent: list[float]) -> None:
    images = 2 if name == "images" else 1
    used = [median(turn[rank][1] for turn in turns) for rank in (0, 1)]
    wall = median(max(wall for wall, _ in turn) for turn in turns)
    slower = [max(used for _, used in turn) for turn in turns]
    times = median(images * alone[0][1] / mine for mine, alone in zip(slower, one))
    print(
        f"{name:<11} processor {used[0]:7.0f} and {used[1]:7.0f} ms, wall {wall:7.0f} ms, "
        f"{1000 * images / median(slower):.3f} images/s, {times:.2f} times one; {median(sent):.2f} MB sent"
    )


def _sent() -> int:
    """Bytes that went over the loopback so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["128", "9"][len(sys.argv) - 1 :])[:2]))
