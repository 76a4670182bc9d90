"""Frozen features and their mixing, computed natively, against the plain modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm
from velogan.kernels.frozen import FrozenExtractor, FrozenMix, fits_frozen
from velogan.networks.efficientnet_lite import EfficientNetLite, FeatureExtractor
from velogan.networks.projected import Mix


@pytest.fixture(scope="module")
def maps() -> FeatureExtractor:
    """EfficientNet-Lite0 with random weights that keep the variance."""
    torch.manual_seed(0)
    shapes = EfficientNetLite(None, variant="lite0").state_dict()
    state = {
        name: torch.randn(empty.shape) * ((2 / empty[0].numel()) ** 0.5 if name.endswith("weight") else 0.1)
        for name, empty in shapes.items()
    }
    return FeatureExtractor(EfficientNetLite(state, variant="lite0")).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@pytest.fixture(scope="module")
def native(maps: FeatureExtractor, gemm: Bf16Gemm) -> FrozenExtractor:
    assert fits_frozen(maps)
    return FrozenExtractor(maps, gemm)


def _images(n: int, height: int, width: int) -> Tensor:
    return torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(n + height)) * 2 - 1


def _results(net: nn.Module, *inputs: Tensor, dtype: torch.dtype, half: bool, only: int | None = None) -> list[Tensor]:
    """Return results and gradients of inputs and weights, from random gradients of the results, or only of one."""
    leaves = [value.detach().to(dtype).requires_grad_() for value in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        outputs = net(leaves) if len(leaves) > 1 else net(leaves[0])
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    random = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, generator=random).to(out.dtype) for out in outputs]
    chosen = slice(None) if only is None else slice(only, only + 1)
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(outputs[chosen], [*leaves, *weights], grads[chosen])
    return [value.detach().double() for value in (*outputs, *gradients)]


def _errors(values: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [((a - b).norm() / b.norm()).item() for a, b in zip(values, exact, strict=True)]


@pytest.mark.parametrize(("shape", "only"), [((1, 64, 64), None), ((2, 50, 36), None), ((1, 33, 47), 1)])
def test_maps_in_bfloat16_are_as_exact_as_the_plain_ones(
    maps: FeatureExtractor, native: FrozenExtractor, shape: tuple[int, int, int], only: int | None
) -> None:
    images = _images(*shape)
    exact = _results(copy.deepcopy(maps).double(), images, dtype=torch.float64, half=False, only=only)
    plain = _errors(_results(maps, images, dtype=torch.float32, half=True, only=only), exact)
    for error, plain_error in zip(
        _errors(_results(native, images, dtype=torch.float32, half=True, only=only), exact), plain
    ):
        assert 0 < error < 1.3 * plain_error < 0.7  # a gradient through sixteen blocks keeps few digits


def test_maps_in_float32_are_exact(maps: FeatureExtractor, native: FrozenExtractor) -> None:
    exact = _results(copy.deepcopy(maps).double(), _images(2, 37, 50), dtype=torch.float64, half=False)
    assert max(_errors(_results(native, _images(2, 37, 50), dtype=torch.float32, half=False), exact)) < 1e-5


def test_maps_do_not_depend_on_threads_and_propagate_nan(native: FrozenExtractor) -> None:
    images, results = _images(1, 40, 40), list[list[Tensor]]()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(_results(native, images, dtype=torch.float32, half=True))
    assert all(map(torch.equal, *results))
    images[0, 0, 20, 20] = torch.nan
    assert all(value.isnan().any() for value in _results(native, images, dtype=torch.float32, half=True)[:4])


def _mix(width: int, channels: tuple[int, ...]) -> Mix:
    weights = {f"across_{number}": torch.randn(width, count, 1, 1) for number, count in enumerate(channels)}
    return Mix(weights | {f"down_{number}": torch.randn(width, width, 1, 1) for number in range(1, len(channels))})


def test_mixing_uses_changed_weights(gemm: Bf16Gemm) -> None:
    torch.manual_seed(0)
    mix = _mix(40, (24, 6, 16))
    native = FrozenMix(mix, gemm)
    parts = [torch.randn(2, count, *size) for count, size in ((24, (9, 5)), (6, (5, 3)), (16, (3, 2)))]
    for _ in range(2):
        exact = _results(mix, *parts, dtype=torch.float32, half=False)
        actual = _results(native, *parts, dtype=torch.float32, half=True)
        assert all(0 < error < 0.01 for error in _errors(actual, exact))
        for number in range(3):
            mix.weight("across", number).mul_(2).add_(1)  # as a checkpoint would


def test_networks_with_trained_weights_are_not_frozen(maps: FeatureExtractor) -> None:
    assert not fits_frozen(copy.deepcopy(maps).requires_grad_())
    assert not fits_frozen(FeatureExtractor(EfficientNetLite(None, variant="lite0")))
    assert not fits_frozen(nn.Conv2d(3, 4, 1))
