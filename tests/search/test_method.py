"""Architecture searches: which phase trains what on which images, resuming, and the derived genotype."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.engine.step import Step
from velogan.engine.trainer import Trainer
from velogan.networks.cells import discriminator_kinds
from velogan.networks.genotype import Genotype, read_genotype
from velogan.observe.progress import Display
from velogan.search.history import ArchitectureRecorder
from velogan.search.method import SearchMethod
from velogan.search.supernet import SupernetFactory, find_mixed_ops
from velogan.training.build import build_roles, build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.run import train
from velogan.training.session import Result
from velogan.types import Batch

CELLS = {"network": "cells", "channels": 4}
SCHEMES = ("one-step", "two-step", "two-domains", "halves", "swapped-halves")


def _search(config: Config) -> SearchMethod:
    assert isinstance(config.method, SearchMethod)
    return config.method


@pytest.fixture
def search(tiny_config: Callable[..., Config]) -> Callable[..., Config]:
    """A tiny search; fields of the method by name, of other sections as `section={...}`."""

    def make(*, sections: dict[str, Any] | None = None, **method: Any) -> Config:
        sections = sections or {}
        return tiny_config(
            method={"kind": "searched", **method},
            generator={**CELLS, "blocks": 1, **sections.get("generator", {})},
            discriminator={**CELLS, **sections.get("discriminator", {})},
            **{"engine": {"mode": "reference", "threads": 1}}
            | {name: fields for name, fields in sections.items() if name not in ("generator", "discriminator")},
        )

    return make


def _step(config: Config, side: int = 32) -> tuple[Any, Any, dict[str, nn.Module]]:
    return build_step(config.model_copy(update={"engine": resolve_engine(config)[0]}), shape=(side, side))


def _batches(draws: Any, number: int = 0, side: int = 32) -> dict[str, Batch]:
    random = torch.Generator().manual_seed(number)
    return {
        split: {letter: torch.rand(1, 3, side, side, generator=random) * 2 - 1 for letter in "AB"}
        | {"uniform": torch.rand(count, 1, generator=random)}
        for split, count in draws.items()
    }


def _weights(nets: dict[str, nn.Module]) -> dict[str, list[Tensor]]:
    return {name: [weight.detach().clone() for weight in net.parameters()] for name, net in nets.items()}


def _changed(before: dict[str, list[Tensor]], after: dict[str, list[Tensor]]) -> set[str]:
    pairs = {name: list(zip(before[name], after[name], strict=True)) for name in before}
    return {name for name, weights in pairs.items() if not all(torch.equal(old, new) for old, new in weights)}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_phase_trains_its_networks_on_its_split(scheme: str, search: Callable[..., Config]):
    step, objective, nets = _step(search(scheme=scheme))
    pairs = {"generator": {"G_A", "G_B"}, "discriminator": {"D_A", "D_B"}}
    weights_split, arch_split = ("first_half", "second_half") if "halves" in scheme else ("train", "train")
    assert set(objective.num_uniforms) == {weights_split, arch_split}
    assert objective.swap_halves_at == (0.5 if scheme == "swapped-halves" else math.inf)
    changed = {}
    for phase in list(step.phases):
        before, step.phases = _weights(nets), [phase]
        step(_batches(objective.num_uniforms))
        changed[phase.name, phase.split] = _changed(before, _weights(nets))
    expected = {}
    for name, roles in pairs.items():
        arch = {f"arch_{role}" for role in roles}
        expected[name, weights_split] = roles | arch if scheme == "one-step" else roles
        if scheme != "one-step":
            expected[f"arch_{name}", arch_split] = arch
    assert changed == expected
    assert objective.state.state_dict().keys() >= {"weights.fake_a.images"} | (
        set() if scheme == "one-step" else {"architecture.fake_a.images"}
    )


def test_two_domains_trains_weights_on_a_and_architecture_on_b(search: Callable[..., Config]):
    """The paper says "w using A and alpha using B" (section 4.1); a discriminator needs both domains."""

    def trained(side: int) -> dict[str, list[Tensor]]:
        step, objective, nets = _step(search(scheme="two-domains", inner={"edges": 1.0}))
        batch = _batches(objective.num_uniforms)
        batch["train"] |= {"A": -batch["train"]["A"]} if side == 0 else {"B": -batch["train"]["B"]} if side == 1 else {}
        step.phases = [phase for phase in step.phases if "generator" in phase.name]
        step(batch)
        return _weights(nets)

    other_a, other_b, plain = map(trained, range(3))
    weights, architecture = {"G_A", "G_B"}, {"arch_G_A", "arch_G_B"}
    assert _changed(plain, other_b) == architecture
    assert _changed(plain, other_a) == weights | architecture, "the architecture's step comes after the weights'"
    with pytest.raises(ValueError, match=r"inner=onepair does not have: set method\.scheme=two-step"):
        _step(search(scheme="two-domains", inner="onepair"))


def test_one_step_equals_plain_training_of_supernets(search: Callable[..., Config]):
    config = search(inner={"pool_size": 1})
    step, objective, nets = _step(config)
    torch.manual_seed(config.train.seed)
    inner: Any = config.method.inner  # pyright: ignore[reportAttributeAccessIssue]
    plain = {name: role.net for name, role in inner.roles(config.spec, SupernetFactory()).items()}
    losses = inner.objective(config.spec, shape=(32, 32), batched=False)
    adams = {
        phase.name: torch.optim.Adam([w for name in phase.trains for w in plain[name].parameters()], 2e-4, (0.5, 0.999))
        for phase in losses.phases()
    }
    textbook = Step(losses.phases(), nets=plain, optimizers=adams)
    for number in range(3):
        step(_batches(objective.num_uniforms, number), number=number)
        textbook(_batches(losses.num_uniforms, number), number=number)
    for name, net in plain.items():
        searched = {**dict(nets[name].named_parameters())}
        searched |= {f"{place}.alpha": mixed.alpha for place, mixed in find_mixed_ops(nets[name]).items()}
        assert dict(net.named_parameters()).keys() == searched.keys()
        for place, weight in net.named_parameters():
            assert torch.equal(weight, searched[place]), (name, place)


def _train(config: Config, run: Path) -> Result:
    with Display() as display:
        return train(config, run, display=display, origin={"preset": "test", "command": "test"})


RUNS: dict[str, dict[str, Any]] = {
    "one-step": {"inner": {"augment": ["shift"], "augment_probability": 0.7, "pool_size": 2}},
    "swapped-halves": {"inner": {"pool_size": 2}},
    "two-step": {"inner": {"kind": "onepair", "direction": "both", "pool_size": 2}},
}


@pytest.mark.parametrize("scheme", RUNS)
def test_a_resumed_search_equals_an_unbroken_one(
    scheme: str, search: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changed = {"train": {"length": "6 images", "ema_images": 4, "log_every": "1 image"}}
    config = search(scheme=scheme, sections=changed, **RUNS[scheme])
    unbroken = _train(config, tmp_path / "unbroken")
    take_step = Trainer._train_step

    def step_and_stop(trainer: Trainer, batch: Any) -> None:
        take_step(trainer, batch)
        trainer.stop_requested = trainer.images == 2

    monkeypatch.setattr(Trainer, "_train_step", step_and_stop)
    results = [_train(config, tmp_path / "stopped") for _ in range(2)]
    assert [result.finished for result in results] == [False, True]
    assert results[-1].weights_sha256 == unbroken.weights_sha256
    logs, genotypes = (
        [(tmp_path / name / file).read_text() for name in ("stopped", "unbroken")]
        for file in ("architecture.jsonl", "genotype.json")
    )
    assert logs[0] == logs[1]
    assert genotypes[0] == genotypes[1]
    assert len(set(logs[0].splitlines())) == 7, "the start and each image"


@pytest.mark.parametrize(
    ("discriminator", "derived"),
    [
        ({"network": "projected+basic"}, {}),
        ({"operations": (ops := ("conv3", "conv4", "max_pool", "conv5"))}, {"a2b": ops, "b2a": ops}),
    ],
    ids=["no cells", "set operations"],
)
def test_some_discriminators_are_not_searched(
    discriminator: dict[str, Any], derived: dict[str, Any], search: Callable[..., Config]
):
    config = search(scheme="two-step", inner={"gan": "hinge"}, sections={"discriminator": discriminator})
    step, objective, nets = _step(config)
    assert {name for name in nets if name.startswith("arch_")} == {"arch_G_A", "arch_G_B"}
    assert [phase.name for phase in step.phases] == ["generator", "discriminator", "arch_generator"]
    step(_batches(objective.num_uniforms))
    assert set(_search(config).shares(nets, config.spec)) == {"G_A", "G_B"}
    assert _search(config).genotype(nets, config.spec).discriminators == derived


def test_derives_a_genotype_from_the_parts_of_onepair(search: Callable[..., Config]):
    config = search(inner={"kind": "onepair", "direction": "both"})
    nets = {name: role.net for name, role in build_roles(config.method, config.spec, seed=config.train.seed).items()}
    assert {"arch_E", "arch_T_A", "arch_T_B", "arch_R", "arch_D_A", "arch_D_B"} <= set(nets)
    with torch.no_grad():
        for net in nets.values():
            for number, mixed in enumerate(find_mixed_ops(net).values()):
                mixed.alpha[number] += 1
        find_mixed_ops(nets["T_B"])["model.r1.cell.0"].alpha[4] += 2
    genotype = _search(config).genotype(nets, config.spec)
    assert genotype.generators["a2b"] == ("max_pool", "avg_pool", "conv3", "conv5", "nearest", "bilinear")
    assert genotype.generators["b2a"] == ("max_pool", "avg_pool", "dilated5", "conv5", "nearest", "bilinear")
    operations = ("conv4", "conv4", "max_pool", "avg_pool")  # default ones, then those of encodings
    assert genotype.discriminators == {"a2b": operations, "b2a": operations}
    assert len(operations) == len(discriminator_kinds())
    built = config.change(method={"kind": "onepair", "direction": "both"}).with_genotype(genotype)
    assert built.spec.generators["b2a"].operations == genotype.generators["b2a"]


@pytest.mark.parametrize(
    ("method", "sections", "message"),
    [
        ({"inner": "searched"}, {}, "inner=searched cannot be searched: choose cyclegan or onepair"),
        ({}, {"generator": {"network": "resnet"}}, r"generator\.network=resnet has no operations .* velogan search"),
        ({}, {"discriminator": {"space": "code"}}, "generator.space and discriminator.space are code and paper"),
        ({"inner": "onepair"}, {"generator_b": {"channels": 8}}, "generator_b differs from generator"),
    ],
)
def test_rejects_configurations_that_cannot_be_searched(
    method: dict[str, Any], sections: dict[str, Any], message: str, search: Callable[..., Config]
):
    with pytest.raises(ValueError, match=message):
        search(sections=sections, **method)


def test_a_resumed_recorder_removes_later_lines(tmp_path: Path):
    best = "conv3"

    def recorder() -> ArchitectureRecorder:
        return ArchitectureRecorder(
            tmp_path,
            shares=lambda: {"G_A": {"e.0": {name: 0.6 if name == best else 0.4 for name in ("conv3", "conv5")}}},
            genotype=lambda: Genotype(generators={"a2b": (best, "conv3", "nearest", "bilinear")}),
            provenance={"data": "here"},
        )

    first = recorder()
    first.start(0)
    for images in (2, 4, 6):
        best = "conv5" if images == 6 else "conv3"
        first.write(images)
    file = tmp_path / "architecture.jsonl"
    file.write_text(file.read_text() + '{"images": 8, "sha')
    best = "conv3"
    resumed = recorder()
    resumed.start(4)
    resumed.write(6)
    resumed.write(6)
    assert [json.loads(line)["images"] for line in file.read_text().splitlines()] == [0, 2, 4, 6]
    genotype = read_genotype(tmp_path / "genotype.json")
    assert genotype.generators["a2b"][0] == "conv3"
    assert genotype.provenance == {"images": 6, "data": "here"}
