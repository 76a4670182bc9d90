from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm
from velogan.kernels.fused import Fused
from velogan.kernels.norms import NormKernels
from velogan.kernels.winograd import KERNELS, WinogradInferenceConv, WinogradTrainingConv, fits_winograd
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.search.supernet import SupernetFactory

SIZES = {
    "n": st.integers(1, 2),
    "c": st.sampled_from([16, 37, 64, 128]),
    "o": st.sampled_from([33, 64, 149, 192]),
    "h": st.integers(3, 40),  # of the result
    "w": st.integers(3, 40),
    "kernel": st.sampled_from(KERNELS),
    "dilation": st.sampled_from([1, 1, 2, 3]),
}


def _convolution(channels: int, out: int, kernel: int = 3, dilation: int = 1, *, bias: bool = False) -> nn.Conv2d:
    torch.manual_seed(channels + out)
    return nn.Conv2d(channels, out, kernel, dilation=dilation, bias=bias)


def _images(*shape: int) -> Tensor:
    return _exact_images(*shape).bfloat16()


def _exact_images(*shape: int) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.contiguous(memory_format=torch.channels_last)


@settings(max_examples=20, deadline=None)
@given(**SIZES, bias=st.booleans())
def test_equals_the_convolution_to_rounding(
    gemm: Bf16Gemm, n: int, c: int, o: int, h: int, w: int, kernel: int, dilation: int, bias: bool
) -> None:
    conv = _convolution(c, o, kernel, dilation, bias=bias).requires_grad_(False)
    assert fits_winograd(conv)
    x = _images(n, c, h + (kernel - 1) * dilation, w + (kernel - 1) * dilation)
    result = WinogradInferenceConv(conv, gemm)(x)
    assert result.dtype == torch.bfloat16
    expected = conv(x.float())
    # Three roundings to 8 bits, of values up to four (image) and nine (product) summands.
    allowed = (
        2**-7 * F.conv2d(x.float().abs(), conv.weight.abs(), dilation=dilation).amax() + 2**-8 * expected.abs().amax()
    )
    assert result.shape == expected.shape
    assert (result.float() - expected).abs().max() <= allowed


def _gradients(run: object, x: Tensor, weight: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `run(x)` and the gradients of `x` and `weight`, in float64."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = run(x)  # pyright: ignore[reportCallIssue]
    dx, dweight = torch.autograd.grad(out, [x, weight], g.to(out.dtype))
    return out.detach().double(), dx.double(), dweight.double()


@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_gradients_are_as_exact_as_the_library_s(
    gemm: Bf16Gemm, n: int, c: int, o: int, h: int, w: int, kernel: int, dilation: int
) -> None:
    conv, g = _convolution(c, o, kernel, dilation), _exact_images(n, o, h, w)
    x = _exact_images(n, c, h + (kernel - 1) * dilation, w + (kernel - 1) * dilation)
    fast, weight = WinogradTrainingConv(conv, gemm), conv.weight
    truth = _gradients(lambda x: F.conv2d(x, weight.double(), dilation=dilation), x.double(), weight, g)
    rounded = [
        value.detach().bfloat16().double() for value in (x, weight, g)
    ]  # the library's own bfloat16 can be NaN here
    rounded[1].requires_grad_()
    plain = _gradients(lambda x: F.conv2d(x, rounded[1], dilation=dilation), rounded[0], rounded[1], rounded[2])
    for name, exact, rough, actual in zip(
        ("out", "dx", "dweight"), truth, plain, _gradients(fast, x.bfloat16(), weight, g)
    ):
        rough = rough.bfloat16().double()
        assert actual.shape == exact.shape
        # Factors are rounded before and after the transform: once more than in the library.
        assert (actual - exact).norm() < 2 * (rough - exact).norm(), name


def test_integers_are_exact(gemm: Bf16Gemm) -> None:
    conv = _convolution(64, 64, bias=True).requires_grad_(False)
    conv.weight.copy_(torch.randint(-1, 2, conv.weight.shape) * 4 * (torch.rand(64, 64, 1, 1) < 0.1))
    conv.bias.copy_(torch.arange(64.0) % 4)  # pyright: ignore[reportOptionalMemberAccess]
    x = torch.randint(0, 2, (1, 64, 9, 8)).float()
    expected = conv(x)
    assert expected.abs().max() < 256  # all of it fits into 8 bits
    result = WinogradInferenceConv(conv, gemm)(x.bfloat16())
    assert torch.equal(result.float(), expected)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (7, 1), (5, 2)])
def test_results_do_not_depend_on_threads_or_neighbours(gemm: Bf16Gemm, kernel: int, dilation: int) -> None:
    conv, reach = _convolution(64, 128, kernel, dilation), (kernel - 1) * dilation
    x, g = _images(2, 64, 68 + reach, 19 + reach), _images(2, 128, 68, 19)
    fast = WinogradTrainingConv(conv, gemm)
    single_thread = _gradients(fast, x, conv.weight, g)
    torch.set_num_threads(2)
    assert all(torch.equal(a, b) for a, b in zip(single_thread, _gradients(fast, x, conv.weight, g)))
    torch.set_num_threads(1)
    alone = _gradients(fast, x[1:], conv.weight, g[1:])
    assert torch.equal(alone[0], single_thread[0][1:])
    assert torch.equal(alone[1], single_thread[1][1:])


def test_adds_and_trains_a_bias(gemm: Bf16Gemm) -> None:
    conv, x = _convolution(64, 32, 5, bias=True), _images(2, 64, 20, 20)
    fast = WinogradTrainingConv(conv, gemm, has_bias=True)
    weights = list(conv.parameters())
    out, exact = fast(x).float(), conv(x.float())
    assert (out - exact).norm() < 0.01 * exact.norm()
    assert (out - WinogradTrainingConv(conv, gemm)(x)).norm() > 0.01 * exact.norm()
    for actual, expected in zip(*(torch.autograd.grad(value.square().mean(), weights) for value in (out, exact))):
        assert (actual - expected).norm() < 0.01 * expected.norm()


def test_transforms_weights_once_per_step(gemm: Bf16Gemm, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = _convolution(64, 64), _images(1, 64, 8, 8)
    transforms: list[object] = []
    transform = gemm.winograd_weights
    monkeypatch.setattr(gemm, "winograd_weights", lambda weight: transforms.append(weight) or transform(weight))
    fast, adam = WinogradTrainingConv(conv, gemm), torch.optim.Adam(conv.parameters(), lr=0.1, fused=True)
    before = fast(x)
    assert torch.equal(fast(x), before)
    assert len(transforms) == 1
    fast(x).float().square().mean().backward()
    adam.step()
    after = fast(x).detach()
    assert len(transforms) == 2
    with torch.no_grad():
        torch.testing.assert_close(after.float(), conv(x.float()), rtol=0, atol=0.05 * float(after.float().std()))
    conv.load_state_dict(_convolution(64, 64).state_dict())
    assert torch.equal(fast(x), before)
    with torch.no_grad():
        fast(x)
        torch._fused_sgd_(  # does not increase the version of the weights
            [conv.weight],
            [conv.weight.clone()],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=1.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
        )
        assert conv.weight.abs().max() == fast(x).abs().max() == 0


@pytest.mark.parametrize(
    ("config", "build"),
    [
        (GeneratorConfig(channels=16, blocks=2), build_generator),
        (GeneratorConfig(network="cells", channels=17, blocks=1), SupernetFactory().generator),
    ],
    ids=["resnet", "supernet"],
)
def test_a_fused_generator_is_as_exact_as_plain_bfloat16(
    config: GeneratorConfig, build: Callable[[GeneratorConfig], nn.Module], gemm: Bf16Gemm, kernels: NormKernels
) -> None:
    torch.manual_seed(0)
    net = build(config.model_copy(update={"init": "kaiming"}))
    x, g = torch.rand(1, 3, 32, 32) * 2 - 1, torch.randn(1, 3, 32, 32)
    weights = [p for name, p in net.named_parameters() if name.endswith(("weight", "alpha"))]
    results = []
    for forward_net, half in ((net, False), (Fused(net, kernels), True), (Fused(net, kernels, gemm), True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = forward_net(x).float()
        results.append(torch.cat([v.flatten() for v in torch.autograd.grad(out, weights, g)]))
    truth, plain, fast = results
    assert not torch.equal(plain, fast)
    assert (fast - truth).norm() < 1.5 * (plain - truth).norm()
