from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from velogan.engine.step import Step, StepOptions
from velogan.objectives.base import Branch, LossOutput, Phase, PhaseCache, run_branches
from velogan.types import Batch, Nets


def _value(net: nn.Module) -> Tensor:
    return next(net.parameters()).sum()


def _loss(role: str) -> Callable[[Nets, Batch, PhaseCache], LossOutput]:
    """Return a loss function: the weight of a network times the sum of A."""

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        total = _value(nets[role]) * batch["A"].sum()
        return LossOutput(loss=total, terms={"part": total * 2})

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


def test_images_have_the_memory_format_and_convolutions_the_type_of_the_options():
    formats: list[bool] = []
    types: list[torch.dtype] = []

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        formats.append(batch["A"].is_contiguous(memory_format=torch.channels_last))
        out = nets["G"](torch.ones(1, 1))
        types.append(out.dtype)
        return LossOutput(loss=out.float().sum(), terms={})

    phases = [Phase(name="phase", trains=("G",), loss=loss)]
    step, nets = _step(phases, autocast=torch.bfloat16, channels_last=True)
    step({"train": {"A": torch.zeros(1, 3, 4, 4), "uniform": torch.zeros(6, 1)}})
    assert (formats, types) == ([True], [torch.bfloat16])
    assert next(nets["G"].parameters()).dtype == torch.float32


def test_losses_call_the_forward_nets_and_gradients_do_not_accumulate():
    calls: list[str] = []

    class Forward(nn.Module):
        def __init__(self, net: nn.Module):
            super().__init__()
            self.weight = next(net.parameters())

        def parameters(self, recurse: bool = True):
            calls.append("parameters")
            return super().parameters(recurse)

    plain, nets = _step([Phase(name="phase", trains=("G",), loss=_loss("G"))])

    forward_nets = {role: Forward(net) for role, net in nets.items()}
    step = Step(plain.phases, nets=nets, optimizers=plain.optimizers, forward_nets=forward_nets)
    for _ in range(3):
        step({"train": {"A": torch.ones(1)}})
    torch.testing.assert_close(_value(nets["G"]), torch.tensor(0.7))
    assert len(calls) == 3


def test_a_runner_gets_the_independent_branches_of_a_loss():
    counts: list[int] = []

    def run_reversed(branches: Sequence[Branch]) -> list[tuple[Tensor, ...]]:
        counts.append(len(branches))
        return [branch() for branch in reversed(branches)][::-1]

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        (first,), (second,) = run_branches(lambda: (_value(nets["G"]),), lambda: (3 * _value(nets["G"]),))
        return LossOutput(loss=first + second, terms={"first": first, "second": second})

    for runner, expected in ((None, []), (run_reversed, [2])):
        step, _ = _step([Phase(name="phase", trains=("G",), loss=loss)], branch_runner=runner)
        losses = step({"train": {"A": torch.ones(1)}})
        assert (float(losses["phase/first"]), float(losses["phase/second"])) == (1.0, 3.0)
        assert counts == expected
    run_branches(lambda: (), lambda: ())
    assert counts == [2]  # the runner is used within the step only
