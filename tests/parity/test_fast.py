"""The engine's fast paths compute the reference's step, to rounding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from velogan.config import Config
from velogan.kernels.bf16_gemm import load_bf16_gemm
from velogan.kernels.norms import NormKernels
from velogan.networks.generators import build_generator
from velogan.training.forward import build_forward_nets

from ..steps import SIDE, build, kernels_of, take_steps

ONEPAIR: dict[str, Any] = {"kind": "onepair", "pool_size": 1}
BOTH = ONEPAIR | {"direction": "both"}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "resnet": {"method": {"pool_size": 1}},
    "pixel": {"discriminator": {"network": "pixel"}, "method": {"pool_size": 1}},
    "hinge and edges": {"method": {"gan": "hinge", "edges": 3.0, "pool_size": 1}},
    "one pair": {"method": BOTH},
    "one pair without norm": {
        "generator": {"norm": "none", "init": "kaiming", "decoder": "simple", "output": "change"},
        "method": BOTH | {"scale": 1.0},
    },
}
MODES = [
    (mode, case) for mode in ("native", "plain", "winograd") for case in CASES if mode == "native" or "one" not in case
]


@pytest.mark.parametrize(("mode", "case"), MODES)
def test_fast_float32_equals_the_reference_to_rounding(
    mode: str, case: str, tiny_config: Callable[..., Config], kernels: NormKernels
):
    onepair = case.startswith("one pair")
    loss_rtol, most, count = (1e-4, 0.02, 4) if onepair else (1e-5, 0.01, 3)
    reference = tiny_config(engine={"mode": "reference", "threads": 1}, **CASES[case])
    fast = tiny_config(engine={"kernels": mode, "precision": "fp32", "threads": 1}, **CASES[case])
    start = kernels_of(build(reference)[2])
    expected_losses, expected = take_steps(reference, count)
    losses, nets = take_steps(fast, count)
    for row, expected_row in zip(losses, expected_losses):
        torch.testing.assert_close(row, expected_row, rtol=loss_rtol, atol=1e-5)
    weights = kernels_of(nets)
    for name, value in kernels_of(expected).items():
        # Adam turns rounding into a full step where a gradient is nearly 0, so the bound is on the mean
        moved = (value - start[name]).abs().mean()
        assert moved > 1e-4, name
        assert (weights[name] - value).abs().mean() < most * moved, name


@pytest.mark.parametrize("mode", ["native", "winograd"])
def test_bf16_losses_stay_within_two_percent_of_the_reference(
    mode: str, tiny_config: Callable[..., Config], kernels: NormKernels
):
    wide = {"channels": 16} if mode == "winograd" else {}
    if wide and load_bf16_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels") is None:
        pytest.skip("this CPU has no bfloat16 in its AVX-512")
    expected, _ = take_steps(tiny_config(generator=wide, engine={"mode": "reference", "threads": 1}), 3)
    engine = {"kernels": mode, "precision": "bf16", "threads": 1}
    losses, nets = take_steps(tiny_config(generator=wide, engine=engine), 3)
    for row, expected_row in zip(losses, expected):
        torch.testing.assert_close(row, expected_row, rtol=0.02, atol=0.01)
    assert all(parameter.dtype == torch.float32 for net in nets.values() for parameter in net.parameters())


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_a_compiled_network_equals_the_plain_one(tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # else it starts processes to compile in
    config = tiny_config(engine={"kernels": "plain", "compile": "on", "precision": "fp32", "threads": 1})
    torch.manual_seed(0)
    net = build_generator(config.generator)
    compiled = build_forward_nets({"G_A": net}, config.engine)["G_A"]
    assert compiled is not net
    images = torch.rand(2, 3, SIDE, SIDE) * 2 - 1
    results = []
    for forward_net in (net, compiled):
        net.zero_grad()
        out = forward_net(images)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad for name, p in net.named_parameters() if name.endswith("weight"))])
    for result, expected_value in zip(*results):
        torch.testing.assert_close(result, expected_value, rtol=1e-3, atol=1e-5)
