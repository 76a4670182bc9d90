"""Concurrent computation of the independent branches of a loss, each on its own CUDA stream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from velogan.objectives.base import Branch


class StreamRunner:
    """Runs branches concurrently, after La, Ellay and Rathbun (Cycling Faster Through CycleGAN, section 4).

    Each branch starts after the earlier work of the current stream, and the current stream waits for all branches.
    Autograd runs each backward operation on the stream of its forward operation.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._streams: list[torch.cuda.Stream] = []
        # the branches share weights: autograd synchronises the streams where gradients accumulate, as intended
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    def __call__(self, branches: Sequence[Branch]) -> list[tuple[Tensor, ...]]:
        """Run `branches` and return their results, ready on the current stream."""
        while len(self._streams) < len(branches):
            self._streams.append(torch.cuda.Stream(self.device))
        current, streams = torch.cuda.current_stream(self.device), self._streams[: len(branches)]
        for stream in streams:
            stream.wait_stream(current)
        cache_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a stream must not use weights that another stream has cast
        try:
            outputs: list[tuple[Tensor, ...]] = []
            for branch, stream in zip(branches, streams):
                with torch.cuda.stream(stream):
                    outputs.append(branch())
        finally:
            torch.set_autocast_cache_enabled(cache_enabled)
        for stream, tensors in zip(streams, outputs):
            current.wait_stream(stream)
            for tensor in tensors:
                tensor.record_stream(current)
        return outputs
