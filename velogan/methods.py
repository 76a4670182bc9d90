"""What each method is made of: its networks by role, its objective, and the generators that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.deploy.model import Direction, load_translator
from velogan.networks.discriminators import build_discriminator, build_encoding_discriminator
from velogan.networks.generators import (
    ChangeGenerator,
    Generator,
    GeneratorConfig,
    build_generator,
    changed,
    compose,
    split,
)
from velogan.networks.projection import build_projection
from velogan.objectives.base import Objective
from velogan.objectives.cyclegan import CycleGAN
from velogan.objectives.onepair import OnePair

AUTOENCODER = "autoencoder"
"""Among the networks that are looked at: what encodes and decodes, where a method has that."""

_IN_GENERATORS = ("G", "E", "T", "R")  # first parts of the roles that generators are made of


def directions(config: Config) -> tuple[Direction, ...]:
    """The ways that a run of this configuration learns to translate."""
    return ("a2b", "b2a") if config.method == "cyclegan" or config.onepair.direction == "both" else ("a2b",)


def build_networks(config: Config) -> dict[str, nn.Module]:
    """The networks by role, initialised from the seed in the reference's order, on the CPU.

    ValueError where the run that they should start from has none that fit.
    """
    torch.manual_seed(config.train.seed)
    nets = fresh_networks(config)
    if config.onepair.stage == "translator":
        _take_autoencoder(nets, config)
    return nets


def fresh_networks(config: Config) -> dict[str, nn.Module]:
    """The networks by role, initialised at random, on torch's default device."""
    of_a, of_b = config.generator.in_channels or 3, config.generator.out_channels or 3
    if config.method == "onepair":
        return _one_pair(config, channels=of_a)
    return {
        "G_A": build_generator(config.generator_for("G_A")),
        "G_B": build_generator(config.generator_for("G_B")),
        "D_A": build_discriminator(config.discriminator, in_channels=of_b),
        "D_B": build_discriminator(config.discriminator, in_channels=of_a),
    }


def _one_pair(config: Config, *, channels: int) -> dict[str, nn.Module]:
    method, width = config.onepair, 4 * config.generator.channels
    whole = GeneratorConfig.model_validate(described("G_A", config)["config"])
    encoder, translator, decoder = split(build_generator(whole))
    nets: dict[str, nn.Module] = {"E": encoder, "R": decoder}
    if method.stage == "autoencoder":
        return nets
    for way in method.ways:
        nets[f"T_{way}"] = translator if way == "A" else split(build_generator(config.generator)).translator
        if method.adversarial:
            nets[f"D_{way}"] = build_encoding_discriminator(config.discriminator, in_channels=width)
        if method.image_adversarial:
            nets[f"P_{way}"] = build_discriminator(config.discriminator, in_channels=channels)
    if method.contrast:
        nets["H"] = build_projection(width)
    return nets


def _take_autoencoder(nets: Mapping[str, nn.Module], config: Config) -> None:
    start = Path(config.onepair.start or "")
    found = load_translator(start)
    theirs = GeneratorConfig.model_validate(found.header["config"])
    if theirs.network != "resnet":
        raise ValueError(f"onepair.start={start} holds a {theirs.network}, which has no encoder: name another run")
    encoder, _, decoder = split(found.net)
    try:
        nets["E"].load_state_dict(encoder.state_dict())
        _load_in_order(nets["R"], decoder)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"onepair.start={start} holds another autoencoder than generator.* describes ({reason}): set its values"
        ) from None


def _load_in_order(net: nn.Module, other: nn.Module) -> None:
    """Takes weights in the order of layers, whose names count the blocks before them."""
    names, weights = net.state_dict().keys(), other.state_dict().values()
    if len(names) != len(weights):
        raise RuntimeError(f"{len(weights)} tensors for {len(names)}")
    net.load_state_dict(dict(zip(names, weights)))


def build_objective(config: Config, *, shape: tuple[int, int], batched: bool) -> Objective:
    """The method for images of `shape` (H, W)."""
    of_a, of_b = config.generator.in_channels or 3, config.generator.out_channels or 3
    if config.method == "onepair":
        height, width = (side // 4 for side in shape)
        encoding = (4 * config.generator.channels, height, width)
        by = changed if config.generator.output == "change" else None
        return OnePair(config.onepair, encoding=encoding, image=(of_b, *shape), changed=by, batched=batched)
    return CycleGAN(config.objective, shape_a=(of_a, *shape), shape_b=(of_b, *shape), batched=batched)


def pool_field(config: Config) -> tuple[str, int]:
    """The field that says how many past fakes are kept, and its value."""
    if config.method == "onepair":
        return "onepair.pool_size", config.onepair.pool_size
    return "objective.pool_size", config.objective.pool_size


def judge(nets: Mapping[str, nn.Module], images: Mapping[str, Tensor]) -> None:
    """Shows every discriminator images of its domain, `A` or `B`, or encodings of them."""
    for role, net in nets.items():
        kind, _, way = role.partition("_")
        image = images["B" if way == "A" else "A"]
        if kind in ("D", "P"):
            net(nets["E"](image) if kind == "D" and "E" in nets else image)


def generators(nets: Mapping[str, nn.Module], config: Config) -> dict[str, nn.Module]:
    """`G_A`, and `G_B` where that way is learned, over the weights of `nets`."""
    if config.method == "cyclegan":
        return {role: net for role, net in nets.items() if role.startswith("G_")}
    if config.onepair.stage == "autoencoder":
        return {"G_A": compose(nets["E"], nets["R"])}
    join = ChangeGenerator if config.generator.output == "change" else compose
    return {f"G_{way}": join(nets["E"], nets[f"T_{way}"], nets["R"]) for way in config.onepair.ways}


def kept(nets: Mapping[str, nn.Module], config: Config) -> dict[str, nn.Module]:
    """What a checkpoint keeps of `nets`: generators whole, and the networks that are in none of them."""
    others = {role: net for role, net in nets.items() if not _in_generators(role)}
    return {**generators(nets, config), **others}


def described(role: str, config: Config) -> dict[str, Any]:
    """What a weights file says of the network in it."""
    if role.startswith("G_"):
        part = config.generator_for(role)
        if config.method == "onepair" and config.onepair.stage == "autoencoder":
            part = part.model_copy(update={"blocks": 0, "output": "image"})
        return {"network": "generator", "config": part.model_dump(mode="json")}
    if role == "H":
        return {"network": "projection", "config": {}}
    return {"network": "discriminator", "config": config.discriminator.model_dump(mode="json")}


def averaged(nets: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """The networks of which a moving average is kept: those that generators are made of."""
    return {role: net for role, net in nets.items() if _in_generators(role)}


def displayed(nets: Mapping[str, nn.Module], config: Config) -> dict[str, nn.Module]:
    """The generators, and the autoencoder where there is one, over the weights of `nets`."""
    made = generators(nets, config)
    return made if config.method == "cyclegan" else {**made, AUTOENCODER: compose(nets["E"], nets["R"])}


def autoencoder_in(net: nn.Module) -> Generator:
    """The autoencoder within a generator of the one-pair method."""
    encoder, _, decoder = split(net)
    return compose(encoder, decoder)


def _in_generators(role: str) -> bool:
    return role.partition("_")[0] in _IN_GENERATORS
