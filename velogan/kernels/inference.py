"""Speed up a generator for translation, by a copy of it that computes no gradients.

The copy combines three methods: bfloat16, if that is faster, except in the last convolution, whose rounding would be
visible; norm, activation, residual add and padding in one native pass (`fused.py`); Winograd's algorithm for
convolutions that it makes faster (`winograd.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from velogan.kernels.bf16_gemm import Bf16Gemm, load_bf16_gemm
from velogan.kernels.few_channel import few_channel_conv2d, is_few_channel_conv
from velogan.kernels.fused import Fused
from velogan.kernels.native import load_kernels
from velogan.kernels.precision import measure_speedup, precision_for
from velogan.kernels.winograd import WinogradInferenceConv, fits_winograd
from velogan.types import forward_kind_of


class Accelerator:
    """Speeds up networks on one device. Whether bfloat16 and Winograd are faster there is measured once, at first use.

    `cache` is the folder for the native kernels.
    """

    def __init__(self, device: torch.device, cache: Path):
        self._device, self._cache = device, cache
        self._precision = ""
        self._winograd: dict[tuple[object, ...], bool] = {}

    def __call__(self, net: nn.Module, *, rounded: bool) -> nn.Module:
        """Return a faster copy of `net`, which must be in eval mode; input and output are `(B, C, H, W)` float32.

        `rounded`: whether the output will be rounded to 8 bits; then bfloat16 may be used, if every module of `net`
        declares its `forward_kind`.
        """
        layout = torch.contiguous_format if self._device.type == "mps" else torch.channels_last
        fast = nn.Sequential(copy.deepcopy(net)).to(self._device).to(memory_format=layout).requires_grad_(False)  # pyright: ignore[reportCallIssue]
        is_declared = _is_declared(fast)  # else a module may reorder its layers or read their weights
        in_bf16 = is_declared and self.dtype(rounded=rounded) == torch.bfloat16
        last = next(reversed(_convolutions(fast)), None) if is_declared else None
        if in_bf16:
            for layer in _convolutions(fast):
                if layer is not last:
                    layer.bfloat16()
        if last is not None:
            _replace(fast, lambda layer: _Float32Convolution(last) if layer is last else None)
        if self._device.type == "cpu":
            fast = self._use_native_kernels(fast, in_bf16=in_bf16)
        return _CastInput(fast, torch.bfloat16 if in_bf16 else torch.float32, layout)

    def dtype(self, *, rounded: bool) -> torch.dtype:
        """Return the dtype of convolutions: bfloat16 if the output will be rounded and bfloat16 is faster here."""
        if rounded and not self._precision:
            with torch.inference_mode(False), torch.enable_grad():
                self._precision = precision_for(self._device)[0]
        return torch.bfloat16 if rounded and self._precision == "bf16" else torch.float32

    def _use_native_kernels(self, net: nn.Sequential, *, in_bf16: bool) -> nn.Module:
        gemm = load_bf16_gemm(self._cache) if in_bf16 else None
        if gemm is not None:
            _replace(net, lambda layer: self._winograd_if_faster(layer, gemm))
        kernels = load_kernels(self._cache)
        return net if kernels is None else Fused(net, kernels)

    def _winograd_if_faster(self, layer: nn.Module, gemm: Bf16Gemm) -> nn.Module | None:
        if not fits_winograd(layer):
            return None
        winograd = WinogradInferenceConv(layer, gemm)
        shape = (*layer.weight.shape, layer.dilation)
        if shape not in self._winograd:
            self._winograd[shape] = _winograd_speedup(layer, winograd) > 1.1
        return winograd if self._winograd[shape] else None


def _winograd_speedup(layer: nn.Conv2d, winograd: nn.Module) -> float:
    x = torch.ones(1, layer.in_channels, 66, 66, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        return measure_speedup(lambda: layer(x), lambda: winograd(x))


class _Float32Convolution(nn.Module):
    """Computes the last convolution in float32, since the rounding of bfloat16 would be visible in the image."""

    def __init__(self, conv: nn.Conv2d | nn.ConvTranspose2d):
        super().__init__()
        self.conv = conv.float()

    def forward(self, x: Tensor) -> Tensor:
        if is_few_channel_conv(self.conv) and self.conv.out_channels < self.conv.in_channels:
            return few_channel_conv2d(x.float(), self.conv.weight, self.conv.bias)
        return self.conv(x.float())


class _CastInput(nn.Module):
    def __init__(self, net: nn.Module, dtype: torch.dtype, layout: torch.memory_format):
        super().__init__()
        self.net, self._dtype = net, dtype
        self._layout = layout

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.to(self._dtype, memory_format=self._layout)).float()


def _is_declared(net: nn.Module) -> bool:
    return forward_kind_of(net) is not None and all(map(_is_declared, net.children()))


def _convolutions(net: nn.Module) -> list[nn.Conv2d | nn.ConvTranspose2d]:
    return [layer for layer in net.modules() if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d))]


def _replace(net: nn.Module, build_replacement: Callable[[nn.Module], nn.Module | None]) -> None:
    for name, child in list(net.named_children()):
        replacement = build_replacement(child)
        if replacement is None:
            _replace(child, build_replacement)
        else:
            setattr(net, name, replacement)
