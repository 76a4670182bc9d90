"""Norms, initialisation and dilated convolutions of generators and discriminators."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from velogan.types import ForwardKind

NormName = Literal["instance", "instance_affine", "batch", "sync_batch", "none"]
InitName = Literal["normal", "xavier", "kaiming", "orthogonal"]

INIT_GAIN = 0.02
"""Standard deviation of normal weights, and gain of xavier and orthogonal, in the reference implementation."""


class InstanceNorm2d(nn.InstanceNorm2d):
    """torch's layer with correct gradients on CPUs, where torch misreads channels-last gradients of batches of one."""

    forward_kind: ClassVar[ForwardKind] = "layer"

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if out.requires_grad and out.device.type == "cpu" and not torch.compiler.is_compiling():
            out.register_hook(Tensor.contiguous)
        return out


class SyncBatchNorm(nn.SyncBatchNorm):
    """torch's layer that also works on the meta device, where it only computes shapes."""

    forward_kind: ClassVar[ForwardKind] = "layer"

    def forward(self, input: Tensor) -> Tensor:
        if input.is_meta:
            return nn.functional.batch_norm(input, None, None, training=True)
        return super().forward(input)


class Stage(nn.Module):
    """Consecutive layers, called `model` as in the reference implementation."""

    forward_kind: ClassVar[ForwardKind] = "sequence"

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def norm_layer(name: NormName) -> Callable[[int], nn.Module]:
    """Return the constructor of a norm, which takes the number of channels.

    `instance` is per sample, without affine weights or running statistics, as CycleGAN uses it; `instance_affine` has
    affine weights and the epsilon of the Keras CycleGAN example (tensorflow_addons' InstanceNormalization); `batch` and
    `sync_batch` have affine weights and running statistics (`sync_batch`: over all GPUs); `none` is the identity.
    """
    match name:
        case "instance":
            return lambda channels: InstanceNorm2d(channels, affine=False, track_running_stats=False)
        case "instance_affine":
            return lambda channels: InstanceNorm2d(channels, eps=1e-3, affine=True, track_running_stats=False)
        case "batch":
            return nn.BatchNorm2d
        case "sync_batch":
            return SyncBatchNorm
        case "none":
            return lambda channels: nn.Identity()


def initialise(net: nn.Module, *, init: InitName = "normal", gain: float = INIT_GAIN) -> nn.Module:
    """Initialise every convolution and linear weight by `init` (bias 0) and every batch-norm weight by N(1, gain).

    Weights of instance norms are drawn from N(0, gain), as in the Keras CycleGAN example. `normal` is N(0, gain);
    `xavier` is Xavier normal with `gain`; `kaiming` is He normal for fan-in; `orthogonal` has gain `gain`. Draws from
    the default random generator in module order. Returns `net`.
    """
    fill = {
        "normal": lambda weight: nn.init.normal_(weight, 0.0, gain),
        "xavier": lambda weight: nn.init.xavier_normal_(weight, gain=gain),
        "kaiming": lambda weight: nn.init.kaiming_normal_(weight, a=0, mode="fan_in"),
        "orthogonal": lambda weight: nn.init.orthogonal_(weight, gain=gain),
    }[init]
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            fill(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            nn.init.normal_(module.weight, 1.0, gain)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.InstanceNorm2d) and module.affine:
            nn.init.normal_(module.weight, 0.0, gain)
            nn.init.zeros_(module.bias)
    return net


def spectrally_normalise(net: nn.Module) -> nn.Module:
    """Divide the weights of every convolution by their largest singular value (Miyato et al. 2018, eq. 8).

    In training each call of a convolution improves the estimate of that value by one power iteration, whose vectors are
    buffers. Call this function after `initialise`, since it makes the first estimate. Returns `net`.

    Skips weights on the meta device, which have only shapes: torch would iterate in slow Python.
    """
    for layer in [module for module in net.modules() if isinstance(module, nn.Conv2d)]:
        if not layer.weight.is_meta:
            spectral_norm(layer)
    return net


class DilatedConv2d(nn.Conv2d):
    """`nn.Conv2d` with correct gradients on CPUs; see `contiguous_for_dilated_grad`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(*contiguous_for_dilated_grad(input, weight), bias)


def contiguous_for_dilated_grad(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors in a memory layout in which the gradient of their dilated convolution is correct.

    On CPUs torch's gradient of the weights (2.13, bfloat16, channels-last) reads beyond its memory if the number of
    input channels is not a multiple of 16: NaN, or a crash (benchmarks/LOG.md).
    """
    if x.device.type != "cpu" or weight.shape[1] % 16 == 0:
        return x, weight
    return x.contiguous(), weight.contiguous()
