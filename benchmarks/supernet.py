"""What a supernet costs: merged mixtures beside the plain sum, and beside one network of cells.

    python -m benchmarks.supernet [WIDTH [SIDE [ROUNDS [PART ...]]]]

PART is `generator` or `discriminator`, forward and backward, or `step`: a whole step of a one-step search, and of
training one network of cells. All are measured by default. WIDTH is a generator's H and a discriminator's C. One
thread, one image. Milliseconds are processor time, the least of the rounds, all ways in turn in one process; `share` is
that of the plain sum's, `by_turns` the median of the shares of the rounds; native is as the fast engine computes here.
Peak memory is what a first pass adds, in a child process of its own for each way. `gradient` is how far the merged
gradients are from the plain sum's, over all weights, as a share of their norm.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.bench.contestant import Contestant
from velogan.engine.memory import keep_freed_memory
from velogan.kernels.fused import native
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.recipes import cyclegan, to_search
from velogan.search.supernet import Supernets, mixtures
from velogan.training.forward import norm_kernels, products

PARTS = ("generator", "discriminator", "step")
WAYS = ("plain sum", "merged", "merged, native", "one network", "one network, native")

Run = Callable[[], None]


class Pass:
    """A network forward and backward, on one image."""

    def __init__(self, part: str, way: str, *, width: int, side: int, half: bool):
        merged = way.startswith("merged") if not way.startswith("one") else None
        net = _network(part, width, merged=merged).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        kernels = norm_kernels(torch.device("cpu"))
        assert not isinstance(kernels, str)
        self.net, self.half = net, half
        self.forward: Callable[[Tensor], Tensor] = net
        if "native" in way:
            self.forward = native(net, kernels=kernels, gemm=products("bf16" if half else "fp32"))
        images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
        self.images = images.contiguous(memory_format=torch.channels_last)

    def __call__(self) -> None:
        self.net.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            made = self.forward(self.images)
        made.float().square().mean().backward()

    def gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.net.parameters() if p.grad is not None])


def _network(part: str, width: int, *, merged: bool | None) -> nn.Module:
    """Of mixtures, or where `merged` is None of hand-made operations."""
    if part == "generator":
        config = GeneratorConfig(network="cells", channels=width)
        return build_generator(config) if merged is None else Supernets(merged=merged).generator(config)
    judge = DiscriminatorConfig(network="cells", channels=width)
    return build_discriminator(judge) if merged is None else Supernets(merged=merged).discriminator(judge)


def step(way: str, *, width: int, side: int, half: bool) -> Run:
    """A step of CycleGAN on supernets, or on one network of cells each."""
    config = to_search(cyclegan())
    if way.startswith("one"):
        config = config.change(method=config.method.model_dump()["inner"])
    engine = {"precision": "bf16" if half else "fp32", "device": "cpu", "threads": 1}
    if "native" not in way:
        engine |= {"kernels": "plain", "compile": "off"}
    widths = {"generator": {"channels": width}, "discriminator": {"channels": width}}
    config = config.change(**widths, data={"crop_size": side}, train={"length": "1 epochs"})
    made = Contestant(way, config, engine=engine, say=lambda text: None)
    for mixed in (mixed for net in made.nets.values() for mixed in mixtures(net).values()):
        mixed.merged = way.startswith("merged")
    return made.run


def started(part: str, way: str, *, width: int, side: int, half: bool) -> Run:
    """Each way draws the same first weights."""
    torch.manual_seed(0)
    make = step if part == "step" else lambda way, **size: Pass(part, way, **size)
    return make(way, width=width, side=side, half=half)


def milliseconds(run: Run) -> float:
    """Of processor time."""
    begin = time.process_time()
    run()
    return 1000 * (time.process_time() - begin)


def memory(part: str, way: str, width: int, side: int, half: bool) -> float:
    """Megabytes that the first pass adds to this process, gradients of weights included."""
    torch.set_num_threads(1)
    run = started(part, way, width=width, side=side, half=half)
    started(part, way, width=4, side=64, half=half)()  # the libraries are loaded
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(width: int = 64, side: int = 256, rounds: int = 3, parts: tuple[str, ...] = PARTS) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    children = multiprocessing.get_context("spawn")
    for part in parts:
        for half in (False, True):
            runs = {way: started(part, way, width=width, side=side, half=half) for way in WAYS}
            times: dict[str, list[float]] = {way: [] for way in runs}
            for _ in range(rounds):
                for way, run in runs.items():
                    times[way].append(milliseconds(run))
            grads = {way: run.gradient() for way, run in runs.items() if isinstance(run, Pass)}
            for way, found in times.items():
                with children.Pool(1) as pool:
                    peak = pool.apply(memory, (part, way, width, side, half))
                plain = times["plain sum"]
                row = {"part": part, "precision": "bf16" if half else "fp32", "way": way, "ms": round(min(found))}
                row |= {"share": round(min(found) / min(plain), 3)}
                row |= {"by_turns": round(median(one / other for one, other in zip(found, plain)), 3)}
                row |= {"peak_mb": round(peak)}
                if way in grads and not way.startswith("one"):
                    true = grads["plain sum"]
                    row["gradient"] = float(f"{(grads[way] - true).norm() / true.norm():.2g}")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(**dict(zip(("width", "side", "rounds"), map(int, sys.argv[1:4]))), parts=tuple(sys.argv[4:]) or PARTS)
