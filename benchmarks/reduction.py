"""Ways to average gradients over processes, against each other and against none, by turns in one training step.

    torchrun --nproc-per-node 2 benchmarks/reduction.py [SIDE] [ROUNDS]

`one`: one process steps, the others wait. `alone`: all step, without an exchange. `flat`: `Ranks.mean`, one exchange a
phase, after its backward pass. `bf16`: the same with `train.exchange_precision=bf16`. `buckets`: as
DistributedDataParallel does, 25 MB at a time, as soon as the backward pass has made them. Each process has one thread.
Prints milliseconds a step, the slowest rank's: median, fastest, and the median of the ratios to `alone` of the same
turn; and the processor's milliseconds, all ranks' sum.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from velogan.engine.ranks import Ranks, joined
from velogan.engine.step import Step
from velogan.recipes import cyclegan
from velogan.training.choices import decide
from velogan.training.trial import step_of

BUCKET = 25 * 2**20 // 4
"""Numbers in a bucket, DistributedDataParallel's default."""


class Buckets(Ranks):
    """Exchanges parts of the gradients while the backward pass makes the others."""

    def watch(self, phases: Sequence[Sequence[nn.Parameter]]) -> None:
        self.active, self._buckets, self._works = False, {}, []
        for parameters in phases:
            bucket: list[nn.Parameter] = []
            for weight in reversed(parameters):
                if sum(one.numel() for one in bucket) >= BUCKET:
                    bucket = []
                bucket.append(weight)
                self._buckets[weight] = bucket
                weight.requires_grad_().register_post_accumulate_grad_hook(self._made)
        self._ready = {id(bucket): 0 for bucket in self._buckets.values()}

    def _made(self, weight: Tensor) -> None:
        if not self.active:
            return
        bucket = self._buckets[weight]  # pyright: ignore[reportArgumentType]
        self._ready[id(bucket)] += 1
        if self._ready[id(bucket)] == len(bucket):
            self._ready[id(bucket)] = 0
            flat = torch.cat([_flat(one) for one in bucket]).div_(self.world)
            self._works.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def mean(self, parameters: Sequence[nn.Parameter], terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for bucket, flat, work in self._works:
            work.wait()
            _give_back(bucket, flat)
        self._works.clear()
        return dict(terms)


def _flat(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    grad = weight.grad if weight.grad.stride() == weight.stride() else torch.empty_like(weight).copy_(weight.grad)
    return grad.as_strided((grad.numel(),), (1,))


def _give_back(weights: Sequence[nn.Parameter], flat: Tensor) -> None:
    offset = 0
    for weight in weights:
        weight.grad = flat.as_strided(weight.shape, weight.stride(), offset)
        offset += weight.numel()


def main(side: int, rounds: int) -> None:
    with joined("cpu", lost_after=600) as ranks:
        config = cyclegan().change(engine={"threads": 1}, data={"crop_size": side})
        config = config.model_copy(update={"engine": ranks.share(decide(config)[0])})
        torch.set_num_threads(1)
        step, objective, nets = step_of(config, shape=(side, side))
        assert isinstance(step, Step)
        buckets, rounded = Buckets(ranks.rank, ranks.world), Ranks(ranks.rank, ranks.world)
        rounded.exchanged = torch.bfloat16
        ways = {
            "one": Ranks(),
            "alone": Ranks(),
            "flat": ranks,
            "bf16": rounded,
            "buckets": buckets,
        }
        batch = {letter: torch.rand(1, 3, side, side) * 2 - 1 for letter in "AB"}
        batch["uniform"] = torch.rand(objective.draws["train"], 1)
        step({"train": dict(batch)})
        trained = [[p for role in phase.trains for p in nets[role].parameters()] for phase in objective.phases()]
        buckets.watch([[p for p in one if p.grad is not None] for one in trained])  # no bias in front of a norm has one
        took: dict[str, list[float]] = {name: [] for name in ways}
        used: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                step.ranks, buckets.active = way, name == "buckets"
                ranks.gather(None)
                began, before = time.perf_counter(), time.process_time()
                if name != "one" or ranks.first:
                    step({"train": dict(batch)})
                spent = ranks.gather((time.perf_counter() - began, time.process_time() - before))
                if number:
                    took[name].append(1000 * max(wall for wall, _ in spent))
                    used[name].append(1000 * sum(cpu for _, cpu in spent))
        if ranks.first:
            weights = sum(p.numel() for net in nets.values() for p in net.parameters())
            print(f"{ranks.world} ranks, {side}x{side}, {weights:,} weights, {rounds} rounds")
            for name, times in took.items():
                ratios = [mine / alone for mine, alone in zip(times, took["alone"])]
                facts = f"{median(times):8.1f} ms, fastest {min(times):8.1f}, {median(ratios):.3f} of alone"
                print(f"{name:<8} {facts}; processor {median(used[name]):8.1f} ms")


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["128", "9"][len(sys.argv) - 1 :])[:2]))
