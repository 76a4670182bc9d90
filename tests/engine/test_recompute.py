"""Activations that are computed twice: the same training, bit for bit, with less kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from velogan.config import Config
from velogan.kernels.norms import NormKernels
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.forward import load_gemm

NATIVE = {"kernels": "native", "precision": "fp32"}
PLAIN = {"kernels": "plain", "precision": "bf16"}
CASES: dict[str, dict[str, Any]] = {
    "native": {"engine": NATIVE},
    "native, dropout": {"engine": NATIVE, "generator": {"dropout": True}},
    "winograd": {"engine": {"kernels": "winograd", "precision": "bf16"}, "generator": {"channels": 16}},
    "plain, dropout": {"engine": PLAIN, "generator": {"dropout": True}},
    "plain blocks": {"engine": NATIVE, "generator": {"decoder": "resize", "padding": "reflect"}},
    "reference": {"engine": {"kernels": "plain", "precision": "fp32"}},
    "mask": {"engine": NATIVE, "generator": {"output": "mask"}},
    "unet": {"engine": NATIVE, "generator": {"network": "unet_128", "dropout": True}, "data": {"crop_size": 128}},
    "unet, plain": {"engine": PLAIN, "generator": {"network": "unet_128"}, "data": {"crop_size": 128}},
    "one pair": {
        "engine": NATIVE,
        "generator": {"norm": "none", "output": "change"},
        "method": {"kind": "onepair"},
    },
}


class _Kept:
    """Counts the bytes that autograd keeps for a backward pass, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}
        self.alive: list[Tensor] = []  # so that no storage takes the place of another

    def __call__(self, tensor: Tensor) -> Tensor:
        self.alive.append(tensor.detach())
        self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor


def _trained(config: Config) -> tuple[list[Tensor], int]:
    """The weights after two steps, and the bytes kept in them."""
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    side = config.data.crop_size
    step, objective, nets = build_step(config, shape=(side, side))
    random, kept = torch.Generator().manual_seed(1), _Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        for number in range(2):
            batch = {letter: torch.rand(1, 3, side, side, generator=random) * 2 - 1 for letter in "AB"}
            batch["uniform"] = torch.rand(objective.num_uniforms["train"], 1, generator=random)
            torch.manual_seed(number)
            step({"train": batch}, number=number)
    return [value.detach().clone() for net in nets.values() for value in net.state_dict().values()], sum(
        kept.storages.values()
    )


@pytest.mark.parametrize("case", CASES)
def test_recomputed_activations_train_the_same(case: str, tiny_config: Callable[..., Config], kernels: NormKernels):
    if case == "winograd" and load_gemm("bf16") is None:
        pytest.skip("this CPU has no bfloat16 in its AVX-512")
    sections = CASES[case]
    config = tiny_config(**sections).change(engine={"threads": 1}, generator={"blocks": 3})
    if "unet" in case:
        config = tiny_config(**sections)
    (plain, before), (lean, after) = (
        _trained(config.change(engine={"checkpoint_activations": how})) for how in ("off", "on")
    )
    assert all(torch.equal(one, other) for one, other in zip(plain, lean, strict=True))
    assert after < 0.85 * before
