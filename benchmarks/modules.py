"""Each phase of a method alone, as on a node of its own, against the whole step: processor time, by turns.

    python -m benchmarks.modules [PRESET] [SIDE] [ROUNDS]

A phase alone computes with frozen networks what earlier phases would have handed on. Prints medians of the ratios to
the whole step of the same turn, beside what `benchmarks.simulate` counts in operations. One thread.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

from benchmarks.simulate.load import load_of
from velogan.engine.step import Step
from velogan.recipes import RECIPES
from velogan.training.choices import decide
from velogan.training.trial import step_of


def main(preset: str, side: int, rounds: int) -> None:
    config = RECIPES[preset]().change(engine={"threads": 1}, data={"crop_size": side})
    config = config.model_copy(update={"engine": decide(config)[0]})
    torch.set_num_threads(1)
    step, objective, _ = step_of(config, shape=(side, side))
    assert isinstance(step, Step)
    batch = {letter: torch.rand(1, 3, side, side) * 2 - 1 for letter in "AB"}
    batch["uniform"] = torch.rand(objective.draws["train"], 1)
    ways = {"whole": step.phases} | {phase.name: [phase] for phase in step.phases}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, phases in ways.items():
            began = time.process_time()
            step.run_phases(phases, {"train": dict(batch)}, number=0)
            if number:
                took[name].append(time.process_time() - began)
    load = load_of(config)
    whole = 1000 * median(took["whole"])
    print(f"{preset}, {side}x{side}, {rounds} rounds: the whole step {whole:.0f} ms of processor time")
    for phase in load.phases:
        share = median(mine / whole for mine, whole in zip(took[phase.name], took["whole"]))
        print(f"{phase.name:<14} {share:.2f} of it; by operations {phase.flops_alone / load.flops:.2f}")


if __name__ == "__main__":
    words = [*sys.argv[1:4], *["onepair", "128", "9"][len(sys.argv[1:4]) :]]
    main(words[0], int(words[1]), int(words[2]))
