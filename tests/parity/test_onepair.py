"""The one-pair method: plain = textbook = fast; captured in test_stabilisers.py, resumed in test_resume.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.config import Config
from velogan.kernels.norms import NormKernels
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine

SIDE, STEPS = 32, 4
METHOD: dict[str, Any] = {"generator": {"channels": 4, "blocks": 1}}
KIND = {"kind": "onepair"}
PLUS = {"kind": "onepair", "direction": "both", "pool_size": 1}
CASES: dict[str, dict[str, Any]] = {
    "both directions": {"method": PLUS},
    "no norm": {
        "generator": {**METHOD["generator"], "norm": "none", "init": "kaiming", "decoder": "simple", "output": "change"}
    }
    | {"method": {**PLUS, "scale": 1.0}},
}
SLOW, FAST = {"mode": "reference", "threads": 1}, {"precision": "fp32", "kernels": "native", "threads": 1}


def _built(config: Config) -> tuple[Any, Any, dict[str, nn.Module]]:
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    return build_step(config, shape=(SIDE, SIDE))


def _batches(draws: int) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(STEPS):
        batch = {side: torch.rand(1, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"}
        batches.append(batch | {"uniform": torch.rand(draws, 1, generator=random)})
    return batches


def _weights(nets: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The kernels; a bias before instance norm has no effect, and no gradient but rounding."""
    named = ((f"{role}.{name}", value) for role, net in nets.items() for name, value in net.named_parameters())
    return {name: value.detach().clone() for name, value in named if name.endswith("weight")}


def _textbook(nets: dict[str, Any], batches: list[dict[str, Tensor]]) -> None:
    """The method as its text says it, with weights 10 and 1 of the deviations and a pool of one encoding."""
    encode, decode, translate, discriminate = (nets[role] for role in ("E", "R", "T_A", "D_A"))

    def adam(*parts: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(itertools.chain(*(part.parameters() for part in parts)), lr=2e-4, betas=(0.5, 0.999))

    adams, kept = (adam(encode, decode), adam(translate), adam(discriminate)), None
    for batch in batches:
        a, b = encode(batch["A"]), encode(batch["B"])
        adams[0].zero_grad()
        ((F.l1_loss(decode(a), batch["A"]) + F.l1_loss(decode(b), batch["B"])) * 10.0).backward()
        adams[0].step()

        a, b = a.detach(), b.detach()
        fake, same = translate(a), translate(b)
        verdict = discriminate(fake)
        loss = 10.0 * F.l1_loss(same, b) + 1.0 * F.l1_loss(fake, a) + (verdict - 1).square().mean()
        adams[1].zero_grad()
        loss.backward()
        adams[1].step()

        shown = fake.detach()
        coin = float(batch["uniform"][0])
        if kept is None:
            kept = shown
        elif coin > 0.5:
            shown, kept = kept, shown
        adams[2].zero_grad()
        (0.5 * ((discriminate(b) - 1).square().mean() + discriminate(shown).square().mean())).backward()
        adams[2].step()


def test_the_reference_mode_is_the_textbook_bit_for_bit(tiny_config: Callable[..., Config]):
    config = tiny_config(**METHOD, engine=SLOW, method={**KIND, "pool_size": 1})
    step, objective, nets = _built(config)
    _, _, expected = _built(config)
    batches = _batches(objective.draws["train"])
    for number, batch in enumerate(batches):
        step({"train": batch}, number=number)
    _textbook(expected, batches)
    for name, value in _weights(expected).items():
        assert torch.equal(_weights(nets)[name], value), name


@pytest.mark.parametrize("case", CASES)
def test_fast_float32_equals_the_reference_to_rounding(
    case: str, tiny_config: Callable[..., Config], kernels: NormKernels
):
    results = []
    for engine in (SLOW, FAST):
        config = tiny_config(**{**METHOD, "method": {**KIND, "pool_size": 1}, **CASES[case]}, engine=engine)
        step, objective, nets = _built(config)
        start, losses = _weights(nets), []
        for number, batch in enumerate(_batches(objective.draws["train"])):
            losses.append(step({"train": batch}, number=number))
        results.append((losses, _weights(nets), start))
    (wanted_losses, wanted, start), (seen_losses, seen, _) = results
    for mine, theirs in zip(seen_losses, wanted_losses):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    for name, value in wanted.items():
        # Adam turns rounding into a whole step where a gradient is nearly 0, so the bound is on the mean
        moved = (value - start[name]).abs().mean()
        assert moved > 1e-4, name
        assert (seen[name] - value).abs().mean() < 0.02 * moved, name
