"""The engine's fast paths compute the reference's step, to rounding."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.kernels.bf16_gemm import load_bf16_gemm
from velogan.kernels.norms import NormKernels
from velogan.networks.generators import build_generator
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.forward import build_forward_nets

SIDE = 32
FAST = {"kernels": "native"}


def _three_steps(config: Config) -> tuple[list[dict[str, Tensor]], dict[str, nn.Module]]:
    """The losses of three steps and the networks after them."""
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    step, objective, nets = build_step(config, shape=(SIDE, SIDE))
    random, losses = torch.Generator().manual_seed(2), []
    for number in range(3):
        batch = {side: torch.rand(1, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
        batch["uniform"] = torch.rand(objective.draws["train"], 1, generator=random)
        losses.append(step({"train": batch}, number=number))
    return losses, nets


def _weights(nets: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The networks' kernels; a bias before instance norm has no effect, and no gradient but rounding."""
    return {
        f"{role}.{name}": value.detach()
        for role, net in nets.items()
        for name, value in net.named_parameters()
        if name.endswith("weight")
    }


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "resnet": {},
    "pixel": {"discriminator": {"network": "pixel"}},
    "hinge and edges": {"method": {"gan": "hinge", "edges": 3.0}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["native", "plain", "winograd"])
def test_fast_float32_equals_the_reference_to_rounding(
    case: str, how: str, tiny_config: Callable[..., Config], kernels: NormKernels
):
    sections = {"method": {}, **CASES[case]}
    sections["method"] = {"pool_size": 1, **sections["method"]}
    reference = tiny_config(engine={"mode": "reference", "threads": 1}, **sections)
    fast = tiny_config(engine={**FAST, "kernels": how, "precision": "fp32", "threads": 1}, **sections)
    expected_losses, expected = _three_steps(reference)
    losses, nets = _three_steps(fast)

    for seen, wanted in zip(losses, expected_losses):
        assert seen.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(seen[name], value, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    start = _weights(_initial(reference))
    wanted_weights, seen_weights = _weights(expected), _weights(nets)
    for name, wanted in wanted_weights.items():
        # Adam turns rounding into a whole step where a gradient is nearly 0, so the bound is on the mean
        moved = (wanted - start[name]).abs().mean()
        assert moved > 1e-4, name
        assert (seen_weights[name] - wanted).abs().mean() < 0.01 * moved, name


def _initial(config: Config) -> dict[str, nn.Module]:
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    return build_step(config, shape=(SIDE, SIDE))[2]


@pytest.mark.parametrize("how", ["native", "winograd"])
def test_bf16_losses_stay_within_two_percent_of_the_reference(
    how: str, tiny_config: Callable[..., Config], kernels: NormKernels
):
    wide = {"channels": 16} if how == "winograd" else {}
    if wide and load_bf16_gemm(Path(os.environ["VELOGAN_CACHE"]) / "kernels") is None:
        pytest.skip("this CPU has no bfloat16 in its AVX-512")
    expected, _ = _three_steps(tiny_config(generator=wide, engine={"mode": "reference", "threads": 1}))
    engine = {**FAST, "kernels": how, "precision": "bf16", "threads": 1}
    losses, nets = _three_steps(tiny_config(generator=wide, engine=engine))
    for seen, wanted in zip(losses, expected):
        for name, value in wanted.items():
            assert seen[name].dtype == torch.float32
            torch.testing.assert_close(seen[name], value, rtol=0.02, atol=0.01, msg=lambda text, n=name: f"{n}: {text}")
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
    for seen, wanted in zip(*results):
        torch.testing.assert_close(seen, wanted, rtol=1e-3, atol=1e-5)
