"""Capture of a training step as a CUDA graph, which is recorded once, then replayed on the same memory.

The host then launches one graph per step instead of some thousands of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from velogan.engine.ema import weights_and_buffers
from velogan.engine.optimizers import make_capturable
from velogan.engine.step import PostStepHook, Step
from velogan.types import Batch

WARM_UPS = 3
"""Number of runs before a recording, in which libraries choose algorithms and optimizers allocate their moments."""

Losses = dict[str, Tensor]


Recorder = Callable[[Callable[[], Losses]], tuple[Losses, Callable[[], None]]]
"""Runs a function a few times and records it; returns its tensors, and a replay function that overwrites them."""


class CudaRecorder:
    """Records CUDA graphs (a `Recorder`). They share one memory pool, since no two of them run at the same time."""

    def __init__(self, device: torch.device):
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def __call__(self, function: Callable[[], Losses]) -> tuple[Losses, Callable[[], None]]:
        """Run `function` `WARM_UPS` times on a side stream, and capture it there; return its losses and the replay."""
        with torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    function()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            mode = "thread_local"  # other threads may use the device meanwhile: only this stream is captured
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                losses = function()
        return losses, graph.replay


class CapturedStep:
    """Replays `step`, recorded by `recorder` once for each combination of post-step hooks.

    Batches, on the device or the host, are copied into the tensors that the recordings read. Each step overwrites the
    losses that the previous step returned.

    To record, the step is run several times; then all tensors that a step changes (weights, buffers, moments, the
    objective's `state`, the hooks' tensors) and the random state are restored in place. So every training step is a
    replay, and a resumed run, which records again, computes the same as an unbroken one. Weights and moments must be
    loaded before the first step.
    """

    def __init__(self, step: Step, *, state: nn.Module, recorder: Recorder):
        assert step.latch is not None, "capture needs defer_nonfinite_check: without it a step waits for the device"
        self.step, self.state = step, state
        self.recorder = recorder
        self.latch, self.scale = step.latch, step.scale
        self.nets, self.optimizers = step.nets, step.optimizers
        make_capturable(self.optimizers)
        self._inputs: dict[str, Batch] = {}
        self._number = torch.zeros_like(self.latch.number)
        self._hooks: list[PostStepHook] = []  # of all recordings
        self._recordings: dict[tuple[PostStepHook, ...], tuple[Losses, Callable[[], None]]] = {}

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, post_step_hooks: Sequence[PostStepHook] = ()
    ) -> Losses:
        """Run step `number`, then the hooks. Return `phase/term` scalars, which the next step overwrites.

        Raises ValueError if a batch has other names, shapes or dtypes than the first one.
        """
        for split, batch in batches.items():
            self._copy_inputs(split, batch)
        self._number.fill_(number)
        if (key := tuple(post_step_hooks)) not in self._recordings:
            self._hooks += [hook for hook in post_step_hooks if hook not in self._hooks]
            self._recordings[key] = self._record(post_step_hooks)
        losses, replay = self._recordings[key]
        replay()
        return losses

    def check(self) -> None:
        """Raise NonFiniteError if a value of a step was not finite: see `Step.check`."""
        self.step.check()

    def _copy_inputs(self, split: str, batch: Batch) -> None:
        if split not in self._inputs:
            self._inputs[split] = {name: value.to(self._number.device, copy=True) for name, value in batch.items()}
            return
        inputs = self._inputs[split]
        if batch.keys() != inputs.keys() or any(
            (value.shape, value.dtype) != (inputs[name].shape, inputs[name].dtype) for name, value in batch.items()
        ):
            raise ValueError(
                f"a captured step needs batches of one shape and type, but {_describe(inputs)} is followed by "
                f"{_describe(batch)}: set engine.mode=eager, or a data.preprocess that crops"
            )
        for name, value in batch.items():
            inputs[name].copy_(value, non_blocking=True)

    def _record(self, hooks: Sequence[PostStepHook]) -> tuple[Losses, Callable[[], None]]:
        saved = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in self._mutable_tensors()]
        device = self._number.device
        with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
            recording = self.recorder(lambda: self.step(self._inputs, number=self._number, post_step_hooks=hooks))
        restored = {id(tensor) for tensor, _ in saved}
        with torch.no_grad():
            for tensor, value in saved:
                tensor.copy_(value)
            for tensor in self._mutable_tensors():
                if id(tensor) not in restored:  # created, as zeros, by the first update
                    tensor.zero_()
        return recording

    def _mutable_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that a step changes."""
        yield from weights_and_buffers(self.nets)
        yield from self.state.buffers()
        yield from self.latch.state_tensors()
        yield from self.scale.state_tensors() if self.scale is not None else ()
        for hook in self._hooks:
            yield from hook.state_tensors()
        for optimizer in self.optimizers.values():
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if torch.is_tensor(value))


def _describe(batch: Batch) -> str:
    return ", ".join(f"{name} {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for name, x in batch.items())
