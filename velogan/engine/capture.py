"""The captured step: recorded once, then replayed over the same memory.

There is one recording for each kind of work after the phases. With it the host launches one graph per step instead of
some thousands of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from velogan.engine.optimizers import make_capturable
from velogan.engine.step import After, Step
from velogan.types import Batch

WARM_UPS = 3
"""Runs before a recording. In them libraries choose algorithms, compilers compile and optimizers make their moments."""

Losses = dict[str, Tensor]


class Recorder(Protocol):
    """Records work on a device. `CudaRecorder` is the only one; tests use another."""

    def record(self, work: Callable[[], Losses]) -> tuple[Losses, Callable[[], None]]:
        """Run `work` a few times and record it. Return its tensors, and a function that replays into them."""
        ...


class CudaRecorder:
    """Records CUDA graphs. They share one pool of memory, since no two of them run at once."""

    def __init__(self, device: torch.device):
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, work: Callable[[], Losses]) -> tuple[Losses, Callable[[], None]]:
        """Run `work` on a side stream, then capture it there."""
        with torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # other threads may go on: only work on this stream is captured
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                losses = work()
        return losses, graph.replay


class CapturedStep:
    """`step`, recorded by `recorder` and replayed.

    Batches, from the device or the host, are copied into the tensors that the recordings read. ValueError if a batch
    has other shapes or types than the first one. Each step overwrites the losses that the step before returned.

    A recording runs the step several times. Then it restores, in place, all that a step changes: weights, buffers,
    moments, the objective's `state`, the work after the phases, and random numbers. So every training step is a replay,
    and a continued run, which records again, computes the same as an unbroken one. Load weights and moments before the
    first step.
    """

    def __init__(self, step: Step, *, state: nn.Module, recorder: Recorder):
        assert step.latch is not None, "only a step with check_later can be captured: others wait for the device"
        self.step, self.state, self.recorder = step, state, recorder
        self.latch, self.scale = step.latch, step.scale
        self.nets, self.optimizers = step.nets, step.optimizers
        make_capturable(self.optimizers)
        self._inputs: dict[str, Batch] = {}
        self._number = torch.zeros_like(self.latch.number)
        self._after: list[After] = []  # every one given so far
        self._recordings: dict[tuple[After, ...], tuple[Losses, Callable[[], None]]] = {}

    def __call__(self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()) -> Losses:
        """Run step `number`, then `after`; return `phase/term` scalars that the next step overwrites."""
        for split, batch in batches.items():
            self._take(split, batch)
        self._number.fill_(number)
        if (key := tuple(after)) not in self._recordings:
            self._after += [one for one in after if one not in self._after]
            self._recordings[key] = self._record(after)
        losses, replay = self._recordings[key]
        replay()
        return losses

    def check(self) -> None:
        """See `Step.check`."""
        self.step.check()

    def _take(self, split: str, batch: Batch) -> None:
        if split not in self._inputs:
            self._inputs[split] = {name: value.to(self._number.device, copy=True) for name, value in batch.items()}
            return
        inputs = self._inputs[split]
        if _signature(batch) != _signature(inputs):
            raise ValueError(
                f"a captured step needs batches of one shape and type, but {_described(inputs)} is followed by "
                f"{_described(batch)}: set engine.mode=eager, or a data.preprocess that crops"
            )
        for name, value in batch.items():
            inputs[name].copy_(value, non_blocking=True)

    def _record(self, after: Sequence[After]) -> tuple[Losses, Callable[[], None]]:
        before = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in self._changed()]
        device = self._number.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            recording = self.recorder.record(lambda: self.step(self._inputs, number=self._number, after=after))
        known = {id(tensor) for tensor, _ in before}
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
            for tensor in self._changed():
                if id(tensor) not in known:  # the first update made it, as zeros
                    tensor.zero_()
        return recording

    def _changed(self) -> Iterator[Tensor]:
        """Yield every tensor that a step changes."""
        for net in self.step.nets.values():
            yield from net.parameters()
            yield from net.buffers()
        yield from self.state.buffers()
        yield from self.latch.tensors()
        yield from self.scale.tensors() if self.scale is not None else ()
        for one in self._after:
            yield from one.tensors()
        for optimizer in self.optimizers.values():
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if torch.is_tensor(value))


def _signature(batch: Batch) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in batch.items()}


def _described(batch: Batch) -> str:
    return ", ".join(f"{k} {tuple(v.shape)} {str(v.dtype).removeprefix('torch.')}" for k, v in batch.items())
