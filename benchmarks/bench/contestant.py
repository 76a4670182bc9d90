"""One way of computing the step of one case: built, warmed up, timed in turn with others, and profiled."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench.glance import BETWEEN, glance
from benchmarks.bench.pictures import Feed
from velogan.config import Config
from velogan.engine.device import resolve_device, synchronise
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import random_batch
from velogan.types import Batch

_LEAST_S = 0.25
_MOST_STEPS = 200
_MB = 2**20


class Contestant:
    """A step of `config` with the given `engine` settings. Call `warm_up`, then `take_turn` often, then `look`.

    It computes either the same ready pictures in each step, or those that its `feed` reads; both include crops, flips
    and normalising. Without a feed the pictures are random numbers. ValueError if the settings cannot be used here;
    torch.OutOfMemoryError if the device's memory is too small.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        *,
        engine: Mapping[str, Any],
        feed: Feed | None = None,
        print_line: Callable[[str], None],
    ):
        self.name = name
        self.number, self.repeats = 0, 1
        self.seconds: list[float] = []
        self.data_seconds: list[float] = []
        self._started = time.perf_counter()
        self.engine, _ = resolve_engine(config.change(engine=engine))
        print_line(f"{name}: {_described(self.engine.model_dump())}")
        torch.set_num_threads(self.engine.threads or 1)
        self.device = resolve_device(self.engine.device)
        self._before = self._allocated(reset=True)
        config = config.model_copy(update={"engine": self.engine})
        size, count = config.data.crop_size, config.images_per_update
        prepare = (lambda split: feed.loader.finish) if feed else None
        self.step, objective, nets = build_step(config, shape=(size, size), prepare=prepare)
        torch.manual_seed(0)
        self.uniform = {split: torch.rand(draws, count, device=self.device) for split, draws in objective.draws.items()}
        self.batch, self.feed = feed.ready() if feed else random_batch(config, self.device), feed
        self.nets = nets
        self._kept = [*nets.values(), objective.state]

    def warm_up(self) -> None:
        """Runs the first steps, and finds how many steps one timing needs for a precise result."""
        self.run()
        synchronise(self.device)
        self.first_step_s = time.perf_counter() - self._started
        self.once_s = min(self.timed(self.run) for _ in range(2 if self.device.type == "cuda" else 1))
        self.repeats = max(1, min(_MOST_STEPS, math.ceil(_LEAST_S / self.once_s)))
        self._peak = self._allocated() - self._before

    @property
    def device_peak_mb(self) -> float:
        """The most memory of a CUDA device that the first steps took; 0 on a CPU. In MB of 2^20 bytes."""
        return self._peak / _MB

    def look(self) -> None:
        """Profiles one more step for memory and for time by group; call it after all timings."""
        if self.device.type == "cuda":
            self.seen = glance(self.run, device=self.device)
            self.peak_memory_mb = self.device_peak_mb
            return
        held = _held(self._kept, self.step.optimizers.values())

        def run() -> None:
            for parameter in itertools.chain(*(module.parameters() for module in self._kept)):
                if parameter.grad is not None:  # the step frees it, so the profile must see its allocation, too
                    parameter.grad = parameter.grad.clone()
            self.run()

        self.seen = glance(run, device=self.device)
        self.peak_memory_mb = (held + self.seen.rise) / _MB

    def _allocated(self, *, reset: bool = False) -> int:
        """Allocated bytes on a CUDA device: the peak since the last `reset`, which makes it the present value."""
        if self.device.type != "cuda":
            return 0
        if reset:
            torch.cuda.empty_cache()  # a capture cannot free memory that others left in the cache
            torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.max_memory_allocated(self.device)

    def run(self) -> None:
        """A step on the ready pictures."""
        self._step(dict(self.batch))

    def run_on_data(self) -> None:
        """A step on pictures from the loader."""
        assert self.feed is not None
        self._step(next(self.feed.batches))

    def _step(self, batch: Batch) -> None:
        batches = {split: {**batch, "uniform": uniform} for split, uniform in self.uniform.items()}
        self.step(batches, number=self.number)
        self.number += 1

    def take_turn(self, *, data_first: bool) -> None:
        """Times a step on the ready pictures and a step on loaded pictures, in either order."""
        both = [(self.seconds, self.run), (self.data_seconds, self.run_on_data)]
        for seconds, run in reversed(both) if data_first else both:
            seconds.append(self.timed(run))

    def timed(self, run: Callable[[], None]) -> float:
        """Seconds of `run`: the mean over `repeats` calls in a row."""
        synchronise(self.device)
        start = time.perf_counter()
        for _ in range(self.repeats):
            run()
        synchronise(self.device)
        return (time.perf_counter() - start) / self.repeats

    def host_idle_share(self, seconds: float) -> float | None:
        """The share of a step of `seconds` in which a CUDA device is idle; None on a CPU.

        The device's busy time is taken from a profiled step, as profiling does not slow kernels down.
        """
        return max(0.0, 1 - self.seen.busy_s / seconds) if self.device.type == "cuda" else None

    def where(self) -> dict[str, float]:
        """Shares of a profiled step's time by group; their sum is 1. On CUDA they are of the device's busy time."""
        seconds = self.seen.seconds
        if self.device.type == "cuda":
            seconds = {group: time for group, time in seconds.items() if group != BETWEEN}
        return {group: time / sum(seconds.values()) for group, time in seconds.items()}


def _held(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Bytes that stay from step to step on a CPU: weights, moments, the objective's state."""
    tensors: list[Tensor] = []
    for module in modules:
        tensors += [*module.parameters(), *module.buffers()]
    for optimizer in optimizers:
        for moments in optimizer.state.values():
            tensors += [value for value in moments.values() if torch.is_tensor(value)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _described(engine: Mapping[str, Any]) -> str:
    shown = ("precision", "kernels", "compile", "mode")
    return ", ".join(f"{name} {engine[name]}" for name in shown if name in engine)
