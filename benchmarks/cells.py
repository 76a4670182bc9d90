"""What searched generators cost for their multiplications, beside the hand-made one; and each operation by itself.

    python -m benchmarks.cells [H [SIDE [ROUNDS]]]

As the fast engine computes on this CPU: native kernels, bfloat16 where `auto` chooses it. One thread, one image, no
Adam; milliseconds of processor time, medians of the rounds, all by turns in one process. A step is forward and
backward; `per_gmac` is its time by 10^9 multiplications of one forward pass, `against` that of CycleGAN's ResNet, or
of the operation that a hand-made network has in that place. H is the width of the encoding, for CycleGAN 256.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from velogan.data.sets.sources import code_directory
from velogan.engine.memory import keep_freed_memory
from velogan.kernels.fused import native
from velogan.kernels.inference import Accelerator
from velogan.kernels.precision import precision_for
from velogan.networks.cells import Kind, Slot, choices, generator_kinds, hand_made, operation
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.layers import norm_layer
from velogan.training.forward import norm_kernels, products

SEARCHED = 4
"""Random genotypes that are measured."""

CPU = torch.device("cpu")


class Way:
    """A network at its input: how long a training step and a translation take."""

    def __init__(self, name: str, net: nn.Module, images: Tensor, *, half: bool, of: Accelerator | None = None):
        self.name, self.half = name, half
        self.images = images.contiguous(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            net(images)
        self.gmacs = counter.get_total_flops() / 2e9
        kernels = norm_kernels(torch.device("cpu"))
        assert not isinstance(kernels, str)
        self.net, self.fast = net, native(net, kernels=kernels, gemm=products("bf16") if half else None)
        self.translator = of and of(net.eval(), rounded=True)
        self.times: dict[str, list[float]] = {"step": [], **({"translate": []} if of else {})}

    def play(self) -> None:
        for what, found in self.times.items():
            found.append(_milliseconds(self._step if what == "step" else self._translate))

    def _step(self) -> None:
        self.net.zero_grad(set_to_none=True)
        x = self.images.bfloat16() if self.half and self.images.shape[1] > 3 else self.images
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.half):
            made = self.fast(x.detach().requires_grad_())
        made.backward(torch.ones_like(made))

    @torch.inference_mode()
    def _translate(self) -> None:
        assert self.translator is not None
        self.translator(self.images)

    def row(self, first: Way | None) -> dict[str, object]:
        row: dict[str, object] = {"name": self.name, "gmacs": round(self.gmacs, 3)}
        for what, found in self.times.items():
            each = statistics.median(found) / self.gmacs
            row |= {f"{what}_ms": round(statistics.median(found), 1), f"{what}_per_gmac": round(each, 1)}
            if first is not None:
                row[f"{what}_against"] = round(each * first.gmacs / statistics.median(first.times[what]), 2)
        return row


def _milliseconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return 1000 * (time.process_time() - begin)


def measure(ways: Iterable[Callable[[], Way]], rounds: int) -> None:
    """Plays all by turns, and prints a row of each, against the first."""
    made = [build() for build in ways]
    for number, way in itertools.product(range(rounds + 1), made):
        way.play()
        if not number:  # the first prepares memory
            way.times = {what: [] for what in way.times}
    for way in made:
        print(json.dumps(way.row(made[0] if way is not made[0] else None)), flush=True)


def networks(hidden: int) -> dict[str, GeneratorConfig]:
    """CycleGAN's ResNet, the same operations in cells, and random genotypes."""
    kinds, draw = generator_kinds(9), random.Random(0)
    made = {"resnet": GeneratorConfig(channels=hidden // 4)}
    drawn = {f"searched {n}": tuple(draw.choice(choices(kind)) for kind in kinds) for n in range(1, SEARCHED + 1)}
    for name, operations in {"hand-made cells": hand_made(kinds), **drawn}.items():
        made[name] = GeneratorConfig(network="cells", channels=hidden, operations=operations)
    return made


def slots(hidden: int, side: int) -> dict[str, tuple[Slot, int]]:
    """The places in a generator, and the side of the features that come in."""
    half, shapes = -(-hidden // 2), dict[str, tuple[Kind, int, int, int]]()
    shapes["image to features"] = ("e", 3, half, side)
    shapes["encoding"] = ("e", half, hidden, side // 2)
    shapes["residual"] = ("r", hidden, hidden, side // 4)
    shapes["decoding"] = ("d", hidden, half, side // 4)
    shapes["features to image"] = ("d", half, 3, side // 2)
    return {name: (Slot(kind, c_in, out, True, "paper"), at) for name, (kind, c_in, out, at) in shapes.items()}


def unit(name: str, slot: Slot) -> nn.Module:
    """An operation with what follows it."""
    last = slot.c_out == 3
    return nn.Sequential(
        operation(name, slot), *([nn.Tanh()] if last else [norm_layer("instance")(slot.c_out), nn.ReLU()])
    )


def main(hidden: int = 256, side: int = 128, rounds: int = 5) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    half = precision_for(CPU)[0] == "bf16"
    accelerator = Accelerator(CPU, code_directory() / "kernels")
    for place, (slot, at) in slots(hidden, side).items():
        print(json.dumps({"place": place, "kind": slot.kind, "channels": [slot.c_in, slot.c_out], "side": at}))
        names = sorted(choices(slot.kind), key=lambda name: name != hand_made([slot.kind])[0])
        measure(
            [partial(Way, name, unit(name, slot), torch.randn(1, slot.c_in, at, at), half=half) for name in names],
            rounds,
        )
    print(json.dumps({"networks": "generators", "side": side, "precision": "bf16" if half else "fp32"}))
    measure(
        [
            lambda name=name, config=config: Way(
                name, build_generator(config), torch.rand(1, 3, side, side) * 2 - 1, half=half, of=accelerator
            )
            for name, config in networks(hidden).items()
        ],
        rounds,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
