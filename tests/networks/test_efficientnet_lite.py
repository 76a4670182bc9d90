from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from velogan.networks.efficientnet_lite import (
    EfficientNetLite,
    Variant,
    _blocks,
    fold_batch_norms,
)


def published(variant: Variant) -> dict[str, Tensor]:
    """Random weights with the names and shapes of the published file."""
    torch.manual_seed(0)
    state: dict[str, Tensor] = {}

    def add(conv: str, norm: str, shape: tuple[int, ...]) -> None:
        fan = shape[1] * shape[2] * shape[3]
        state[f"{conv}.weight"] = torch.randn(shape) * (2 / fan) ** 0.5
        state[f"{norm}.weight"], state[f"{norm}.bias"] = torch.rand(shape[0]) + 0.5, torch.randn(shape[0]) * 0.1
        state[f"{norm}.running_mean"] = torch.randn(shape[0]) * 0.1
        state[f"{norm}.running_var"] = torch.rand(shape[0]) + 0.5
        state[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    add("_conv_stem", "_bn0", (32, 3, 3, 3))
    for number, block in enumerate(_blocks(variant)):
        for name, norm in (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2")):
            if isinstance(conv := getattr(block, name), nn.Conv2d):
                add(f"_blocks.{number}._{name}_conv", f"_blocks.{number}.{norm}", tuple(conv.weight.shape))
    add("_conv_head", "_bn1", (1280, EfficientNetLite(None, variant=variant).widths[-1], 1, 1))
    return state | {"_fc.weight": torch.randn(1000, 1280) * 0.03, "_fc.bias": torch.zeros(1000)}


@pytest.mark.parametrize(
    ("variant", "count", "blocks"), [("lite0", 4_652_008, 16), ("lite1", 5_416_680, 21), ("lite2", 6_092_072, 21)]
)
def test_published_sizes_strides_and_widths(variant: Variant, count: int, blocks: int) -> None:
    state = published(variant)
    trained = (".running_mean", ".running_var", ".num_batches_tracked")
    assert sum(value.numel() for name, value in state.items() if not name.endswith(trained)) == count
    net = EfficientNetLite(fold_batch_norms(state), variant=variant)
    assert (len(net.blocks), net.last_blocks[-1]) == (blocks, blocks - 1)
    images = (torch.rand(2, 3, 72, 50) * 2 - 1).requires_grad_()
    maps = net.features(images)
    assert [tuple(features.shape) for features in maps] == [
        (2, width, -(-72 // stride), -(-50 // stride)) for width, stride in zip(net.widths, (4, 8, 16, 32))
    ]
    maps[0].sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    means, logits = net(images)
    assert (means.shape, logits.shape) == ((2, 1280), (2, 1000))
    assert not any(weight.requires_grad for weight in net.parameters())


def _apply_published(state: dict[str, Tensor], images: Tensor) -> Iterator[Tensor]:
    """The stem and the first two blocks by the published weights, norm by norm."""

    def layer(x: Tensor, conv: str, norm: str, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
        out = functional.conv2d(x, state[f"{conv}.weight"], stride=stride, padding=padding, groups=groups)
        kinds = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (state[f"{norm}.{kind}"] for kind in kinds)
        return functional.batch_norm(out, mean, variance, weight, bias, eps=1e-3)

    x = functional.pad(((images + 1) * 127.5 - 127) / 128, (0, 1, 0, 1))
    x = layer(x, "_conv_stem", "_bn0", stride=2).clamp(0, 6)
    x = layer(x, "_blocks.0._depthwise_conv", "_blocks.0._bn1", padding=1, groups=32).clamp(0, 6)
    yield (x := layer(x, "_blocks.0._project_conv", "_blocks.0._bn2"))
    x = layer(x, "_blocks.1._expand_conv", "_blocks.1._bn0").clamp(0, 6)
    x = functional.pad(x, (0, 1, 0, 1))
    x = layer(x, "_blocks.1._depthwise_conv", "_blocks.1._bn1", stride=2, groups=96).clamp(0, 6)
    yield layer(x, "_blocks.1._project_conv", "_blocks.1._bn2")


def test_folded_weights_equal_the_published_ones() -> None:
    state = published("lite0")
    net = EfficientNetLite(fold_batch_norms(state), variant="lite0")
    outputs: list[Tensor] = []
    for block in list(net.blocks)[:2]:
        block.register_forward_hook(lambda *call: outputs.append(call[-1]))
    images = torch.rand(1, 3, 32, 32) * 2 - 1
    net.features(images)
    for output, expected in zip(outputs, _apply_published(state, images)):
        assert torch.allclose(output, expected, atol=1e-5)


def test_rejects_other_weights() -> None:
    state = published("lite0")
    with pytest.raises(ValueError, match=r"not the weights of EfficientNet-Lite1"):
        EfficientNetLite(fold_batch_norms(state), variant="lite1")
    del state["_blocks.3._bn1.bias"]
    with pytest.raises(ValueError, match=r"'_blocks\.3\._bn1\.bias' is missing"):
        fold_batch_norms(state)
