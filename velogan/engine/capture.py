"""The captured step: recorded once for each set of due phases and of what follows, then replayed over the same memory.

The host then launches one graph a step instead of some thousands of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.optimizers import make_capturable
from velogan.engine.step import After, Step
from velogan.objectives.base import Phase
from velogan.types import Batch

WARM_UPS = 3
"""Runs before a recording, in which libraries choose their algorithms, compilers compile and moments are made."""

Losses = dict[str, Tensor]


class Recorder(Protocol):
    """What records work on a device. `CudaRecorder` is the one there is; tests hand in another."""

    def record(self, work: Callable[[], Losses]) -> tuple[Losses, Callable[[], None]]:
        """Runs `work` a few times and records it: the tensors it returned, and what replays it into them."""
        ...


class CudaRecorder:
    """Records CUDA graphs, all in one pool of memory, since no two of them run at once."""

    def __init__(self, device: torch.device):
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(self, work: Callable[[], Losses]) -> tuple[Losses, Callable[[], None]]:
        """Runs `work` on a stream beside the current one, then captures it there."""
        with torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # other threads may go on: what is captured depends on this stream alone
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                losses = work()
        return losses, graph.replay


class CapturedStep:
    """`step`, recorded by `recorder` and replayed.

    Batches, from the device or the host, are copied into the tensors that the recordings read: ValueError where one has
    other shapes or types than the first. The losses that a step returns are overwritten by the next.

    A recording runs the step several times, and then puts back all that a step changes, in place: weights, buffers,
    moments, `state` (the objective's), what follows the phases, and random numbers. So every step is a replay, and a
    continued run, which records again, computes what an unbroken one does. Weights and moments must be loaded before
    the first step.
    """

    def __init__(self, step: Step, *, state: nn.Module, recorder: Recorder):
        assert step.latch is not None, "a step that looks at its losses waits for the device"
        self.step, self.state, self.recorder = step, state, recorder
        self.latch, self.optimizers = step.latch, step.optimizers
        make_capturable(self.optimizers)
        self._inputs: dict[str, Batch] = {}
        self._number = torch.zeros_like(self.latch.number)
        self._after: list[After] = []  # all that ever followed
        self._recordings: dict[tuple[tuple[str, ...], tuple[After, ...]], tuple[Losses, Callable[[], None]]] = {}

    def __call__(self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()) -> Losses:
        """Runs step `number`, then `after`; returns `phase/term` scalars that the next step overwrites."""
        for split, batch in batches.items():
            self._take(split, batch)
        self._number.fill_(number)
        phases = self.step.due(number)
        key = tuple(phase.name for phase in phases), tuple(after)
        if key not in self._recordings:
            self._after += [one for one in after if one not in self._after]
            self._recordings[key] = self._record(phases, after)
        losses, replay = self._recordings[key]
        replay()
        return losses

    def check(self) -> None:
        """As the plain step does it."""
        self.step.check()

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        """As the plain step does it, layer by layer."""
        return self.step.origin(error, batches)

    def _take(self, split: str, batch: Batch) -> None:
        if split not in self._inputs:
            self._inputs[split] = {name: value.to(self._number.device, copy=True) for name, value in batch.items()}
            return
        inputs = self._inputs[split]
        if _form(batch) != _form(inputs):
            raise ValueError(
                f"engine.capture=on repeats a step for batches of one form, but after {_described(inputs)} comes "
                f"{_described(batch)}: set engine.capture=off, or a data.preprocess that crops"
            )
        for name, value in batch.items():
            inputs[name].copy_(value, non_blocking=True)

    def _record(self, phases: Sequence[Phase], after: Sequence[After]) -> tuple[Losses, Callable[[], None]]:
        before = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in self._changed()]
        device = self._number.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            recording = self.recorder.record(
                lambda: self.step.play(phases, self._inputs, number=self._number, after=after)
            )
        known = {id(tensor) for tensor, _ in before}
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
            for tensor in self._changed():
                if id(tensor) not in known:  # made by the first update, as zeros
                    tensor.zero_()
        return recording

    def _changed(self) -> Iterator[Tensor]:
        """All that a step changes."""
        for net in self.step.nets.values():
            yield from net.parameters()
            yield from net.buffers()
        yield from self.state.buffers()
        yield from self.latch.tensors()
        for one in self._after:
            yield from one.tensors()
        for optimizer in self.optimizers.values():
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if torch.is_tensor(value))


def _form(batch: Batch) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in batch.items()}


def _described(batch: Batch) -> str:
    parts = (
        f"{name} {tuple(shape)} {str(dtype).removeprefix('torch.')}" for name, (shape, dtype) in _form(batch).items()
    )
    return ", ".join(parts)
