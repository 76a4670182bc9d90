from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from velogan.metrics.inception import SIDE, Inception

STEM = {  # Szegedy et al. 2016, table 1, with the channels of the released graph
    "Conv2d_1a_3x3": (32, 3, 3, 3),
    "Conv2d_2a_3x3": (32, 32, 3, 3),
    "Conv2d_2b_3x3": (64, 32, 3, 3),
    "Conv2d_3b_1x1": (80, 64, 1, 1),
    "Conv2d_4a_3x3": (192, 80, 3, 3),
}


def _a(inputs: int, pool: int) -> dict[str, tuple[int, ...]]:
    return {
        "branch1x1": (64, inputs, 1, 1),
        "branch5x5_1": (48, inputs, 1, 1),
        "branch5x5_2": (64, 48, 5, 5),
        "branch3x3dbl_1": (64, inputs, 1, 1),
        "branch3x3dbl_2": (96, 64, 3, 3),
        "branch3x3dbl_3": (96, 96, 3, 3),
        "branch_pool": (pool, inputs, 1, 1),
    }


def _c(width: int) -> dict[str, tuple[int, ...]]:
    return {
        "branch1x1": (192, 768, 1, 1),
        "branch7x7_1": (width, 768, 1, 1),
        "branch7x7_2": (width, width, 1, 7),
        "branch7x7_3": (192, width, 7, 1),
        "branch7x7dbl_1": (width, 768, 1, 1),
        "branch7x7dbl_2": (width, width, 7, 1),
        "branch7x7dbl_3": (width, width, 1, 7),
        "branch7x7dbl_4": (width, width, 7, 1),
        "branch7x7dbl_5": (192, width, 1, 7),
        "branch_pool": (192, 768, 1, 1),
    }


def _e(inputs: int) -> dict[str, tuple[int, ...]]:
    return {
        "branch1x1": (320, inputs, 1, 1),
        "branch3x3_1": (384, inputs, 1, 1),
        "branch3x3_2a": (384, 384, 1, 3),
        "branch3x3_2b": (384, 384, 3, 1),
        "branch3x3dbl_1": (448, inputs, 1, 1),
        "branch3x3dbl_2": (384, 448, 3, 3),
        "branch3x3dbl_3a": (384, 384, 1, 3),
        "branch3x3dbl_3b": (384, 384, 3, 1),
        "branch_pool": (192, inputs, 1, 1),
    }


BLOCKS = {
    "Mixed_5b": _a(192, 32),
    "Mixed_5c": _a(256, 64),
    "Mixed_5d": _a(288, 64),
    "Mixed_6a": {
        "branch3x3": (384, 288, 3, 3),
        "branch3x3dbl_1": (64, 288, 1, 1),
        "branch3x3dbl_2": (96, 64, 3, 3),
        "branch3x3dbl_3": (96, 96, 3, 3),
    },
    "Mixed_6b": _c(128),
    "Mixed_6c": _c(160),
    "Mixed_6d": _c(160),
    "Mixed_6e": _c(192),
    "Mixed_7a": {
        "branch3x3_1": (192, 768, 1, 1),
        "branch3x3_2": (320, 192, 3, 3),
        "branch7x7x3_1": (192, 768, 1, 1),
        "branch7x7x3_2": (192, 192, 1, 7),
        "branch7x7x3_3": (192, 192, 7, 1),
        "branch7x7x3_4": (192, 192, 3, 3),
    },
    "Mixed_7b": _e(1280),
    "Mixed_7c": _e(2048),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the ported weights, without the counters that only some versions of the file hold."""
    convolutions = STEM | {f"{block}.{name}": shape for block, made in BLOCKS.items() for name, shape in made.items()}
    found: dict[str, tuple[int, ...]] = {"fc.weight": (1008, 2048), "fc.bias": (1008,)}
    for name, shape in convolutions.items():
        found[f"{name}.conv.weight"] = shape
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"{name}.bn.{part}"] = shape[:1]
    return found


def random_state(seed: int = 0) -> dict[str, Tensor]:
    """Weights of the right names and shapes that keep the signal's size."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes().items():
        if name.endswith(("running_var", "bn.weight")):
            state[name] = torch.ones(shape)
        elif len(shape) == 1:
            state[name] = torch.zeros(shape)
        else:
            fan = torch.Size(shape[1:]).numel()
            state[name] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
    return state


@pytest.fixture(scope="module")
def state() -> Mapping[str, Tensor]:
    return random_state()


def test_names_and_counts_are_those_of_the_ported_weights(state: Mapping[str, Tensor]) -> None:
    net = Inception(state)
    expected = {name: torch.Size(shape) for name, shape in shapes().items()}
    found = {name: value.shape for name, value in net.state_dict().items() if not name.endswith("_tracked")}
    assert found == expected
    # torchvision publishes 27,161,264 with 1000 classes and 3,326,696 of them in the auxiliary head; this has 1008
    assert sum(p.numel() for p in net.parameters()) == 27_161_264 - 3_326_696 + 8 * (2048 + 1)
    Inception({**state, "Mixed_7c.branch_pool.bn.num_batches_tracked": torch.tensor(1)})


@torch.inference_mode()
def test_features_have_2048_dimensions_and_follow_the_picture(state: Mapping[str, Tensor]) -> None:
    net = Inception(state)
    images = torch.rand(2, 3, 40, 30, generator=torch.Generator().manual_seed(1)) * 2 - 1
    features = net.extract_features(images)
    assert features.shape == (2, 2048)
    assert features.isfinite().all()
    assert not torch.allclose(features[0], features[1], rtol=1e-2)


def test_numbers_are_scaled_as_the_reference_does(state: Mapping[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def forward(_self: Inception, images: Tensor) -> Tensor:
        seen.append(images)
        return images

    monkeypatch.setattr(Inception, "forward", forward)
    white = torch.ones(1, 1, 8, 8)
    net = Inception(state)
    net.extract_features(white)
    assert seen[0].shape == (1, 3, SIDE, SIDE)
    assert [one.item() for one in seen[0].aminmax()] == pytest.approx([127 / 128] * 2)  # clean-fid: (x - 128) / 128


@torch.inference_mode()
def test_pools_leave_padding_out_and_the_last_block_pools_by_maximum(state: Mapping[str, Tensor]) -> None:
    net = Inception(state)
    for name, inputs in (("Mixed_5b", 192), ("Mixed_6b", 768), ("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        x = torch.rand(1, inputs, 5, 5, generator=torch.Generator().manual_seed(2))
        around = functional.pad(x, (1, 1, 1, 1), value=torch.nan).unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
        pooled = around.nan_to_num(-torch.inf).amax(dim=-1) if name == "Mixed_7c" else around.nanmean(dim=-1)
        block = net.get_submodule(name)
        expected = block.get_submodule("branch_pool")(pooled)
        torch.testing.assert_close(block(x)[:, -expected.shape[1] :], expected, rtol=1e-4, atol=1e-5)


def test_refuses_other_weights(state: Mapping[str, Tensor]) -> None:
    less = dict(state)
    del less["Mixed_6c.branch7x7_2.conv.weight"]
    with pytest.raises(ValueError, match=r"not the weights of the FID Inception.*Mixed_6c\.branch7x7_2"):
        Inception(less)
    with pytest.raises(ValueError, match="size mismatch"):
        Inception({**state, "fc.bias": torch.zeros(1000)})
