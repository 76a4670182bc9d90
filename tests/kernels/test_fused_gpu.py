"""Networks with Triton's kernels: on a GPU, or in Triton's interpreter, which runs them on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels import gpu
from velogan.kernels.fused import Fused
from velogan.kernels.norms import NormKernels
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.networks.layers import initialise


@pytest.fixture(scope="module")
def norms(device: torch.device) -> NormKernels:
    return import_module("velogan.kernels.triton_norms").TritonNorms()


@pytest.fixture
def as_on_a_gpu(kernels: NormKernels, monkeypatch: pytest.MonkeyPatch) -> NormKernels:
    """The CPU's kernels, with all that goes with a GPU's: much faster than the interpreter."""
    monkeypatch.setattr(type(kernels), "on_gpu", True)
    return kernels


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Convolutions in float32 proper on a GPU."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def _generator(**fields: Any) -> nn.Module:
    net = build_generator(GeneratorConfig.model_validate({"channels": 4, "blocks": 1} | fields))
    return initialise(net, gain=0.3)


def _patch(**fields: Any) -> nn.Module:
    return initialise(build_discriminator(DiscriminatorConfig.model_validate({"channels": 4} | fields)), gain=0.3)


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet": (lambda: _generator(), 12),
    "resnet, batch norm": (lambda: _generator(norm="batch"), 12),
    "resnet, no norm": (lambda: _generator(norm="none"), 12),
    "unet": (lambda: _generator(network="unet_128", channels=2), 128),
    "patch": (lambda: _patch(), 36),
    "patch, spectral norm": (lambda: _patch(norm="spectral"), 36),
}


def _result(forward_net: nn.Module, net: nn.Module, images: Tensor, *, half: bool) -> dict[str, Tensor]:
    net.zero_grad()
    images = images.clone().requires_grad_()
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=half):
        out = forward_net(images)
    weight = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)
    (out.float() * weight).sum().backward()
    assert images.grad is not None
    # a norm takes away what a bias adds, so that such a bias has no gradient, or a rounding error
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None and not name.endswith("bias")}
    return {"out": out.detach().float(), "images": images.grad, **grads}


def _both(
    name: str, norms: NormKernels | None, device: torch.device, *, half: bool
) -> Iterator[tuple[str, Tensor, Tensor]]:
    torch.manual_seed(0)
    make, side = NETS[name]
    net = make().to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    images = (torch.rand(1, 3, side, side) * 2 - 1).to(device).contiguous(memory_format=torch.channels_last)
    start = deepcopy(net.state_dict())
    expected = _result(net, net, images, half=half)
    net.load_state_dict(start)  # running statistics and power iterations
    seen = expected if norms is None else _result(Fused(net, norms), net, images, half=half)
    assert seen.keys() == expected.keys()
    yield from ((key, seen[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", NETS)
def test_a_fused_network_is_the_network(name: str, norms: NormKernels, device: torch.device):
    for key, seen, expected in _both(name, norms, device, half=False):
        if key == "out":
            torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)
        # rounding may turn a ReLU's gradient on or off here and there
        assert (seen - expected).norm() < 0.01 * expected.norm(), key


@pytest.mark.parametrize("name", NETS)
def test_under_autocast_it_is_as_near_to_float32_as_the_plain_network(name: str, as_on_a_gpu: NormKernels):
    device, norms = torch.device("cpu"), as_on_a_gpu
    exact = {key: expected for key, _, expected in _both(name, None, device, half=False)}
    ratios: dict[str, float] = {}
    for key, seen, expected in _both(name, norms, device, half=True):
        assert (seen.dtype, seen.stride()) == (torch.float32, exact[key].stride()), key
        ratios[key] = float((seen - exact[key]).norm() / (expected - exact[key]).norm())
    assert fmean(ratios.values()) < 1.1, ratios
    assert max(ratios.values()) < 1.5, ratios  # one alone depends on how this processor rounds bf16


def test_activations_computed_twice_give_the_same_gradients(as_on_a_gpu: NormKernels):
    torch.manual_seed(0)
    net, images = _generator(), torch.rand(1, 3, 12, 12)
    once, twice = (_result(Fused(net, as_on_a_gpu, recompute=r), net, images, half=True) for r in (False, True))
    assert all(torch.equal(once[key], twice[key]) for key in once)


def test_kernels_are_checked_before_they_are_used(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    load = gpu.load_gpu_kernels.__wrapped__
    assert isinstance(load(device, tmp_path), NormKernels)
    room = import_module("velogan.kernels.triton_norms")

    def wrong(self: Any, g: Tensor, *_: Any, saved: tuple[Tensor, ...], **__: Any) -> tuple[Tensor, None]:
        return torch.zeros_like(saved[0]), None

    monkeypatch.setattr(room.TritonNorms, "backward", wrong)
    assert "the plain layers differ" in str(load(device, tmp_path))

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("no driver\nand more")

    monkeypatch.setattr(room.TritonNorms, "backward", failing)
    assert load(device, tmp_path) == "Triton's kernels do not run here: RuntimeError: no driver"


def test_without_triton_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu.load_gpu_kernels.__wrapped__(torch.device("cpu"), tmp_path) == "Triton is not installed"
