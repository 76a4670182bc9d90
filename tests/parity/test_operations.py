"""Operations of a training step with the GPU's kernels, counted on fake tensors: those that a GPU would be given.

Fake tensors have a type, a shape and a layout, and no values; those of a CPU have gradients, too. Counted are all
operations that compute something, and all launches of a Triton kernel; not what a library makes of one operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.engine.optimizers import build_optimizers
from velogan.engine.step import Step, StepOptions
from velogan.kernels.fused import Fused, to_native
from velogan.networks.layers import InstanceNorm2d
from velogan.networks.pretrained import frozen_features
from velogan.recipes import RECIPES
from velogan.training.build import build_roles
from velogan.types import Composed, forward_kind_of

SIDE = 256
KERNELS = "_chunk_moments _moments _result _plain_gradient _gradient_sums _gradient_means _gradient"
FREE = {"detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "device"}
FREE |= {"lift_fresh", "_record_function_enter_new", "_record_function_exit"}


class _Operations(TorchDispatchMode):
    """Counts operations except views and allocations.

    counts: by name, except casts of weights
    weight_casts: casts of weights, and of their gradients, known by the shapes of weights
    layouts: shapes of copies that change the layout only
    """

    def __init__(self, weight_shapes: Set[tuple[int, ...]]) -> None:
        super().__init__()
        self.weight_shapes = weight_shapes
        self.counts: Counter[str] = Counter()
        self.weight_casts = 0
        self.layouts: list[tuple[int, ...]] = []

    def total(self) -> int:
        return self.counts.total() + self.weight_casts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_fused_adam_":
            self.counts[name] += 1
            return None
        out = func(*args, **kwargs)
        if func.is_view or name in FREE:
            return out
        if name == "_to_copy" and tuple(out.shape) in self.weight_shapes:
            self.weight_casts += 1
        else:
            self.counts[name] += 1
        pairs = {"clone": lambda: (args[0], out), "_to_copy": lambda: (args[0], out), "copy_": lambda: args[1::-1]}
        if name in pairs:
            source, target = pairs[name]()
            same = (source.dtype, source.shape) == (target.dtype, target.shape)
            if same and source.stride() != target.stride() and target.ndim == 4:
                self.layouts.append(tuple(target.shape))
        return out


class _CountedKernel:
    """Stands for a Triton kernel and counts its launches."""

    def __init__(self, name: str, counts: Counter[str]):
        self.name, self.counts = name, counts

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(0 < programs < 2**31 for programs in grid)
        assert all(programs < 2**16 for programs in grid[1:])  # CUDA's limit
        return lambda *_, **__: self.counts.update([f"triton{self.name}"])


def _channels_last(net: nn.Module) -> nn.Module:
    """Return `net` channels-last, which `Module.to` cannot do with fake tensors."""
    for module in net.modules():
        for name, value in module._parameters.items():
            if value is not None and value.ndim == 4:
                module._parameters[name] = nn.Parameter(value.detach().contiguous(memory_format=torch.channels_last))
        for name, value in module._buffers.items():
            if value is not None and value.ndim == 4:
                module._buffers[name] = value.contiguous(memory_format=torch.channels_last)
    return net


@pytest.fixture
def features() -> nn.Module:
    """The frozen features of `fast`, built before tensors are fake."""
    for device in ("meta", "cpu"):
        frozen_features("lite0", torch.device(device))
    return frozen_features("lite0", torch.device("cpu")).maps


@pytest.fixture
def fake(features: nn.Module) -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):  # the features are real
        yield


def _count(
    forward: Callable[[nn.Module], nn.Module], *, recipe: str = "cyclegan", side: int = SIDE, batch_size: int = 1
) -> _Operations:
    """Return the operations of a step."""
    config = RECIPES[recipe]()
    roles = build_roles(config.method, config.spec, seed=0)
    nets = {name: _channels_last(role.net) for name, role in roles.items()}
    _channels_last((objective := config.method.objective(config.spec, shape=(side, side), batched=True)).state)
    phases = objective.phases()
    step = Step(
        phases,
        nets=nets,
        forward_nets={
            name: net.map_parts(forward) if isinstance(net, Composed) else forward(net) for name, net in nets.items()
        },
        optimizers=build_optimizers(config.optimizer, phases=phases, nets=nets, fused=True),
        options=StepOptions(autocast=torch.bfloat16, channels_last=True, defer_nonfinite_check=True),
    )
    for optimizer in step.optimizers.values():  # a GPU's have no hooks
        optimizer._optimizer_step_pre_hooks.clear()
        optimizer._optimizer_step_post_hooks.clear()
    images = {
        name: torch.rand(batch_size, 3, side, side).contiguous(memory_format=torch.channels_last) for name in "AB"
    }
    batch: dict[str, Tensor] = images | {"uniform": torch.rand(objective.num_uniforms["train"], batch_size)}
    modules = [*nets.values(), frozen_features("lite0", torch.device("cpu")).maps]
    shapes = {tuple(weight.shape) for module in modules for weight in module.parameters()}
    for _ in range(2):  # the first makes moments
        with _Operations(shapes) as operations:
            step({"train": batch})
    return operations


@pytest.fixture
def counted_norms(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Counter[str]]:
    """Triton's kernels, and how often each was launched."""
    pytest.importorskip("triton", reason="Triton is not installed")
    # on a CPU alone it changes the layout of gradients
    monkeypatch.setattr(InstanceNorm2d, "forward", nn.InstanceNorm2d.forward)
    triton_norms = import_module("velogan.kernels.triton_norms")
    launched: Counter[str] = Counter()
    for name in KERNELS.split():
        monkeypatch.setattr(triton_norms, name, _CountedKernel(name, launched))
    return triton_norms.TritonNorms(), launched


def test_a_fused_step_has_fewer_operations_and_copies_no_layouts(counted_norms: tuple[Any, Counter[str]], fake: None):
    norms, triton = counted_norms
    plain, fused = _count(lambda net: net), _count(lambda net: Fused(net, norms))
    assert plain.counts["convolution"] == fused.counts["convolution"] == 92
    assert len(plain.layouts) > 90
    assert fused.layouts == []
    assert fused.counts["_to_copy"] <= 33  # losses, fakes and their gradients
    assert fused.weight_casts <= 142  # autocast's own, of each weight and gradient: there is no shared cast any more
    assert triton.total() == 2 * 491  # of both steps
    assert fused.counts.total() + triton.total() / 2 < 0.62 * plain.total()  # without casts of weights, as they were


@pytest.mark.soak
def test_a_step_of_fast_has_fewer_operations(counted_norms: tuple[Any, Counter[str]], features: nn.Module, fake: None):
    norms, triton = counted_norms
    options: Any = {"recipe": "fast", "side": 128, "batch_size": 4}
    plain = _count(lambda net: net, **options)
    fused = _count(
        lambda net: features if forward_kind_of(net) == "maps" else to_native(net, kernels=norms, gemm=None), **options
    )
    assert plain.counts["convolution"] == fused.counts["convolution"]
    assert fused.counts["_to_copy"] < 0.3 * (plain.counts["_to_copy"] + plain.weight_casts)
    assert fused.weight_casts <= 574  # autocast's own, those of the frozen features in every pass
    assert triton.total() == 2 * 287
    assert fused.counts.total() + triton.total() / 2 < 0.83 * plain.total()
