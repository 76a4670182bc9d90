from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from velogan.metrics.inception import SIDE, Inception

PORTED_SHA256 = "d84f693f2abd7fea61cb31c87d3b2f268bf707c1bae1db219afdad3363959cb0"
"""Of the sorted names and shapes of the ported weights, without the counters that only some versions of the file have;
written by hand from Szegedy et al. 2016, table 1, and the names that pytorch-fid and torch-fidelity share."""


class _Unloaded(Inception):
    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        return None


def shapes() -> dict[str, torch.Size]:
    """Return the names and shapes of the network's weights."""
    state = _Unloaded({}).state_dict()
    return {name: value.shape for name, value in state.items() if not name.endswith("_tracked")}


def random_state(seed: int = 0) -> dict[str, Tensor]:
    """Return random weights that preserve the scale of activations."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes().items():
        if name.endswith(("running_var", "bn.weight")):
            state[name] = torch.ones(shape)
        elif len(shape) == 1:
            state[name] = torch.zeros(shape)
        else:
            fan = shape[1:].numel()
            state[name] = torch.randn(shape, generator=generator) * (2 / fan) ** 0.5
    return state


@pytest.fixture(scope="module")
def state() -> Mapping[str, Tensor]:
    return random_state()


def test_names_and_shapes_equal_those_of_the_ported_weights(state: Mapping[str, Tensor]) -> None:
    net = Inception(state)
    listing = "\n".join(f"{name} {tuple(shape)}" for name, shape in sorted(shapes().items()))
    assert hashlib.sha256(listing.encode()).hexdigest() == PORTED_SHA256
    # torchvision publishes 27,161,264 with 1000 classes and 3,326,696 of them in the auxiliary head; this has 1008
    assert sum(p.numel() for p in net.parameters()) == 27_161_264 - 3_326_696 + 8 * (2048 + 1)
    Inception({**state, "Mixed_7c.branch_pool.bn.num_batches_tracked": torch.tensor(1)})


def test_scales_inputs_as_clean_fid_does(state: Mapping[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[Tensor] = []

    def forward(_self: Inception, images: Tensor) -> Tensor:
        inputs.append(images)
        return images

    monkeypatch.setattr(Inception, "forward", forward)
    white = torch.ones(1, 1, 8, 8)
    net = Inception(state)
    net.extract_features(white)
    assert inputs[0].shape == (1, 3, SIDE, SIDE)
    assert [value.item() for value in inputs[0].aminmax()] == pytest.approx(
        [127 / 128] * 2
    )  # clean-fid: (x - 128) / 128


@torch.inference_mode()
def test_average_pools_exclude_padding_and_the_last_block_has_a_maximum_pool(state: Mapping[str, Tensor]) -> None:
    net = Inception(state)
    for name, inputs in (("Mixed_5b", 192), ("Mixed_6b", 768), ("Mixed_7b", 1280), ("Mixed_7c", 2048)):
        x = torch.rand(1, inputs, 5, 5, generator=torch.Generator().manual_seed(2))
        around = functional.pad(x, (1, 1, 1, 1), value=torch.nan).unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)
        pooled = around.nan_to_num(-torch.inf).amax(dim=-1) if name == "Mixed_7c" else around.nanmean(dim=-1)
        block = net.get_submodule(name)
        expected = block.get_submodule("branch_pool")(pooled)
        torch.testing.assert_close(block(x)[:, -expected.shape[1] :], expected, rtol=1e-4, atol=1e-5)


def test_rejects_other_weights(state: Mapping[str, Tensor]) -> None:
    incomplete = dict(state)
    del incomplete["Mixed_6c.branch7x7_2.conv.weight"]
    with pytest.raises(ValueError, match=r"not the weights of the FID Inception.*Mixed_6c\.branch7x7_2"):
        Inception(incomplete)
    with pytest.raises(ValueError, match="size mismatch"):
        Inception({**state, "fc.bias": torch.zeros(1000)})
