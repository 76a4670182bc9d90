"""EfficientNet-Lite as a feature network: feature maps at four strides, and logits of ImageNet classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from velogan.types import ForwardKind

Variant = Literal["lite0", "lite1", "lite2"]

TRAINING_SIDE: dict[Variant, int] = {"lite0": 224, "lite1": 240, "lite2": 260}
"""Sides in pixels of the images that the published weights were trained on."""

FEATURES = 1280
CLASSES = 1000

_STAGES = ((3, 1, 1), (3, 2, 6), (5, 2, 6), (3, 2, 6), (5, 1, 6), (5, 2, 6), (3, 1, 6))
"""Kernel, stride and expansion of each stage."""
_BLOCKS: dict[Variant, tuple[int, ...]] = {
    "lite0": (1, 2, 2, 3, 3, 4, 1),
    "lite1": (1, 3, 3, 4, 4, 5, 1),
    "lite2": (1, 3, 3, 4, 4, 5, 1),
}
_CHANNELS: dict[Variant, tuple[int, ...]] = {
    "lite0": (16, 24, 40, 80, 112, 192, 320),
    "lite1": (16, 24, 40, 80, 112, 192, 320),
    "lite2": (16, 24, 48, 88, 120, 208, 352),
}
_MAPS = (1, 2, 4, 6)
"""Stages whose last blocks output the maps of `features`, at strides 4, 8, 16 and 32."""
_NORM_EPSILON = 1e-3  # of the published batch norms


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite0, Lite1 or Lite2 with its head of 1000 ImageNet classes, frozen, in eval mode.

    Tan and Le 2019, table 1, without squeeze-and-excitation, with ReLU6, and with stem and head of fixed width, as
    TensorFlow released it as "lite". Batch norms are folded into the convolutions; padding is TensorFlow's "same".
    `state`: weights by name, as `fold_batch_norms` returns them; None: the network stays on the meta device.
    Raises ValueError if names or shapes differ.
    """

    def __init__(self, state: Mapping[str, Tensor] | None, *, variant: Variant) -> None:
        super().__init__()
        self.last_blocks = tuple(sum(_BLOCKS[variant][: stage + 1]) - 1 for stage in _MAPS)
        self.widths = tuple(_CHANNELS[variant][stage] for stage in _MAPS)
        with torch.device("meta"):  # no random initial values: they would be replaced
            self.stem = _Conv(3, 32, 3, stride=2)
            self.blocks = nn.ModuleList(_blocks(variant))
            self.head = _Conv(self.widths[-1], FEATURES, 1)
            self.classifier = nn.Linear(FEATURES, CLASSES)
        try:
            if state is not None:
                self.load_state_dict(dict(state), assign=True)
        except (RuntimeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:500]
            raise ValueError(f"these are not the weights of EfficientNet-{variant.capitalize()}: {reason}") from None
        self.requires_grad_(False).eval()

    def features(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of images `(B, 3, H, W)` in [-1, 1], without resizing; gradients reach the images.

        The maps are `(B, widths[i], H / s, W / s)` for s = 4, 8, 16, 32, rounded up.
        """
        x = functional.relu6(self.stem((images * 127.5 + 0.5) / 128), inplace=True)  # (level - 127) / 128
        maps: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in self.last_blocks:
                maps.append(x)
        return maps

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean features `(B, 1280)` and class logits `(B, 1000)` of images `(B, 3, H, W)` in [-1, 1]."""
        means = functional.relu6(self.head(self.features(images)[-1])).mean(dim=(2, 3))
        return means, self.classifier(means)


class FeatureExtractor(nn.Module):
    """Maps images to the feature maps of `net`: `forward` is `net.features`."""

    forward_kind: ClassVar[ForwardKind] = "maps"

    scale, shift = 127.5 / 128, 0.5 / 128
    """Factor and offset applied to images before the first convolution."""

    def __init__(self, net: EfficientNetLite) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> list[Tensor]:
        return self.net.features(images)


def fold_batch_norms(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert published weights, by name, into weights for `EfficientNetLite`: fold batch norms into convolutions.

    Raises ValueError if a weight is missing.
    """
    blocks = 1 + max((int(name.split(".")[1]) for name in published if name.startswith("_blocks.")), default=-1)
    try:
        state = _fold_batch_norm(published, "_conv_stem", "_bn0", "stem") | _fold_batch_norm(
            published, "_conv_head", "_bn1", "head"
        )
        for number in range(blocks):
            source, block = f"_blocks.{number}.", f"blocks.{number}."
            if number:  # the first block does not expand
                state |= _fold_batch_norm(published, f"{source}_expand_conv", f"{source}_bn0", f"{block}expand")
            state |= _fold_batch_norm(published, f"{source}_depthwise_conv", f"{source}_bn1", f"{block}depthwise")
            state |= _fold_batch_norm(published, f"{source}_project_conv", f"{source}_bn2", f"{block}project")
        return state | {f"classifier.{kind}": published[f"_fc.{kind}"] for kind in ("weight", "bias")}
    except KeyError as error:
        raise ValueError(f"these are not the weights of an EfficientNet-Lite: {error} is missing") from None


def _fold_batch_norm(published: Mapping[str, Tensor], conv: str, norm: str, name: str) -> dict[str, Tensor]:
    weight, bias, mean, variance = (
        published[f"{norm}.{kind}"].double() for kind in ("weight", "bias", "running_mean", "running_var")
    )
    scale = weight / (variance + _NORM_EPSILON).sqrt()
    kernel = published[f"{conv}.weight"].double() * scale[:, None, None, None]
    return {f"{name}.weight": kernel.float(), f"{name}.bias": (bias - mean * scale).float()}


def _blocks(variant: Variant) -> Iterator[nn.Module]:
    c_in = 32
    for (kernel, stride, expansion), count, c_out in zip(_STAGES, _BLOCKS[variant], _CHANNELS[variant]):
        for number in range(count):
            yield _Block(c_in, c_out, kernel, stride=1 if number else stride, expansion=expansion)
            c_in = c_out


class _Block(nn.Module):
    """An inverted residual block (Sandler et al. 2018): expand, depthwise convolution, project."""

    def __init__(self, c_in: int, c_out: int, kernel: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        width = c_in * expansion
        self.expand = _Conv(c_in, width, 1) if expansion > 1 else None
        self.depthwise = _Conv(width, width, kernel, stride=stride, groups=width)
        self.project = _Conv(width, c_out, 1)
        self.skips = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        out = x if self.expand is None else functional.relu6(self.expand(x), inplace=True)
        out = self.project(functional.relu6(self.depthwise(out), inplace=True))
        return x + out if self.skips else out


class _Conv(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding, to sides of ceil(side / stride); an odd pixel goes to the end."""

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in input.shape[2:])
        if rows % 2 == columns % 2 == 0:  # conv2d itself pads both sides equally, without a copy
            padding = (rows // 2, columns // 2)
            return functional.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        padded = functional.pad(input, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return super().forward(padded)
