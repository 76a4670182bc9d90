"""Frozen features and their mixing, computed natively, against the plain modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.kernels.bf16_gemm import Bf16Gemm
from velogan.kernels.frozen import FrozenMaps, FrozenMix, fits_frozen
from velogan.kernels.shared_casts import FrozenBf16
from velogan.networks.efficientnet_lite import EfficientNetLite, FeatureMaps
from velogan.networks.projected import Mix


@pytest.fixture(scope="module")
def maps() -> FeatureMaps:
    """EfficientNet-Lite0 with random weights that keep the variance."""
    torch.manual_seed(0)
    shapes = EfficientNetLite(None, variant="lite0").state_dict()
    state = {
        name: torch.randn(empty.shape) * ((2 / empty[0].numel()) ** 0.5 if name.endswith("weight") else 0.1)
        for name, empty in shapes.items()
    }
    return FeatureMaps(EfficientNetLite(state, variant="lite0")).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@pytest.fixture(scope="module")
def native(maps: FeatureMaps, gemm: Bf16Gemm) -> FrozenMaps:
    assert fits_frozen(maps)
    return FrozenMaps(maps, gemm)


def _images(n: int, height: int, width: int) -> Tensor:
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(n + height)) * 2 - 1


def _results(net: nn.Module, *given: Tensor, dtype: torch.dtype, half: bool, to: int | None = None) -> list[Tensor]:
    """What `net` gives, and the gradients of `given` and of its weights from random ones (of the result `to` alone)."""
    leaves = [one.detach().to(dtype).requires_grad_() for one in given]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = net(leaves) if len(leaves) > 1 else net(leaves[0])
    found = [found] if isinstance(found, Tensor) else list(found)
    random = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=random).to(out.dtype) for out in found]
    chosen = slice(None) if to is None else slice(to, to + 1)
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    made = torch.autograd.grad(found[chosen], [*leaves, *weights], grads[chosen])
    return [one.detach().double() for one in (*found, *made)]


def _away(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [((one - other).norm() / other.norm()).item() for one, other in zip(found, exact, strict=True)]


@pytest.mark.parametrize(("shape", "to"), [((1, 64, 64), None), ((2, 50, 36), None), ((1, 33, 47), 1)])
def test_maps_in_bfloat16_are_as_near_as_the_plain_ones(
    maps: FeatureMaps, native: FrozenMaps, shape: tuple[int, int, int], to: int | None
) -> None:
    images = _images(*shape)
    exact = _results(copy.deepcopy(maps).double(), images, dtype=torch.float64, half=False, to=to)
    plain = _away(_results(maps, images, dtype=torch.float32, half=True, to=to), exact)
    for mine, theirs in zip(_away(_results(native, images, dtype=torch.float32, half=True, to=to), exact), plain):
        assert 0 < mine < 1.3 * theirs < 0.7  # a gradient through sixteen blocks keeps few digits


def test_maps_in_float32_are_exact(maps: FeatureMaps, native: FrozenMaps) -> None:
    exact = _results(copy.deepcopy(maps).double(), _images(2, 37, 50), dtype=torch.float64, half=False)
    assert max(_away(_results(native, _images(2, 37, 50), dtype=torch.float32, half=False), exact)) < 1e-5


def test_maps_of_a_gpu_are_those_of_the_autocast_without_casts_of_weights(maps: FeatureMaps) -> None:
    images, half = _images(2, 50, 36), FrozenBf16(maps)
    assert not list(half.parameters())
    plain = _results(maps, images, dtype=torch.float32, half=True)
    assert all(map(torch.equal, _results(half, images, dtype=torch.float32, half=True), plain))
    exact = _results(maps, images, dtype=torch.float32, half=False)
    assert all(map(torch.equal, _results(half, images, dtype=torch.float32, half=False), exact))
    casts: list[int] = []
    for net in (maps, half):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), _Casts() as seen:
            net(images)
        casts.append(seen.count)
    convolutions = sum(isinstance(layer, nn.Conv2d) for layer in maps.net.modules()) - 1  # the last makes no map
    assert casts == [2 * convolutions + 1, 1]  # weights and biases, and the images


class _Casts(TorchDispatchMode):
    """Counts changes of a type."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def test_maps_depend_on_no_number_of_threads_and_keep_nan(native: FrozenMaps) -> None:
    images, found = _images(1, 40, 40), list[list[Tensor]]()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(_results(native, images, dtype=torch.float32, half=True))
    assert all(map(torch.equal, *found))
    images[0, 0, 20, 20] = torch.nan
    assert all(one.isnan().any() for one in _results(native, images, dtype=torch.float32, half=True)[:4])


def test_networks_that_are_trained_are_not_frozen(maps: FeatureMaps) -> None:
    assert not fits_frozen(copy.deepcopy(maps).requires_grad_())
    assert not fits_frozen(FeatureMaps(EfficientNetLite(None, variant="lite0")))
    assert not fits_frozen(nn.Conv2d(3, 4, 1))


def _mix(width: int, channels: tuple[int, ...]) -> Mix:
    weights = {f"across_{number}": torch.randn(width, count, 1, 1) for number, count in enumerate(channels)}
    return Mix(weights | {f"down_{number}": torch.randn(width, width, 1, 1) for number in range(1, len(channels))})


def test_mixing_is_native_and_follows_changed_weights(gemm: Bf16Gemm) -> None:
    torch.manual_seed(0)
    mix = _mix(40, (24, 6, 16))
    native = FrozenMix(mix, gemm)
    parts = [torch.randn(2, count, *size) for count, size in ((24, (9, 5)), (6, (5, 3)), (16, (3, 2)))]
    for _ in range(2):
        exact = _results(mix, *parts, dtype=torch.float32, half=False)
        found = _results(native, *parts, dtype=torch.float32, half=True)
        assert all(0 < away < 0.01 for away in _away(found, exact))
        for number in range(3):
            mix.weight("across", number).mul_(2).add_(1)  # as a checkpoint would
