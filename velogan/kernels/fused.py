"""Runs a network with norm, activation, residual add and padding fused into one operation, on a CPU or a GPU.

The plan is made once, from the modules that declare their form; the weights are shared with the network. Other modules,
and unknown layers, are called as they are, so any network runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, gain
from velogan.kernels.conv_weight_grad import ConvWeightGrad, fits_conv_weight_grad
from velogan.kernels.fp32_gemm import Fp32Gemm
from velogan.kernels.frozen import FrozenMaps, FrozenMix, fits_frozen
from velogan.kernels.half import FrozenHalf, HalfConvolutions, fits_half
from velogan.kernels.norms import NormKernels
from velogan.kernels.plan import ADD, OF_MARKS, SAVE, Opaque, Plan, Planned, State, Step, apply, tokens
from velogan.kernels.thin import is_thin, thin_convolution
from velogan.kernels.winograd import WinogradConvolution, fits_winograd, winograd_convolution
from velogan.types import forward_kind_of

Products = Bf16Gemm | Fp32Gemm
"""Native convolutions: those in bfloat16, or those in float32."""


class Fused(Planned):
    """`net` with fused steps: same weights, same result up to rounding, no second derivatives.

    With `gemm`, convolutions in its precision are native where that is faster. With kernels for GPUs, the library's
    convolutions share the casts of their weights (`HalfConvolutions`). Modules of unknown `forward_kind`
    are called as they are. For `recompute` and hooks see `Planned`.
    """

    def __init__(self, net: nn.Module, kernels: NormKernels, gemm: Products | None = None, *, recompute: bool = False):
        convolutions = HalfConvolutions()
        plan = _plan(list(tokens(net)), kernels, convolutions if kernels.on_gpu else gemm)
        super().__init__(net, plan, layout=torch.channels_last, recompute=recompute)
        self._convolutions = convolutions

    def forward(self, x: Tensor) -> Tensor:
        with self._convolutions.for_a_pass(x):
            return super().forward(x)


def native(net: nn.Module, *, kernels: NormKernels, gemm: Products | None, recompute: bool = False) -> nn.Module:
    """Return `net` computed natively as far as possible.

    Frozen features by `FrozenMaps`, on a GPU by `FrozenHalf`; their mixing by `FrozenMix`; other networks by `Fused`,
    which takes `recompute`.
    """
    form, half = forward_kind_of(net), _half(gemm)
    if form == "maps" and kernels.on_gpu and not any(weight.requires_grad for weight in net.parameters()):
        return FrozenHalf(net)
    if form == "maps":
        return FrozenMaps(net, half) if half is not None and fits_frozen(net) else net
    if form == "mix":
        return FrozenMix(net, half) if half is not None else net
    return Fused(net, kernels, gemm, recompute=recompute)


def _half(gemm: Products | None) -> Bf16Gemm | None:
    return gemm if isinstance(gemm, Bf16Gemm) else None


def _plan(left: list[nn.Module], kernels: NormKernels, how: Products | HalfConvolutions | None) -> Plan:
    plan: Plan = []
    on_gpu, gemm = (how, None) if isinstance(how, HalfConvolutions) else (None, how)
    half = _half(gemm)
    while left:
        layer = left.pop(0)
        if layer in OF_MARKS and layer is not ADD:
            plan.append((layer, OF_MARKS[layer]))
        elif on_gpu is not None and fits_half(layer):
            biased = layer.bias is not None and not _needs_no_bias(layer, left)
            plan.append((layer, apply(on_gpu.step(layer, biased=biased))))
        elif on_gpu is None and isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)) and _needs_no_bias(layer, left):
            plan.append((layer, _convolve(layer, gemm)))
        elif gemm is not None and (with_bias := _winograd(layer, gemm, biased=True)) is not None:
            plan.append((layer, apply(with_bias)))
        elif isinstance(layer, Opaque) and forward_kind_of(layer.of[0]) == "mixture" and half is not None:
            plan.append((layer, apply(partial(layer, convolve=partial(winograd_convolution, gemm=half)))))
        elif on_gpu is None and is_thin(layer):
            plan.append((layer, _thin(layer, half)))
        elif _is_plain_norm(layer):
            adds = bool(left) and left[0] is ADD
            norm = partial(kernels.norm, eps=getattr(layer, "eps", 1e-5))
            plan.append((ADD if adds else layer, _finish(left, norm)))
        elif layer is ADD or _is_even_padding(layer) or (_is_activation(layer) and _padding_at(left) is not None):
            left.insert(0, layer)
            plan.append((layer, _finish(left, kernels.plain)))
        else:
            plan.append((layer, apply(layer)))
    return plan


def _needs_no_bias(layer: nn.Conv2d | nn.ConvTranspose2d, behind: list[nn.Module]) -> bool:
    biased = layer.bias is not None and not (behind and _is_plain_norm(behind[0]))
    return not biased and layer.padding_mode == "zeros"  # other modes pad in a separate operation


def _is_plain_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.InstanceNorm2d) and not layer.affine and not layer.track_running_stats


def _is_activation(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.ReLU, nn.LeakyReLU))


def _is_even_padding(layer: nn.Module) -> bool:
    return isinstance(layer, nn.ReflectionPad2d) and len(set(layer.padding)) == 1


def _padding_at(tokens: list[nn.Module]) -> int | None:
    """The index in `tokens` of an even padding, if it comes next."""
    place = int(bool(tokens) and tokens[0] is SAVE)
    return place if len(tokens) > place and _is_even_padding(tokens[place]) else None


def _finish(tokens: list[nn.Module], kernel: Callable[..., tuple[Tensor, Tensor]]) -> Step:
    """Removes from `tokens` the layers that one call of `kernel` computes: activation or residual add, and padding."""
    slope, add, pad = 1.0, False, 0
    if tokens and _is_activation(tokens[0]):
        slope = getattr(tokens.pop(0), "negative_slope", 0.0)
    elif tokens and tokens[0] is ADD:
        add = bool(tokens.pop(0))
    if (place := _padding_at(tokens)) is not None:
        pad = int(tokens.pop(place).padding[0])  # pyright: ignore[reportIndexIssue, reportArgumentType]

    def step(state: State) -> None:
        residual = state.residual if add else None
        state.x, state.inner = kernel(state.x, residual=residual, slope=slope, pad=pad)

    return step


def _convolve(layer: nn.Conv2d | nn.ConvTranspose2d, gemm: Products | None) -> Step:
    """A convolution without its bias: it has none, or the norm after it would cancel it."""
    native = None if gemm is None else _native(layer, gemm)
    if native is not None:
        return apply(native)
    if is_thin(layer):
        return apply(lambda x: thin_convolution(x, layer.weight, None, _half(gemm)))
    if isinstance(layer, nn.ConvTranspose2d):
        geometry: list[Any] = [layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation]
        return apply(lambda x: F.conv_transpose2d(x, layer.weight, None, *geometry))
    if _sees_every_second(layer):
        closer = [1, [side // 2 for side in layer.padding], 1, layer.groups]  # pyright: ignore[reportOperatorIssue]
        return apply(lambda x: F.conv2d(x[:, :, ::2, ::2], layer.weight, None, *closer))
    return apply(lambda x: layer._conv_forward(x, layer.weight, None))


def _sees_every_second(layer: nn.Conv2d) -> bool:
    """Whether every second pixel is all that `layer` reads: a plain convolution of those is faster."""
    even = not isinstance(layer.padding, str) and all(side % 2 == 0 for side in layer.padding)
    return even and layer.stride == layer.dilation == (2, 2)


def _native(layer: nn.Module, gemm: Products) -> Callable[[Tensor], Tensor] | None:
    if (fast := _winograd(layer, gemm)) is not None:
        return fast
    return ConvWeightGrad(layer, gemm) if fits_conv_weight_grad(layer, gemm.block) else None


def _winograd(layer: nn.Module, gemm: Products, *, biased: bool = False) -> WinogradConvolution | None:
    if (
        fits_winograd(layer)
        and layer.padding_mode == "zeros"
        and gemm.convolves(layer.kernel_size[0], layer.dilation[0])
    ):
        return WinogradConvolution(layer, gemm, biased=biased)
    return None


def training_gain(layer: nn.Conv2d, gemm: Products) -> float:
    """How many times faster `layer` is with `gemm` than with the library, in its precision, forward and backward.

    Measured on one thread; see `gain`. 0 if `gemm` cannot compute it.
    """
    fast = _native(layer.to(memory_format=torch.channels_last), gemm)  # pyright: ignore[reportCallIssue]
    if fast is None:
        return 0.0
    x = torch.ones(1, layer.in_channels, 34, 34, dtype=gemm.dtype).to(memory_format=torch.channels_last)
    x.requires_grad_()
    geometry: list[Any] = [layer.stride, layer.padding, layer.dilation]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured = gain(
        lambda: F.conv2d(x, layer.weight.to(gemm.dtype), None, *geometry).sum().backward(),
        lambda: fast(x).sum().backward(),
    )
    torch.set_num_threads(threads)
    return measured


def _thin(layer: nn.Conv2d, gemm: Bf16Gemm | None) -> Step:
    return apply(lambda x: thin_convolution(x, layer.weight, layer.bias, gemm))
