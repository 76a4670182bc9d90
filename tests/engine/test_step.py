from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from velogan.engine.step import Step, StepOptions
from velogan.objectives.base import Branch, LossOutput, Phase, PhaseCache, run_branches
from velogan.types import Batch, Nets


def _value(net: nn.Module) -> Tensor:
    return next(net.parameters()).sum()


class _Recorded:
    """Two networks on two splits; it records what each phase saw."""

    def __init__(self):
        self.seen: list[tuple[str, bool, bool, dict[str, float]]] = []

    def loss(self, name: str, role: str):
        def phase_loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
            frozen = [not next(nets[r].parameters()).requires_grad for r in ("G", "D")]
            self.seen.append((name, *frozen, {key: float(value) for key, value in cache.items()}))  # pyright: ignore
            total = _value(nets[role]) * batch["A"].sum()
            return LossOutput(loss=total, logged={"part": total * 2}, cache={f"by {name}": total})

        return phase_loss


def _step(phases: list[Phase], **settings) -> tuple[Step, dict[str, nn.Module]]:
    nets: dict[str, nn.Module] = {"G": nn.Linear(1, 1, bias=False), "D": nn.Linear(1, 1, bias=False)}
    for net in nets.values():
        nn.init.ones_(next(net.parameters()))
    optimizers = {phase.name: torch.optim.SGD(nets[phase.trains[0]].parameters(), lr=0.1) for phase in phases}
    return Step(phases, nets=nets, optimizers=optimizers, options=StepOptions(**settings)), nets


def test_phases_train_their_networks_in_order_and_carry_within_their_split():
    recorded = _Recorded()
    phases = [
        Phase(name="first", trains=("G",), loss=recorded.loss("first", "G")),
        Phase(name="search", trains=("G",), loss=recorded.loss("search", "G"), split="held out"),
        Phase(name="second", trains=("D",), loss=recorded.loss("second", "D")),
    ]
    step, nets = _step(phases)
    batches = {"train": {"A": torch.ones(2)}, "held out": {"A": torch.ones(3)}}
    losses = step(batches, number=0)
    assert [entry[:3] for entry in recorded.seen] == [
        ("first", False, True),
        ("search", False, True),
        ("second", True, False),
    ]
    assert [entry[3] for entry in recorded.seen] == [{}, {}, {"by first": 2.0}]  # no held-out cache reaches the others
    assert float(_value(nets["G"]).detach()) == torch.tensor(1 - 0.2 - 0.3).item()
    assert set(losses) == {f"{name}/{term}" for name in ("first", "search", "second") for term in ("part", "total")}
    assert float(losses["first/part"]) == 4.0
    assert not any(value.requires_grad for value in losses.values())


def test_gradients_do_not_pile_up():
    step, nets = _step([Phase(name="only", trains=("G",), loss=_Recorded().loss("only", "G"))])
    for _ in range(3):
        step({"train": {"A": torch.ones(1)}})
    torch.testing.assert_close(_value(nets["G"]), torch.tensor(0.7))


def test_images_are_laid_out_and_convolutions_run_in_the_type_asked_for():
    seen = {}

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        seen["layout"] = batch["A"].is_contiguous(memory_format=torch.channels_last)
        out = nets["G"](torch.ones(1, 1))
        seen["type"] = out.dtype
        return LossOutput(loss=out.float().sum(), logged={})

    phases = [Phase(name="only", trains=("G",), loss=loss)]
    step, nets = _step(phases, autocast=torch.bfloat16, channels_last=True)
    step({"train": {"A": torch.zeros(1, 3, 4, 4), "uniform": torch.zeros(6, 1)}})
    assert seen == {"layout": True, "type": torch.bfloat16}
    assert next(nets["G"].parameters()).dtype == torch.float32


def test_losses_call_the_forward_nets():
    class Twice(nn.Module):
        def __init__(self, net: nn.Module):
            super().__init__()
            self.weight = next(net.parameters())

    made, nets = _step([Phase(name="only", trains=("G",), loss=_Recorded().loss("only", "G"))])
    step = Step(made.phases, nets=nets, optimizers=made.optimizers, forward_nets={r: Twice(n) for r, n in nets.items()})
    step({"train": {"A": torch.ones(1)}})
    torch.testing.assert_close(_value(nets["G"]), torch.tensor(0.9))


def test_a_runner_gets_the_parts_that_a_loss_calls_independent():
    seen: list[int] = []

    def backwards(parts: Sequence[Branch]) -> list[tuple[Tensor, ...]]:
        seen.append(len(parts))
        return [part() for part in reversed(parts)][::-1]

    def loss(nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        (first,), (second,) = run_branches(lambda: (_value(nets["G"]),), lambda: (3 * _value(nets["G"]),))
        return LossOutput(loss=first + second, logged={"first": first, "second": second})

    for runner, runs in ((None, []), (backwards, [2])):
        step, _ = _step([Phase(name="only", trains=("G",), loss=loss)], branch_runner=runner)
        losses = step({"train": {"A": torch.ones(1)}})
        assert (float(losses["only/first"]), float(losses["only/second"])) == (1.0, 3.0)
        assert seen == runs
    run_branches(lambda: (), lambda: ())
    assert seen == [2]  # the runner is the step's alone
