"""Run a network with norm, activation, residual add and padding fused into one operation, on a CPU or a GPU.

`_Planner` turns the layers of a network into steps, by ordered fusion rules, in advance. Steps share the weights of
the network. Modules of unknown `forward_kind`, and unknown layers, are called unchanged, so any network runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm
from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.few_channel import few_channel_conv2d, is_few_channel_conv
from velogan.kernels.fp32_gemm import Fp32Gemm
from velogan.kernels.frozen import FrozenExtractor, FrozenMix, fits_frozen
from velogan.kernels.norms import NormKernels
from velogan.kernels.plan import (
    MARK_STEPS,
    RESIDUAL_END,
    RESIDUAL_START,
    Opaque,
    Plan,
    PlannedNetwork,
    PlanState,
    PlanStep,
    TokenStep,
    as_step,
    tokens,
)
from velogan.kernels.precision import measure_speedup
from velogan.kernels.winograd import WinogradTrainingConv, fits_winograd, winograd_convolution
from velogan.types import forward_kind_of

NativeGemm = Bf16Gemm | Fp32Gemm
"""The native convolutions, in bfloat16 or in float32."""


class Fused(PlannedNetwork):
    """Computes `net` by fused steps: same weights, same output up to rounding, no second derivatives.

    With `gemm`, all convolutions that it supports are native, in its precision. Modules of unknown `forward_kind` are
    called unchanged. For `recompute` and hooks see `PlannedNetwork`.
    """

    def __init__(
        self, net: nn.Module, kernels: NormKernels, gemm: NativeGemm | None = None, *, recompute: bool = False
    ):
        plan = _Planner(tokens(net), kernels, gemm).plan()
        super().__init__(net, plan, layout=torch.channels_last, recompute=recompute)


def to_native(net: nn.Module, *, kernels: NormKernels, gemm: NativeGemm | None, recompute: bool = False) -> nn.Module:
    """Return a module that computes `net` by native kernels as far as possible.

    It is `FrozenExtractor` for a feature network that `fits_frozen`, `FrozenMix` for a module that mixes feature maps,
    else `Fused`, to which `recompute` is passed. Without a `Bf16Gemm`, the first two are `net` itself.
    """
    kind = forward_kind_of(net)
    if kind == "maps":
        return FrozenExtractor(net, gemm) if isinstance(gemm, Bf16Gemm) and fits_frozen(net) else net
    if kind == "mix":
        return FrozenMix(net, gemm) if isinstance(gemm, Bf16Gemm) else net
    return Fused(net, kernels, gemm, recompute=recompute)


class _Planner:
    """Turns layers into steps: the first fusion rule that matches the next layers builds a step for them.

    A rule returns a step for a layer, with its token, or None if it does not match. If the step computes layers after
    this one, too, the rule removes them from `_remaining`. `gemm` is None if PyTorch's convolutions are faster.
    """

    def __init__(self, layers: Iterable[nn.Module], kernels: NormKernels, gemm: NativeGemm | None):
        self._remaining, self._kernels = list(layers), kernels
        self._gemm = gemm

    def plan(self) -> Plan:
        """Return the steps; a layer that no rule matches is called unchanged."""
        rules = (self._mark, self._convolution, self._mixture, self._norm, self._epilogue)
        plan = Plan()
        while self._remaining:
            layer = self._remaining.pop(0)
            steps = (rule(layer) for rule in rules)
            plan.append(next(filter(None, steps), (layer, as_step(layer))))
        return plan

    def _mark(self, layer: nn.Module) -> TokenStep | None:
        return (layer, MARK_STEPS[layer]) if layer in MARK_STEPS and layer is not RESIDUAL_END else None

    def _convolution(self, layer: nn.Module) -> TokenStep | None:
        if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) or layer.padding_mode != "zeros":
            return None  # other modes pad in a separate operation
        norm_cancels_bias = bool(self._remaining) and _is_plain_norm(self._remaining[0])
        has_bias = layer.bias is not None and not norm_cancels_bias
        if self._kernels.on_gpu:
            return layer, as_step(_torch_convolution(layer, has_bias=has_bias))
        return layer, as_step(_cpu_convolution(layer, self._gemm, has_bias=has_bias))

    def _mixture(self, layer: nn.Module) -> TokenStep | None:
        gemm = self._gemm
        is_mixture = isinstance(layer, Opaque) and forward_kind_of(layer.wrapped[0]) == "mixture"
        if not is_mixture or not isinstance(gemm, Bf16Gemm):
            return None
        return layer, as_step(partial(layer, convolve=partial(winograd_convolution, gemm=gemm)))

    def _norm(self, layer: nn.Module) -> TokenStep | None:
        if not _is_plain_norm(layer):
            return None
        token = RESIDUAL_END if self._remaining[:1] == [RESIDUAL_END] else layer
        return token, self._consume_epilogue(partial(self._kernels.norm, eps=getattr(layer, "eps", 1e-5)))

    def _epilogue(self, layer: nn.Module) -> TokenStep | None:
        is_padded_activation = _is_activation(layer) and self._padding_index() is not None
        if layer is not RESIDUAL_END and not _is_uniform_padding(layer) and not is_padded_activation:
            return None
        self._remaining.insert(0, layer)
        return layer, self._consume_epilogue(self._kernels.epilogue)

    def _consume_epilogue(self, kernel: Callable[..., tuple[Tensor, Tensor]]) -> PlanStep:
        """Return a step that calls `kernel`; remove the layers in it: an activation or residual add, then padding."""
        slope, has_residual = 1.0, self._remaining[:1] == [RESIDUAL_END]
        pad = 0
        if has_residual:
            self._remaining.pop(0)
        elif self._remaining and _is_activation(self._remaining[0]):
            slope = getattr(self._remaining.pop(0), "negative_slope", 0.0)
        if (index := self._padding_index()) is not None:
            pad = int(self._remaining.pop(index).padding[0])  # pyright: ignore[reportIndexIssue, reportArgumentType]

        def step(state: PlanState) -> None:
            residual = state.residual if has_residual else None
            state.x, state.unpadded = kernel(state.x, residual=residual, slope=slope, pad=pad)

        return step

    def _padding_index(self) -> int | None:
        """Return the index of a uniform padding that comes next, or next after RESIDUAL_START; else None."""
        index = int(self._remaining[:1] == [RESIDUAL_START])
        return index if len(self._remaining) > index and _is_uniform_padding(self._remaining[index]) else None


def _is_plain_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.InstanceNorm2d) and not layer.affine and not layer.track_running_stats


def _is_activation(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.ReLU, nn.LeakyReLU))


def _is_uniform_padding(layer: nn.Module) -> bool:
    return isinstance(layer, nn.ReflectionPad2d) and len(set(layer.padding)) == 1


def _cpu_convolution(
    layer: nn.Conv2d | nn.ConvTranspose2d, gemm: NativeGemm | None, *, has_bias: bool
) -> Callable[[Tensor], Tensor]:
    """Return the fastest function that computes `layer`, with its bias if `has_bias`."""
    native = None if gemm is None else _native_convolution(layer, gemm, has_bias=has_bias)
    if native is not None:
        return native
    if is_few_channel_conv(layer):
        bf16_gemm = gemm if isinstance(gemm, Bf16Gemm) else None
        return lambda x: few_channel_conv2d(x, layer.weight, layer.bias if has_bias else None, bf16_gemm)
    return _torch_convolution(layer, has_bias=has_bias)


def _torch_convolution(layer: nn.Conv2d | nn.ConvTranspose2d, *, has_bias: bool) -> Callable[[Tensor], Tensor]:
    """Return a function that computes `layer` by PyTorch, with its bias if `has_bias`."""
    if has_bias:
        return layer
    if isinstance(layer, nn.ConvTranspose2d):
        geometry: list[Any] = [layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation]
        return lambda x: F.conv_transpose2d(x, layer.weight, None, *geometry)
    if _reads_every_second_pixel(layer):
        undilated = [1, [side // 2 for side in layer.padding], 1, layer.groups]  # pyright: ignore[reportOperatorIssue]
        return lambda x: F.conv2d(x[:, :, ::2, ::2], layer.weight, None, *undilated)
    return lambda x: layer._conv_forward(x, layer.weight, None)


def _reads_every_second_pixel(layer: nn.Conv2d) -> bool:
    """Return whether `layer` reads only every second pixel, so that an undilated convolution of these is faster."""
    has_even_padding = not isinstance(layer.padding, str) and all(side % 2 == 0 for side in layer.padding)
    return has_even_padding and layer.stride == layer.dilation == (2, 2)


def _native_convolution(
    layer: nn.Module, gemm: NativeGemm, *, has_bias: bool = False
) -> Callable[[Tensor], Tensor] | None:
    if fits_winograd(layer) and gemm.supports_winograd(layer.kernel_size[0], layer.dilation[0]):
        return WinogradTrainingConv(layer, gemm, has_bias=has_bias)
    return ConvWeightGrad(layer, gemm) if not has_bias and fits_conv_weight_grad(layer, gemm.block) else None


def measure_training_speedup(layer: nn.Conv2d, gemm: NativeGemm) -> float:
    """Return how many times faster `layer` is with `gemm` than with PyTorch, forward and backward.

    Both use the precision of `gemm`; see `measure_speedup`. If `gemm` does not support the layer, return 0.
    """
    native = _native_convolution(layer.to(memory_format=torch.channels_last), gemm)  # pyright: ignore[reportCallIssue]
    if native is None:
        return 0.0
    x = torch.ones(1, layer.in_channels, 34, 34, dtype=gemm.dtype).to(memory_format=torch.channels_last)
    x.requires_grad_()
    geometry: list[Any] = [layer.stride, layer.padding, layer.dilation]
    return measure_speedup(
        lambda: F.conv2d(x, layer.weight.to(gemm.dtype), None, *geometry).sum().backward(),
        lambda: native(x).sum().backward(),
    )
