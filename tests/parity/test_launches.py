"""The launches of a training step with the GPU's kernels, counted on fake tensors: which ones a GPU would be given.

Fake tensors have a type, a shape and a layout, and no values; those of a CPU have gradients, too. What is counted is
every operation that computes something, and every launch of a Triton kernel; not what a library makes of one operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.config import Config
from velogan.engine.optimizers import build_optimizers
from velogan.engine.step import Step, StepOptions
from velogan.kernels.fused import Fused
from velogan.networks.layers import InstanceNorm2d
from velogan.training.build import build_roles

SIDE = 256
KERNELS = ("_chunk_moments", "_moments", "_result", "_plain_gradient", "_gradient_sums", "_gradient_means", "_gradient")
FREE = {"detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "device"}
FREE |= {"lift_fresh", "_record_function_enter_new", "_record_function_exit"}


class _Launches(TorchDispatchMode):
    """Counts operations but views and allocations. `layouts`: copies that change nothing but the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.layouts: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_fused_adam_":
            self.seen[name] += 1
            return None
        out = func(*args, **kwargs)
        if func.is_view or name in FREE:
            return out
        self.seen[name] += 1
        pair = {"clone": lambda: (args[0], out), "_to_copy": lambda: (args[0], out), "copy_": lambda: args[1::-1]}
        if name in pair:
            source, target = pair[name]()
            same = (source.dtype, source.shape) == (target.dtype, target.shape)
            if same and source.stride() != target.stride() and target.ndim == 4:
                self.layouts.append(tuple(target.shape))
        return out


class _Counted:
    """Stands for a Triton kernel: it counts its launches."""

    def __init__(self, name: str, seen: Counter[str]):
        self.name, self.seen = name, seen

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(0 < programs < 2**31 for programs in grid)
        assert all(programs < 2**16 for programs in grid[1:])  # CUDA's limit
        return lambda *_, **__: self.seen.update([f"triton{self.name}"])


def _laid_out(net: nn.Module) -> nn.Module:
    """`net` channels-last, which `Module.to` cannot do with fake tensors."""
    for module in net.modules():
        for name, value in module._parameters.items():
            if value is not None and value.ndim == 4:
                module._parameters[name] = nn.Parameter(value.detach().contiguous(memory_format=torch.channels_last))
        for name, value in module._buffers.items():
            if value is not None and value.ndim == 4:
                module._buffers[name] = value.contiguous(memory_format=torch.channels_last)
    return net


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


def _step(forward: Callable[[nn.Module], nn.Module]) -> _Launches:
    """What a step of the method `cyclegan` launches."""
    config = Config()
    roles = build_roles(config.method, config.spec, seed=0)
    nets = {name: _laid_out(role.net) for name, role in roles.items()}
    _laid_out((objective := config.method.objective(config.spec, shape=(SIDE, SIDE), batched=True)).state)
    phases = objective.phases()
    step = Step(
        phases,
        nets=nets,
        forward_nets={name: forward(net) for name, net in nets.items()},
        optimizers=build_optimizers(config.optimizer, phases=phases, nets=nets, fused=True),
        options=StepOptions(autocast=torch.bfloat16, channels_last=True, defer_nonfinite_check=True),
    )
    for optimizer in step.optimizers.values():  # a GPU's have no hooks
        optimizer._optimizer_step_pre_hooks.clear()
        optimizer._optimizer_step_post_hooks.clear()
    images = {name: torch.rand(1, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last) for name in "AB"}
    batch: dict[str, Tensor] = images | {"uniform": torch.rand(objective.num_uniforms["train"], 1)}
    for _ in range(2):  # the first makes moments
        with _Launches() as launches:
            step({"train": batch})
    return launches


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Counter[str]]:
    """Triton's kernels, and how often each was launched."""
    pytest.importorskip("triton", reason="Triton is not installed")
    # on a CPU alone it lays gradients out anew
    monkeypatch.setattr(InstanceNorm2d, "forward", nn.InstanceNorm2d.forward)
    room = import_module("velogan.kernels.triton_norms")
    launched: Counter[str] = Counter()
    for name in KERNELS:
        monkeypatch.setattr(room, name, _Counted(name, launched))
    return room.TritonNorms(), launched


def test_a_fused_step_launches_less_and_copies_no_layouts(kernels: tuple[Any, Counter[str]], fake: None):
    norms, triton = kernels
    plain, fused = _step(lambda net: net), _step(lambda net: Fused(net, norms))
    assert plain.seen["convolution"] == fused.seen["convolution"] == 92
    assert len(plain.layouts) > 90
    assert fused.layouts == []
    assert triton.total() == 2 * 491  # of both steps
    assert fused.seen.total() + triton.total() / 2 < 0.72 * plain.seen.total()
