"""Bounds of a step's speed: the time of its convolutions alone, and of its arithmetic at the speed of a large product.

On CUDA convolutions are timed inside a captured graph: most of them are over before the host could launch the next.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count

from velogan.engine.device import synchronise

REPEATS = 50
"""Calls of a convolution in a graph, which is launched as one: so that the launch does not count."""

Run = Callable[[], object]


@dataclass(frozen=True)
class Convolution:
    """One convolution call of a step, by its shapes; biases are left out.

    needs_gradients: of a backward pass, which gradients it computes (input, weight); None: a forward pass
    output: shape of the output of the forward pass
    """

    image: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    needs_gradients: tuple[bool, bool] | None
    geometry: tuple[Any, ...]

    @property
    def flops(self) -> int:
        """Multiplications and additions, two for each multiply-accumulate."""
        once = conv_flop_count([*self.image], [*self.weight], [*self.output], transposed=self.geometry[3])
        return once * (1 if self.needs_gradients is None else sum(self.needs_gradients))


def record_convolutions(step: Callable[[], object]) -> Counter[Convolution]:
    """Return the convolution calls of `step` and their counts."""
    calls: Counter[Convolution] = Counter()

    class OperationRecorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, output = func.overloadpacket._qualified_op_name, func(*args, **(kwargs or {}))
            if name == "aten::convolution":
                x, weight, _, *geometry = args
                calls[_call(x, weight, output, None, geometry)] += 1
            elif name == "aten::convolution_backward":
                gradient, x, weight, _, *geometry, needs_gradients = args
                calls[_call(x, weight, gradient, (needs_gradients[0], needs_gradients[1]), geometry)] += 1
            return output

    with OperationRecorder():
        step()
    return calls


def _call(
    x: Tensor, weight: Tensor, output: Tensor, needs_gradients: tuple[bool, bool] | None, geometry: list[Any]
) -> Convolution:
    fixed = tuple(tuple(part) if isinstance(part, list) else part for part in geometry)
    return Convolution(tuple(x.shape), tuple(weight.shape), tuple(output.shape), needs_gradients, fixed)


class Roofline:
    """Times each of `calls` alone, in the precision and layout that is fastest for it on `device`.

    `record` makes a function that replays many calls of another as one; None on a CPU, which has no launches.
    """

    def __init__(
        self,
        calls: Counter[Convolution],
        *,
        device: torch.device,
        record: Callable[[Run, torch.device], Run] | None = None,
    ):
        self.device = device
        self._record = record or (in_graph if device.type == "cuda" else None)
        self._best = {call: self._fastest(call) for call in calls}

    def times(self) -> dict[Convolution, float]:
        """Measure the seconds of each call: the median of three runs."""
        return {call: self._time(best, runs=3) for call, best in self._best.items()}

    def _fastest(self, call: Convolution) -> Run:
        candidates = (
            _ready(call, dtype=dtype, layout=layout, device=self.device)
            for dtype in (torch.bfloat16, torch.float32)
            for layout in (torch.channels_last, torch.contiguous_format)
        )
        return min((self._recorded(run) for run in candidates), key=lambda run: self._time(run, runs=2))

    def _recorded(self, run: Run) -> Run:
        return self._record(run, self.device) if self._record else run

    def _time(self, run: Run, *, runs: int) -> float:
        return _time(run, self.device, runs=runs, repeats=1) / (REPEATS if self._record else 1)


def in_graph(run: Run, device: torch.device) -> Run:
    """Return a function that replays `REPEATS` calls of `run`, captured in a CUDA graph."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run()  # libraries choose algorithms before the capture
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(REPEATS):
            run()
    return graph.replay


def total(calls: Counter[Convolution], times: Mapping[Convolution, float]) -> float:
    """Return the seconds of all of a step's `calls`, with `times` from `Roofline.times`."""
    return sum(count * times[call] for call, count in calls.items())


def flops(calls: Counter[Convolution]) -> int:
    """Return the multiplications and additions of a step's `calls`."""
    return sum(call.flops * count for call, count in calls.items())


def _ready(call: Convolution, *, dtype: torch.dtype, layout: torch.memory_format, device: torch.device) -> Run:
    def tensor(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=device).to(dtype).contiguous(memory_format=layout)

    geometry = [list(part) if isinstance(part, tuple) else part for part in call.geometry]
    x, weight = tensor(call.image), tensor(call.weight)
    if call.needs_gradients is None:
        return lambda: torch.ops.aten.convolution(x, weight, None, *geometry)
    gradient, needs_gradients = tensor(call.output), [*call.needs_gradients, False]
    return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, needs_gradients)


def matmul_tflops(device: torch.device) -> float:
    """Return the speed of one large matrix product in the faster type of `device`: an upper limit for any network."""
    side = 8192 if device.type == "cuda" else 1024
    seconds = []
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        repeats = 10 if device.type == "cuda" else 1
        seconds.append(_time(lambda a=a, b=b: a @ b, device, runs=3, repeats=repeats))
    return 2 * side**3 / min(seconds) / 1e12


def _time(run: Run, device: torch.device, *, runs: int, repeats: int) -> float:
    """Return the median of `runs` timings, each the mean of `repeats` calls in a row."""
    seconds = []
    run()
    for _ in range(runs):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        synchronise(device)
        seconds.append((time.perf_counter() - start) / repeats)
    return sorted(seconds)[len(seconds) // 2]
