from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from velogan.engine.step import Step, StepOptions
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.types import Batch, Nets


def _value(net: nn.Module) -> Tensor:
    return next(net.parameters()).sum()


def _loss(role: str) -> Callable[[Nets, Batch, PhaseCache], LossOutput]:
    """Return a loss function: the weight of a network times the sum of A."""

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        total = _value(nets[role]) * batch["A"].sum()
        return LossOutput(loss=total, logged={"part": total * 2})

    return loss


def _step(phases: list[Phase], **options: Any) -> tuple[Step, dict[str, nn.Module]]:
    nets: dict[str, nn.Module] = {"G": nn.Linear(1, 1, bias=False), "D": nn.Linear(1, 1, bias=False)}
    for net in nets.values():
        nn.init.ones_(next(net.parameters()))
    optimizers = {phase.name: torch.optim.SGD(nets[phase.trains[0]].parameters(), lr=0.1) for phase in phases}
    return Step(phases, nets=nets, optimizers=optimizers, options=StepOptions(**options)), nets


def test_phases_train_their_networks_in_order_and_share_the_cache_of_their_split():
    calls: list[tuple[str, bool, bool, dict[str, float]]] = []

    def phase(name: str, role: str, split: str = "train") -> Phase:
        def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            frozen = [not next(nets[role].parameters()).requires_grad for role in ("G", "D")]
            calls.append((name, *frozen, {key: float(value) for key, value in cache.items()}))  # pyright: ignore
            output = _loss(role)(nets, batch, cache)
            return replace(output, cache={f"by {name}": output.loss})

        return Phase(name=name, trains=(role,), loss=loss, split=split)

    step, nets = _step([phase("first", "G"), phase("search", "G", "held out"), phase("second", "D")])
    batches = {"train": {"A": torch.ones(2)}, "held out": {"A": torch.ones(3)}}
    losses = step(batches, number=0)
    assert calls == [
        ("first", False, True, {}),
        ("search", False, True, {}),
        ("second", True, False, {"by first": 2.0}),  # the other split's cache stays there
    ]
    assert float(_value(nets["G"]).detach()) == torch.tensor(1 - 0.2 - 0.3).item()
    assert set(losses) == {f"{name}/{term}" for name in ("first", "search", "second") for term in ("part", "total")}
    assert float(losses["first/part"]) == 4.0
    assert not any(value.requires_grad for value in losses.values())
