"""One mode of a case's step: built, warmed up, timed alternately with others, and profiled."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bench.pictures import Feed
from benchmarks.bench.step_profile import BETWEEN, profile_once
from velogan.config import Config
from velogan.engine.device import resolve_device, synchronise
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import random_batch
from velogan.types import Batch

_MIN_S = 0.25
_MAX_STEPS = 200
_MB = 2**20


class BenchCandidate:
    """A step of `config` with the given `engine` settings. Call `warm_up`, `time_once` repeatedly, `profile_step`.

    A step uses the same prepared images each time or those that its `feed` reads; both include crops, flips and
    normalising. Without a feed the images are random numbers. Raises ValueError if the settings cannot be used here,
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
        print_line(f"{name}: {_describe(self.engine.model_dump())}")
        torch.set_num_threads(self.engine.threads or 1)
        self.device = resolve_device(self.engine.device)
        self._before = self._allocated(reset=True)
        config = config.model_copy(update={"engine": self.engine})
        size, count = config.data.crop_size, config.images_per_update
        prepare = (lambda split: feed.loader.preprocess_on_device) if feed else None
        self.step, objective, nets = build_step(config, shape=(size, size), prepare=prepare)
        torch.manual_seed(0)
        self.uniform = {
            split: torch.rand(draws, count, device=self.device) for split, draws in objective.num_uniforms.items()
        }
        self.batch, self.feed = feed.ready() if feed else random_batch(config, self.device), feed
        self.nets = nets
        self._modules = [*nets.values(), objective.state]

    def warm_up(self) -> None:
        """Run the first steps, and determine how many steps a timing needs to be precise."""
        self.run()
        synchronise(self.device)
        self.first_step_s = time.perf_counter() - self._started
        self.once_s = min(self.timed(self.run) for _ in range(2 if self.device.type == "cuda" else 1))
        self.repeats = max(1, min(_MAX_STEPS, math.ceil(_MIN_S / self.once_s)))
        self._peak = self._allocated() - self._before

    @property
    def device_peak_mb(self) -> float:
        """Return the peak memory of the first steps on a CUDA device, in MB of 2^20 bytes; 0 on a CPU."""
        return self._peak / _MB

    def profile_step(self) -> None:
        """Profile one more step for memory and for time by group; call it after all timings."""
        if self.device.type == "cuda":
            self.profile = profile_once(self.run, device=self.device)
            self.peak_memory_mb = self.device_peak_mb
            return
        persistent = _persistent_bytes(self._modules, self.step.optimizers.values())

        def run() -> None:
            for parameter in itertools.chain(*(module.parameters() for module in self._modules)):
                if parameter.grad is not None:  # the step frees it, so the profile must see its allocation, too
                    parameter.grad = parameter.grad.clone()
            self.run()

        self.profile = profile_once(run, device=self.device)
        self.peak_memory_mb = (persistent + self.profile.peak_memory_growth) / _MB

    def _allocated(self, *, reset: bool = False) -> int:
        """Return the peak of allocated bytes on a CUDA device since the last `reset`."""
        if self.device.type != "cuda":
            return 0
        if reset:
            torch.cuda.empty_cache()  # a capture cannot free memory that others left in the cache
            torch.cuda.reset_peak_memory_stats(self.device)
        return torch.cuda.max_memory_allocated(self.device)

    def run(self) -> None:
        """Run a step on the prepared images."""
        self._step(dict(self.batch))

    def run_on_data(self) -> None:
        """Run a step on images from the loader."""
        assert self.feed is not None
        self._step(next(self.feed.batches))

    def _step(self, batch: Batch) -> None:
        batches = {split: {**batch, "uniform": uniform} for split, uniform in self.uniform.items()}
        self.step(batches, number=self.number)
        self.number += 1

    def time_once(self, *, data_first: bool) -> None:
        """Time a step on the prepared images and a step on loaded ones, in either order."""
        both = [(self.seconds, self.run), (self.data_seconds, self.run_on_data)]
        for seconds, run in reversed(both) if data_first else both:
            seconds.append(self.timed(run))

    def timed(self, run: Callable[[], None]) -> float:
        """Return the seconds of `run`: the mean over `repeats` calls in a row."""
        synchronise(self.device)
        start = time.perf_counter()
        for _ in range(self.repeats):
            run()
        synchronise(self.device)
        return (time.perf_counter() - start) / self.repeats

    def host_idle_share(self, seconds: float) -> float | None:
        """Return the share of a step of `seconds` in which a CUDA device is idle; None on a CPU.

        The device's busy time is taken from a profiled step, as profiling does not slow kernels down.
        """
        return max(0.0, 1 - self.profile.busy_s / seconds) if self.device.type == "cuda" else None

    def where(self) -> dict[str, float]:
        """Return the shares of a profiled step's time by group, on CUDA of the device's busy time; their sum is 1."""
        seconds = self.profile.seconds
        if self.device.type == "cuda":
            seconds = {group: time for group, time in seconds.items() if group != BETWEEN}
        return {group: time / sum(seconds.values()) for group, time in seconds.items()}


def _persistent_bytes(modules: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Return the bytes that persist between steps on a CPU: weights, moments, the objective's state."""
    tensors: list[Tensor] = []
    for module in modules:
        tensors += [*module.parameters(), *module.buffers()]
    for optimizer in optimizers:
        for moments in optimizer.state.values():
            tensors += [value for value in moments.values() if torch.is_tensor(value)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _describe(engine: Mapping[str, Any]) -> str:
    shown = ("precision", "kernels", "compile", "mode")
    return ", ".join(f"{name} {engine[name]}" for name in shown if name in engine)
