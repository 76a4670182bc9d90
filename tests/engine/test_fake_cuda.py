"""The default CUDA step without a GPU: on fake tensors, which have a device, a type and a shape, and no values.

They find mixed devices, wrong types, and whatever waits for the device, where real ones would need a GPU. Three things
they do not know, and stand-ins take their places: gradients (autograd asks for a real device), CUDA graphs, and what
`torch.compile` makes of the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from velogan.config import Config
from velogan.data.sets.loader import PairLoader
from velogan.engine.capture import WARM_UPS, CudaRecorder
from velogan.engine.ema import EMA
from velogan.kernels.inference import Accelerator
from velogan.networks.generators import build_generator
from velogan.observe.statistics import Stats
from velogan.recipes import RECIPES
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.types import Batch

from ..domains import domain_in_memory

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None, reason="torch is not linked with CUDA: its fake tensors cannot be on cuda"
)

CUDA = torch.device("cuda", 0)
SIDE = 32


class _Watch(TorchDispatchMode):
    """Refuses copies between host and device: a captured graph cannot hold them. `ahead`: those to the device that do
    not wait for it are allowed, as they are before a replay."""

    def __init__(self, *, ahead: bool = False):
        super().__init__()
        self._ahead = ahead

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket is torch.ops.aten._fused_adam_:
            return _fused_adam(*args, **kwargs)
        out = func(*args, **kwargs)
        devices = {value.device for value in tree_leaves((args, kwargs, out)) if isinstance(value, Tensor)}
        if len(devices) > 1:
            target = args[0] if func is torch.ops.aten.copy_.default else out
            waits = not (kwargs.get("non_blocking") or args[2:] == (True,)) or target.device != CUDA
            if waits or not self._ahead:
                raise AssertionError(f"{func} between {' and '.join(sorted(map(str, devices)))}")
        return out


def _fused_adam(
    weights: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    _: list[Tensor],
    steps: list[Tensor],
    *,
    lr: Tensor | float,
    found_inf: Tensor,
    **settings: Any,
) -> None:
    """What CUDA's kernel asks for, which fake tensors do not know: it walks all by memory, in one type."""
    for weight, *others in zip(weights, gradients, means, squares, strict=True):
        for other in (weight, *others):
            assert (other.device, other.dtype) == (CUDA, torch.float32)
            assert (other.shape, other.stride()) == (weight.shape, weight.stride())
    for number in (*steps, found_inf, *([lr] if isinstance(lr, Tensor) else [])):
        assert (number.device, number.dtype, number.shape) == (CUDA, torch.float32, ())


class _Recorder:
    """Stands for `CudaRecorder`: runs the work as often, and replays nothing."""

    def __init__(self, device: torch.device):
        assert device == CUDA

    def __call__(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        with _Watch():
            losses = [work() for _ in range(WARM_UPS + 1)]
        return losses[-1], lambda: None


def _replaced(self: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Stands for `nn.Module._apply`, which swaps fake parameters, and cannot."""
    for child in self.children():
        _replaced(child, convert)
    for name, value in self._parameters.items():
        if value is not None:
            self._parameters[name] = nn.Parameter(convert(value.detach()), value.requires_grad)
    for name, value in self._buffers.items():
        self._buffers[name] = None if value is None else convert(value)
    return self


def _copied(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Stands for `Tensor.__deepcopy__`, which asks where a tensor lies, and copies a fake one's mode with it."""
    value = self.detach().clone()
    return memo.setdefault(
        id(self), nn.Parameter(value, self.requires_grad) if isinstance(self, nn.Parameter) else value
    )


def _leaves(out: Tensor) -> Iterator[Tensor]:
    """What `out` was computed from and has a gradient."""
    visited, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            yield node.variable  # pyright: ignore[reportAttributeAccessIssue]
        waiting += [behind for behind, _ in node.next_functions]


def _backward(self: Tensor) -> None:
    """Stands for `Tensor.backward`: every leaf gets some gradient, as its weights are laid out."""
    assert self.shape == ()
    assert self.dtype == torch.float32
    for leaf in _leaves(self):
        leaf.grad = torch.zeros_like(leaf)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A mode in which tensors are fake, beside what a GPU would have answered."""
    mode = FakeTensorMode()
    answers: dict[str, Callable[..., Any]] = {
        "is_bf16_supported": lambda **_: True,
        "current_stream": lambda *_: SimpleNamespace(cuda_stream=0),
        "set_device": lambda _: None,
        "mem_get_info": lambda _: (2**34, 2**34),
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_: None,
        "amp.common.amp_definitely_not_available": lambda: False,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(f"torch.cuda.{name}", answer)
    monkeypatch.setattr(nn.Module, "_apply", _replaced)
    monkeypatch.setattr(Tensor, "__deepcopy__", _copied)
    monkeypatch.setattr(Tensor, "backward", _backward)
    monkeypatch.setattr(torch, "from_numpy", lambda array: mode.from_tensor(torch.tensor(array)))
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    for name in ("__init__", "__call__"):
        monkeypatch.setattr(CudaRecorder, name, getattr(_Recorder, name))
    with mode:
        yield mode


def _config(recipe: str, **sections: Any) -> Config:
    """The recipe at a tiny size, with what is decided for a CUDA device; not compiled, which computes the same."""
    tiny = (
        RECIPES[recipe]()
        .change(**sections)
        .change(
            data={"crop_size": SIDE, "load_size": SIDE + 4, "batch_size": 2},
            generator={"channels": 4, "blocks": 1},
            discriminator={"channels": 4},
            engine={"device": str(CUDA), "compile": "off"},
        )
    )
    return tiny.model_copy(update={"engine": resolve_engine(tiny)[0]})


def _loader(config: Config, dtype: type[np.generic]) -> PairLoader:
    """Pictures that lie on the device."""
    pictures = [np.zeros((SIDE + 4, SIDE + 4, 3), dtype)] * 4
    a, b = (domain_in_memory(pictures) for _ in "AB")
    loader = PairLoader(a, b, config.data, seed=0, device=CUDA)
    assert all(images is not None and images.device == CUDA for images in loader.gpu_images.values())
    return loader


def _train(
    config: Config, *, spoil: Callable[[Batch], Any] = lambda batch: None, dtype: type[np.generic] = np.uint8
) -> None:
    """Take two steps, the second a replay, with the hooks that follow steps. `spoil` changes each batch within them."""
    assert config.engine.captures
    assert config.engine.precision in ("bf16", "fp16")
    loader = _loader(config, dtype)

    def prepare(gathered: Batch) -> Batch:
        batch = loader.preprocess_on_device(gathered)
        assert (batch["A"].device, batch["A"].dtype, batch["A"].shape) == (CUDA, torch.float32, (2, 3, SIDE, SIDE))
        return spoil(batch) or batch

    step, objective, nets = build_step(config, shape=(SIDE, SIDE), prepare=lambda split: prepare)
    hooks = [Stats(), ema := EMA(nets, half_life=1000, rampup=0.05)]
    for number in range(2):
        batch = loader.gather(loader.plan(2 * number)) | {"uniform": torch.rand(objective.num_uniforms["train"], 2)}
        with _Watch(ahead=True) if number else nullcontext():
            ema.set_decay(2 * number + 2)
            losses = step({"train": batch}, number=number, post_step_hooks=hooks)
        assert all((value.device, value.dtype, value.shape) == (CUDA, torch.float32, ()) for value in losses.values())
    moments = [m for optimizer in step.optimizers.values() for of in optimizer.state.values() for m in of.values()]
    averages = [value for hook in hooks for value in hook.state_tensors()]
    state = [value for net in (*nets.values(), objective.state) for value in net.state_dict().values()]
    assert {value.device for value in (*moments, *averages, *state)} == {CUDA}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cyclegan": ("cyclegan", {}),
    "cyclegan, other layers": (
        "cyclegan",
        {
            "generator": {"norm": "batch", "dropout": True},
            "discriminator": {"norm": "batch", "network": "pixel"},
            "method": {"gan": "vanilla", "identity": 0.0},
        },
    ),
    "cyclegan, float16": ("cyclegan", {"engine": {"precision": "fp16"}}),
    "cyclegan, less memory": ("cyclegan", {"train": {"accumulate": 2}, "engine": {"checkpoint_activations": "on"}}),
    "contrast": ("contrast", {"method": {"direction": "both"}}),
    "onepair": ("onepair", {}),
    "onepair-plus, both directions": ("onepair-plus", {"method": {"direction": "both"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_default_step_stays_on_the_device(case: str, fake_cuda: FakeTensorMode):
    recipe, sections = CASES[case]
    _train(_config(recipe, **sections))
    assert torch.backends.cudnn.benchmark


def test_images_of_16_bits_are_cropped_on_the_device(fake_cuda: FakeTensorMode):
    _train(_config("onepair"), dtype=np.uint16)


FAULTS: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "a number for the host": (lambda batch: batch["A"].mean().item() and None, "_local_scalar_dense"),
    "a choice by value": (lambda batch: {} if batch["A"].mean() > 0 else None, "_local_scalar_dense"),
    "a shape by value": (lambda batch: {"A": batch["A"][batch["A"] > 0]}, "nonzero"),
    "a copy to the host": (lambda batch: batch["A"].cpu() and None, "_to_copy.* between cpu and cuda:0"),
    "a copy from the host": (
        lambda batch: batch | {"A": batch["A"] + torch.ones(3, 1, 1).to(CUDA)},
        "_to_copy.* between cpu and cuda:0",
    ),
    "a copy that does not wait": (
        lambda batch: batch["A"].to("cpu", non_blocking=True) and None,
        "_to_copy.* between cpu and cuda:0",
    ),
    "a number of the host": (lambda batch: batch | {"A": batch["A"] * torch.ones(())}, "mul.* between cpu and cuda:0"),
    "a tensor of the host": (
        lambda batch: batch | {"A": batch["A"] + torch.ones(3, 1, 1)},
        "two different devices cuda:0, cpu",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_detects_steps_that_leave_the_device(fault: str, fake_cuda: FakeTensorMode):
    spoil, message = FAULTS[fault]
    with pytest.raises((AssertionError, RuntimeError), match=message):
        _train(_config("cyclegan"), spoil=spoil)


@pytest.mark.parametrize("recipe", ["cyclegan", "onepair-plus"])
def test_translating_stays_on_the_device(recipe: str, fake_cuda: FakeTensorMode, tmp_path: Path):
    net = build_generator(_config(recipe).generator).eval()
    images = torch.rand(2, 3, SIDE, SIDE, device=CUDA)
    for rounded in (False, True):
        fast = Accelerator(CUDA, tmp_path)(net, rounded=rounded)
        with torch.inference_mode(), _Watch():
            out = fast(images)
        assert (out.device, out.dtype, out.shape) == (CUDA, torch.float32, images.shape)
