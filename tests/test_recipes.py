"""Every recipe builds and takes a step at a tiny size, so that none can rot."""

from __future__ import annotations

import pytest
import torch

from velogan.config import Config
from velogan.methods.cyclegan import CycleGAN
from velogan.networks.outputs import MaskGenerator
from velogan.recipes import RECIPES
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine


def _tiny(config: Config) -> Config:
    tiny = config.change(generator={"channels": 2, "blocks": 1}, discriminator={"channels": 2})
    return tiny.model_copy(update={"engine": resolve_engine(tiny)[0]})


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_a_step(name: str):
    recipe = RECIPES[name]
    assert recipe.__doc__
    assert "velogan " in recipe.__doc__  # how to run it
    config = _tiny(recipe())
    step, objective, nets = build_step(config, shape=(32, 32))
    before = {role: [value.clone() for value in net.parameters()] for role, net in nets.items()}
    batch = {side: torch.rand(config.data.batch, 3, 32, 32) * 2 - 1 for side in "AB"}
    batch["uniform"] = torch.rand(objective.num_uniforms["train"], config.data.batch)
    losses = step({"train": batch})
    assert all(value.isfinite() for value in losses.values())
    for role, net in nets.items():
        assert not all(map(torch.equal, net.parameters(), before[role])), role


@pytest.mark.parametrize(("a", "b"), [(1, 3), (3, 1), (1, 1), (2, 2), (4, 4), (4, 3)])
def test_the_recommended_recipe_takes_a_step_between_any_channels(a: int, b: int):
    config = _tiny(RECIPES["auto"]().change(data={"channels_a": a, "channels_b": b, "batch_size": 1}))
    step, objective, nets = build_step(config, shape=(32, 32))
    assert [isinstance(nets[role], MaskGenerator) for role in ("G_A", "G_B")] == [a == b] * 2
    batch = {letter: torch.rand(1, count, 32, 32) * 2 - 1 for letter, count in (("A", a), ("B", b))}
    batch["uniform"] = torch.rand(objective.num_uniforms["train"], 1)
    assert all(value.isfinite() for value in step({"train": batch}).values())


def test_keras_is_its_example():
    config = RECIPES["keras"]()
    assert (config.generator.norm, config.discriminator.norm) == ("instance_affine", "instance_affine")
    method = config.method
    assert isinstance(method, CycleGAN)
    assert (method.gan, method.cycle_a, method.identity, method.pool_size) == ("lsgan", 10, 0.5, 0)
    step, *_ = build_step(_tiny(config), shape=(32, 32))
    groups = [group for optimizer in step.optimizers.values() for group in optimizer.param_groups]
    assert {(group["lr"], group["betas"], group["eps"]) for group in groups} == {(2e-4, (0.5, 0.999), 1e-7)}
    assert (config.schedule.kind, config.train.length, config.data.batch_size) == ("constant", "90 epochs", 1)


def test_cyclegan_is_the_paper():
    config = RECIPES["cyclegan"]()
    assert (config.data.crop_size, config.data.load_side, config.data.batch_size) == (256, 286, 1)
    assert (config.generator.network, config.generator.blocks, config.generator.channels) == ("resnet", 9, 64)
    assert (config.discriminator.network, config.discriminator.channels) == ("basic", 64)
    assert (config.generator.norm, config.generator.dropout, config.generator.init) == ("instance", False, "normal")
    method = config.method
    assert isinstance(method, CycleGAN)
    assert (method.gan, method.cycle_a, method.cycle_b) == ("lsgan", 10, 10)
    assert (method.adversarial_a, method.adversarial_b) == (1, 1)
    assert (method.identity, method.pool_size) == (0.5, 50)
    assert (config.optimizer.lr, config.optimizer.beta1, config.optimizer.beta2) == (2e-4, 0.5, 0.999)
    assert (config.train.length, config.schedule.kind, config.schedule.hold) == ("200 epochs", "linear", 0.5)
