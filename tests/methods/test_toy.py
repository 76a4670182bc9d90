"""A method is one file: this one works with all commands.

It has unusual roles, losses on both halves of the training images, and a weight that a flag sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from velogan import recipes
from velogan.cli import main
from velogan.cli.unknown_flags import CONFIG_FIELDS
from velogan.config import Config, read_config
from velogan.data.sets.pair import open_data
from velogan.data.sets.sources import Folder, find_sources
from velogan.engine.capture import CapturedStep
from velogan.engine.step import Step, StepOptions
from velogan.engine.trainer import Trainer
from velogan.methods.base import InferenceGenerators, Method, Role, Spec, discriminator_header
from velogan.networks.build import NetworkFactory, build_network
from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.observe.log import read_stats
from velogan.observe.progress import Display
from velogan.search.method import METHODS
from velogan.store.checkpoint import load_weights
from velogan.training.build import build_step, build_trainer
from velogan.training.engine_settings import resolve_engine
from velogan.types import Batch, Direction, Nets


class Toy(Method):
    """One generator, near the identity, and one critic."""

    kind = "toy"
    summary = "a generator and a critic"

    nearness: float = Field(default=1.0, ge=0, description="Weight of |G(a) - a|.")

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("a2b",)

    def roles(self, spec: Spec, factory: NetworkFactory) -> dict[str, Role]:
        a, b = spec.channels["A"], spec.channels["B"]
        generator, config = spec.generators["a2b"], spec.discriminators["a2b"]
        return {
            "painter": Role(net=factory.generator(generator, in_channels=a, out_channels=b), is_averaged=True),
            "critic": Role(
                net=factory.discriminator(config, in_channels=b),
                header=discriminator_header(config, in_channels=b),
                real_domain="B",
            ),
        }

    def objective(self, spec: Spec, *, shape: tuple[int, int], batched: bool) -> _Losses:
        return _Losses(self)

    def inference_generators(self, nets: Nets, spec: Spec) -> InferenceGenerators:
        return InferenceGenerators({"a2b": nets["painter"]})


class _Losses:
    num_uniforms = {"first_half": 0, "second_half": 1}  # noqa: RUF012

    def __init__(self, config: Toy):
        self.config = config
        self.state: nn.Module = nn.Module()
        self.state.register_buffer("draws", torch.zeros(()))

    def phases(self) -> list[Phase]:
        return [
            Phase(name="painter", trains=("painter",), loss=self.paint, split="first_half"),
            Phase(name="critic", trains=("critic",), loss=self.criticise, split="second_half"),
        ]

    def paint(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        fake = nets["painter"](batch["A"]).float()
        terms = {
            "near": self.config.nearness * F.l1_loss(fake, batch["A"]),
            "adversarial": (nets["critic"](fake).float() - 1).square().mean(),
        }
        return LossOutput(loss=terms["near"] + terms["adversarial"], terms=terms, cache={"fake": fake})

    def criticise(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        assert "fake" not in cache, "the cache of the other split"
        fake = nets["painter"](batch["A"]).detach()
        self.state.get_buffer("draws").add_(batch["uniform"].sum())
        loss = (nets["critic"](batch["B"]).float() - 1).square().mean() + nets["critic"](fake).float().square().mean()
        return LossOutput(loss=loss, terms={"both": loss})


def _tiny() -> Config:
    tiny = {"channels": 4}
    return Config().change(method="toy", generator={**tiny, "blocks": 1}, discriminator=tiny)


@pytest.fixture(autouse=True)
def _register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "toy", Toy)
    monkeypatch.setitem(CONFIG_FIELDS, "method", f"{CONFIG_FIELDS['method']} nearness")
    monkeypatch.setitem(recipes.RECIPES, "toy", _tiny)


_STEP = """--method toy --method.nearness 2.5 --data apples2oranges --image-size 32 --data.render-count 24
    --data.render-test 2 --discriminator.channels 4 --generator.channels 4 --generator.blocks 1 --engine.threads 1
    --engine.precision fp32 --json"""
STEP = _STEP.split()


def _flags(run: Path) -> list[str]:
    length = f"""--images 6 --out {run} --train.checkpoint-every 2i --train.samples 2 --train.sample-every 6i
        --train.logger none --schedule.kind step"""
    return ["train", *STEP, *length.split()]


def _answer(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([str(word) for word in argv]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_train_translate_evaluate_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    trained = _answer(capsys, *_flags(run))
    names = {file.stem for file in Path(trained["checkpoint"]).glob("*.safetensors")}
    assert names == {"G_A", "G_A.ema", "critic", "state"}
    for name in names - {"state"}:
        header, weights = load_weights(Path(trained["checkpoint"]) / f"{name}.safetensors")
        build_network(header).load_state_dict(weights)
    assert "nearness: 2.5" in (run / "config.yaml").read_text()
    row = next(row for row in read_stats(run) if "loss/painter/near" in row)
    assert {"loss/critic/both", "lr/painter", "lr/critic"} <= set(row)
    index = json.loads((run / "samples" / "index.json").read_text())
    assert index["a2b"]["columns"] == ["input", "translated", "truth"]

    test = find_sources(read_config(run).data).a.test
    assert isinstance(test, Folder)
    assert _answer(capsys, "translate", run, test.directory, tmp_path / "out", "--json")["translated"] == 2
    assert main(["translate", str(run), str(test.directory), str(tmp_path / "back"), "--direction", "b2a"]) == 2
    scores = _answer(capsys, "evaluate", run, "--features", "none", "--json")["scores"]
    assert {score["direction"] for score in scores} == {"a2b"}
    assert "psnr_object_db" in {score["name"] for score in scores}
    assert _answer(capsys, "report", run, "--json")["page"].endswith("report.html")
    assert "painter" in (run / "report.html").read_text()


def test_a_resumed_run_equals_an_unbroken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    expected = _answer(capsys, *_flags(tmp_path / "unbroken"))
    take_step = Trainer._train_step

    def step_and_stop(trainer: Trainer, batch: Any) -> None:
        take_step(trainer, batch)
        trainer.stop_requested = trainer.images == 3

    monkeypatch.setattr(Trainer, "_train_step", step_and_stop)
    results = [_answer(capsys, *_flags(tmp_path / "stopped")) for _ in range(2)]
    assert [result["images_seen"] for result in results] == [3, 6]
    assert results[-1]["weights_sha256"] == expected["weights_sha256"]


def test_a_captured_step_over_two_splits_equals_the_plain_one(tiny_config: Callable[..., Config], recorder: Any):
    config = tiny_config(method="toy", engine={"kernels": "plain", "precision": "fp32"})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    results = []
    for captured in (False, True):
        plain, objective, nets = build_step(config, shape=(32, 32))
        assert isinstance(plain, Step)
        options = StepOptions(defer_nonfinite_check=True)
        step = Step(plain.phases, nets=nets, optimizers=plain.optimizers, options=options)
        if captured:
            step = CapturedStep(step, state=objective.state, recorder=recorder)
        for number in range(4):
            random = torch.Generator().manual_seed(number)
            batches = {
                split: {letter: torch.rand(1, 3, 32, 32, generator=random) for letter in "AB"}
                | {"uniform": torch.rand(draws, 1, generator=random)}
                for split, draws in objective.num_uniforms.items()
            }
            step(batches, number=number)
        step.check()
        results.append([value.clone() for net in nets.values() for value in net.parameters()])
        results[-1].append(objective.state.get_buffer("draws").clone())
    for plain, captured in zip(*results, strict=True):
        torch.testing.assert_close(captured, plain, rtol=0, atol=1e-7)


def test_halves_are_disjoint_and_complete_and_depend_on_the_seed(tiny_config: Callable[..., Config]):
    config = tiny_config(method="toy", data={"render_count": 7, "validation": 0})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    with Display() as display:
        data = open_data(config.data, task=display.task, print_line=display.print_line)
    loaders = build_trainer(config, data).loaders
    indices = {}
    for split, loader in loaders.items():
        plans = [loader.plan(place) for place in range(200)]  # pyright: ignore
        indices[split] = [{int(plan.A[0, 0]) for plan in plans}, {int(plan.B[0, 0]) for plan in plans}]
    for first, second in zip(indices["first_half"], indices["second_half"], strict=True):
        assert not first & second
        assert first | second == set(range(7))
    other_seed = build_trainer(config.change(train={"seed": 9}), data).loaders["first_half"]
    assert {int(other_seed.plan(place).A[0, 0]) for place in range(200)} != indices["first_half"][0]  # pyright: ignore
    assert len(loaders["first_half"]) == 4
