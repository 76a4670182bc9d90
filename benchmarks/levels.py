"""A training step of the paper's CycleGAN at one level of instructions: the reference and the default, by turns.

    VELOGAN_CPU_LEVEL=x86-64-v3 python -m benchmarks.levels SIZE ROUNDS [MODES]

MODES are those that are set against the reference: eager and auto. One thread; seconds are those of the processor, so
that other work on the machine hardly matters.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from benchmarks.bench.contestant import Contestant
from velogan.config import Config


def main() -> None:
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    modes = ("reference", *(sys.argv[3:] or ("eager", "auto")))
    config = Config().change(data={"crop_size": size})
    ways = {mode: Contestant(mode, config, engine={"mode": mode, "threads": 1}, say=print) for mode in modes}
    for one in ways.values():
        one.run()
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, one in ways.items():
            began = time.process_time()
            one.run()
            seconds[mode].append(time.process_time() - began)
            print(f"{mode} {seconds[mode][-1]:.2f} s", flush=True)
    print(os.environ.get("VELOGAN_CPU_LEVEL", "native"), size)
    for mode in modes:
        ratios = [slow / fast for slow, fast in zip(seconds["reference"], seconds[mode])]
        shown = " ".join(f"{one:.2f}" for one in ratios)
        typical, ratio = statistics.median(seconds[mode]), statistics.median(ratios)
        print(f"{mode}: {typical:.2f} s, {ratio:.2f} times as fast ({shown})", flush=True)


if __name__ == "__main__":
    main()
