"""Recomputed activations: the same training, bit for bit, with fewer bytes saved for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from velogan.config import Config
from velogan.kernels.norms import NormKernels
from velogan.training.forward import load_gemm

from ..steps import build, random_batch

NATIVE = {"kernels": "native", "precision": "fp32"}
PLAIN = {"kernels": "plain", "precision": "bf16"}
CASES: dict[str, dict[str, Any]] = {
    "native": {"engine": NATIVE},
    "winograd": {"engine": {"kernels": "winograd", "precision": "bf16"}, "generator": {"channels": 16}},
    "plain, dropout": {"engine": PLAIN, "generator": {"dropout": True}},
    "native, dropout": {"engine": NATIVE, "generator": {"dropout": True}},
    "plain blocks": {"engine": NATIVE, "generator": {"decoder": "resize", "padding": "reflect"}},
    "reference": {"engine": {"kernels": "plain", "precision": "fp32"}},
    "unet, plain": {"engine": PLAIN, "generator": {"network": "unet_128"}, "data": {"crop_size": 128}},
    "mask": {"engine": NATIVE, "generator": {"output": "mask"}},
    "unet": {"engine": NATIVE, "generator": {"network": "unet_128", "dropout": True}, "data": {"crop_size": 128}},
    "one pair": {
        "engine": NATIVE,
        "generator": {"norm": "none", "output": "change"},
        "method": {"kind": "onepair"},
    },
}


class _Saved:
    """Counts the bytes that autograd saves for a backward pass, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}
        self.alive: list[Tensor] = []  # so that no storage takes the place of another

    def __call__(self, tensor: Tensor) -> Tensor:
        self.alive.append(tensor.detach())
        self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor


def _train(config: Config) -> tuple[list[Tensor], int]:
    """Return the weights after two steps, and the bytes saved in them."""
    (step, objective, nets), random, saved = build(config), torch.Generator().manual_seed(1), _Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
        for number in range(2):
            batch = random_batch(random, objective, side=config.data.crop_size)
            torch.manual_seed(number)
            step({"train": batch}, number=number)
    weights = [value.detach().clone() for net in nets.values() for value in net.state_dict().values()]
    return weights, sum(saved.storages.values())


@pytest.mark.parametrize("case", CASES)
def test_recomputed_activations_train_the_same(case: str, tiny_config: Callable[..., Config], kernels: NormKernels):
    if case == "winograd" and load_gemm("bf16") is None:
        pytest.skip("this CPU has no bfloat16 in its AVX-512")
    config = tiny_config(**CASES[case])
    if "unet" not in case:
        config = config.change(engine={"threads": 1}, generator={"blocks": 3})
    (plain, plain_bytes), (recomputed, bytes_) = (
        _train(config.change(engine={"checkpoint_activations": value})) for value in ("off", "on")
    )
    assert all(torch.equal(*pair) for pair in zip(plain, recomputed, strict=True))
    assert bytes_ < 0.85 * plain_bytes
