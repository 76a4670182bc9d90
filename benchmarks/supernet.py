"""What a supernet costs forward and backward: merged mixtures beside the plain sum, and beside one network of cells.

    python benchmarks/supernet.py [WIDTH [SIDE [ROUNDS]]]

WIDTH is a generator's H and a discriminator's C. One thread, one image. Milliseconds are processor time, the least of
the rounds, all ways in turn in one process; `share` is that of the plain sum's; native is as the fast engine computes
on this CPU. Peak memory is what a first pass adds, in a child process of its own for each way. `gradient` is how far
the merged gradients are from the plain sum's, over all weights, as a share of their norm.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from velogan.engine.memory import keep_freed_memory
from velogan.faster import norm_kernels, products
from velogan.kernels.fused import native
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.supernet import Supernets

Build = Callable[[], nn.Module]


def ways(part: str, width: int, *, half: bool) -> dict[str, Build]:
    """How a network is built: each draws the same first weights."""
    generator = GeneratorConfig(network="cells", channels=width)
    discriminator = DiscriminatorConfig(network="cells", channels=width)
    if part == "generator":
        made: dict[str, Build] = {
            "plain sum": lambda: Supernets(merged=False).generator(generator),
            "merged": lambda: Supernets().generator(generator),
            "merged, native": lambda: fast(Supernets().generator(generator), half=half),
            "one network": lambda: build_generator(generator),
            "one network, native": lambda: fast(build_generator(generator), half=half),
        }
    else:
        made = {
            "plain sum": lambda: Supernets(merged=False).discriminator(discriminator),
            "merged": lambda: Supernets().discriminator(discriminator),
            "merged, native": lambda: fast(Supernets().discriminator(discriminator), half=half),
            "one network": lambda: build_discriminator(discriminator),
            "one network, native": lambda: fast(build_discriminator(discriminator), half=half),
        }
    return made


class Fast(nn.Module):
    """A network and what the fast engine calls in its place."""

    def __init__(self, net: nn.Module, *, half: bool):
        super().__init__()
        self.net, kernels = net, norm_kernels()
        assert kernels is not None
        self.faster = [native(net, kernels=kernels, gemm=products("bf16" if half else "fp32"))]

    def forward(self, images: Tensor) -> Tensor:
        return self.faster[0](images)


def fast(net: nn.Module, *, half: bool) -> nn.Module:
    return Fast(net.to(memory_format=torch.channels_last), half=half)  # pyright: ignore[reportCallIssue]


def started(build: Build) -> nn.Module:
    torch.manual_seed(0)
    return build().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def play(net: nn.Module, side: int, *, half: bool) -> float:
    """Milliseconds of processor time for one pass forward and backward."""
    images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    images = images.contiguous(memory_format=torch.channels_last)
    net.zero_grad(set_to_none=True)
    begin = time.process_time()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        made = net(images)
    made.float().square().mean().backward()
    return 1000 * (time.process_time() - begin)


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def memory(part: str, way: str, width: int, side: int, half: bool) -> float:
    """Megabytes that the first pass adds to this process, gradients of weights included."""
    torch.set_num_threads(1)
    net = started(ways(part, width, half=half)[way])
    play(started(ways(part, 4, half=half)[way]), 64, half=half)  # the libraries are loaded
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    play(net, side, half=half)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(width: int = 64, side: int = 256, rounds: int = 3) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    children = multiprocessing.get_context("spawn")
    for part in ("generator", "discriminator"):
        for half in (False, True):
            nets = {way: started(build) for way, build in ways(part, width, half=half).items()}
            times: dict[str, list[float]] = {way: [] for way in nets}
            for _ in range(rounds):
                for way, net in nets.items():
                    times[way].append(play(net, side, half=half))
            grads = {way: gradient(nets[way]) for way in nets if not way.startswith("one")}
            for way, found in times.items():
                with children.Pool(1) as pool:
                    peak = pool.apply(memory, (part, way, width, side, half))
                row = {"part": part, "precision": "bf16" if half else "fp32", "way": way, "ms": round(min(found))}
                row |= {"share": round(min(found) / min(times["plain sum"]), 3), "peak_mb": round(peak)}
                if way in grads:
                    plain = grads["plain sum"]
                    row["gradient"] = float(f"{(grads[way] - plain).norm() / plain.norm():.2g}")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
