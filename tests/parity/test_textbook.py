"""The engine's reference mode equals hand-written loops of the methods, bit for bit."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.config import Config
from velogan.engine.duration import parse_length
from velogan.engine.ema import EMA
from velogan.engine.trainer import Trainer, step_seed
from velogan.methods.cyclegan import CycleGAN

from ..steps import SIDE, build, kernels_of, random_batch

EPOCHS = 5


class ImagePool:
    """The reference's pool, with its coin and its choice handed in as uniform numbers."""

    def __init__(self, size: int):
        self.size, self.images = size, []

    def query(self, images: Tensor, uniform: Tensor) -> Tensor:
        returned = []
        for image, coin, choice in zip(images, *uniform.tolist()):
            image = image[None].detach()
            if len(self.images) < self.size:
                self.images.append(image)
                returned.append(image)
            elif self.size and coin > 0.5:
                index = int(choice * self.size)
                returned.append(self.images[index])
                self.images[index] = image
            else:
                returned.append(image)
        return torch.cat(returned)


def _adversarial(logits: Tensor, real: bool, kind: str) -> Tensor:
    target = torch.tensor(1.0 if real else 0.0).expand_as(logits)
    if kind == "lsgan":
        return F.mse_loss(logits, target)
    return F.binary_cross_entropy_with_logits(logits, target)


def _textbook(nets: Mapping[str, Any], batches: list[dict[str, Tensor]], config: Config) -> None:
    """Trains `nets` for one batch an epoch, as the reference implementation does."""
    g_a, g_b, d_a, d_b = (nets[role] for role in ("G_A", "G_B", "D_A", "D_B"))
    method = config.method
    assert isinstance(method, CycleGAN)
    kind, identity = method.gan, method.identity
    adam_g = torch.optim.Adam(itertools.chain(g_a.parameters(), g_b.parameters()), lr=2e-4, betas=(0.5, 0.999))
    adam_d = torch.optim.Adam(itertools.chain(d_a.parameters(), d_b.parameters()), lr=2e-4, betas=(0.5, 0.999))
    pool_a, pool_b = ImagePool(method.pool_size), ImagePool(method.pool_size)
    for epoch, batch in enumerate(batches, start=1):
        real_a, real_b = batch["A"], batch["B"]
        torch.manual_seed(step_seed(config.train.seed, (epoch - 1) * len(real_a)))
        uniform = torch.rand(6, len(real_a))
        for group in adam_g.param_groups + adam_d.param_groups:
            group["lr"] = 2e-4 * (1 - max(0, epoch - 2) / (EPOCHS - 2 + 1))

        fake_b = g_a(real_a)
        rec_a = g_b(fake_b)
        fake_a = g_b(real_b)
        rec_b = g_a(fake_a)
        for discriminator in (d_a, d_b):
            discriminator.requires_grad_(False)
        adam_g.zero_grad()
        same = [g_a(real_b), g_b(real_a)] if identity else []
        loss = _adversarial(d_a(fake_b), True, kind) + _adversarial(d_b(fake_a), True, kind)
        loss = loss + F.l1_loss(rec_a, real_a) * 10.0 + F.l1_loss(rec_b, real_b) * 10.0
        for out, real in zip(same, (real_b, real_a)):
            loss = loss + F.l1_loss(out, real) * 10.0 * identity
        loss.backward()
        adam_g.step()

        for discriminator in (d_a, d_b):
            discriminator.requires_grad_(True)
        adam_d.zero_grad()
        shown_b = pool_b.query(fake_b, uniform[0:2])
        shown_a = pool_a.query(fake_a, uniform[2:4])
        for discriminator, real, fake in ((d_a, real_b, shown_b), (d_b, real_a, shown_a)):
            loss = _adversarial(discriminator(real), True, kind) + _adversarial(discriminator(fake), False, kind)
            (loss * 0.5).backward()
        adam_d.step()


class _Batches:
    """The given batches, one an epoch."""

    def __init__(self, batches: list[dict[str, Tensor]]):
        self.by_epoch = batches

    def __len__(self) -> int:
        return len(self.by_epoch[0]["A"])

    def batches(self, position: int) -> Generator[dict[str, Tensor], None, None]:
        yield from (dict(batch) for batch in self.by_epoch[position // len(self) :])


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "lsgan": {},
    "vanilla": {"method": {"gan": "vanilla"}},
    "no identity, no pool": {"method": {"identity": 0.0, "pool_size": 0}},
    "batch of 2, dropout": {"data": {"batch_size": 2}, "generator": {"dropout": True}},
    "batch norm": {
        "data": {"batch_size": 2},
        "generator": {"norm": "batch"},
        "discriminator": {"norm": "batch", "network": "pixel"},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_five_steps_equal_the_textbook_loop_bit_for_bit(case: str, tiny_config: Callable[..., Config]):
    sections = {"method": {}, **CASES[case]}
    sections["method"] = {"pool_size": 2, **sections["method"]}  # full after two steps, so that it swaps
    config = tiny_config(engine={"mode": "reference", "threads": 1}, **sections)
    step, objective, nets = build(config)
    size, random = config.data.batch, torch.Generator().manual_seed(1)
    batches = [
        {side: torch.rand(size, 3, SIDE, SIDE, generator=random) * 2 - 1 for side in "AB"} for _ in range(EPOCHS)
    ]
    expected = copy.deepcopy(nets)
    _textbook(expected, batches, config)

    trainer = Trainer(
        step,
        {"train": _Batches(batches)},
        ema=EMA({"G_A": nets["G_A"]}, half_life=10, rampup=0.05),
        objective=objective,
        schedule=config.schedule,
        images_per_step=size,
        seed=config.train.seed,
    )
    trainer.run(parse_length(f"{EPOCHS} epochs", images_per_epoch=size))

    assert trainer.images == EPOCHS * size
    for role, net in nets.items():
        for name, value in expected[role].state_dict().items():
            assert torch.equal(net.state_dict()[name], value), f"{role}.{name} differs"


def _onepair_textbook(nets: dict[str, Any], batches: list[dict[str, Tensor]]) -> None:
    """The method as its text says it, with weights 10 and 1 of the deviations and a pool of one encoding."""
    encode, decode, translate, discriminate = (nets[role] for role in ("E", "R", "T_A", "D_A"))

    def adam(*parts: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(itertools.chain(*(part.parameters() for part in parts)), lr=2e-4, betas=(0.5, 0.999))

    adams, pooled = (adam(encode, decode), adam(translate), adam(discriminate)), None
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
        if pooled is None:
            pooled = shown
        elif coin > 0.5:
            shown, pooled = pooled, shown
        adams[2].zero_grad()
        (0.5 * ((discriminate(b) - 1).square().mean() + discriminate(shown).square().mean())).backward()
        adams[2].step()


def test_four_steps_of_one_pair_equal_the_textbook_loop_bit_for_bit(tiny_config: Callable[..., Config]):
    config = tiny_config(engine={"mode": "reference", "threads": 1}, method={"kind": "onepair", "pool_size": 1})
    (step, objective, nets), (_, _, expected) = build(config), build(config)
    random = torch.Generator().manual_seed(2)
    batches = [random_batch(random, objective) for _ in range(4)]
    for number, batch in enumerate(batches):
        step({"train": batch}, number=number)
    _onepair_textbook(expected, batches)
    weights = kernels_of(nets)
    for name, value in kernels_of(expected).items():
        assert torch.equal(weights[name], value), name


def test_one_adam_over_all_networks_equals_the_pair_bit_for_bit(tiny_config: Callable[..., Config]):
    """Discriminators see fakes from before the update of generators, and their loss has no generator."""
    config = tiny_config(engine={"mode": "reference"}, method={"pool_size": 2})
    (step, _, expected), (_, objective, nets) = build(config), build(config)
    assert len(step.optimizers) == 2
    adam = torch.optim.Adam([p for net in nets.values() for p in net.parameters()], lr=2e-4, betas=(0.5, 0.999))
    for number in range(5):
        batch = random_batch(torch.Generator().manual_seed(number), objective)
        step({"train": dict(batch)}, number=number)
        adam.zero_grad()
        cache: dict[str, Any] = {}
        for phase in objective.phases():
            for role, net in nets.items():
                net.requires_grad_(role in phase.trains)
            output = phase.loss(nets, batch, cache)
            output.loss.backward()
            cache |= {name: value.detach() for name, value in output.cache.items()}
        adam.step()  # no network has moved before
    for role, net in nets.items():
        assert all(map(torch.equal, net.parameters(), expected[role].parameters())), role
