"""What a checkpoint keeps of a run's networks: whole generators, their averages, and the networks in none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from velogan.config import Config
from velogan.data.domains.pair import Data
from velogan.methods.base import Role, ends
from velogan.types import GENERATOR_FILES, Direction, Nets

_AVERAGED = ".ema"


def stored(config: Config, roles: Mapping[str, Role], averages: Nets) -> dict[str, nn.Module]:
    """Networks by the name of their file: `G_A`, `D_A`, `G_A.ema`."""
    raw = _generators(config, {name: role.net for name, role in roles.items()})
    others = {name: role.net for name, role in roles.items() if role.header is not None}
    averaged = {f"{name}{_AVERAGED}": net for name, net in _generators(config, averages).items()}
    return {**raw, **others, **averaged}


def headers(config: Config, roles: Mapping[str, Role], data: Data, *, images: int) -> dict[str, dict[str, Any]]:
    """What each of these files says of the network in it, enough to build it again, and where it comes from."""
    described = {
        GENERATOR_FILES[way]: header | _formats(way, data) for way, header in config.method.headers(config.spec).items()
    }
    made = {name: {"weights": "raw", **header} for name, header in described.items()}
    made |= {f"{name}{_AVERAGED}": {"weights": "ema", **header} for name, header in described.items()}
    for name, role in roles.items():
        if role.header is not None:
            made[name] = {"weights": "raw", **role.header, **_judged(role, data)}
    common = {
        "method": config.method.kind,
        "image_size": config.data.crop_size,
        "images_seen": images,
        "data": {"a": data.sources.a.name, "b": data.sources.b.name, "preprocess": config.data.preprocess},
    }
    return {name: {"role": name.removesuffix(_AVERAGED), **header, **common} for name, header in made.items()}


def _generators(config: Config, nets: Nets) -> dict[str, nn.Module]:
    views = config.method.views(nets, config.spec)
    return {GENERATOR_FILES[way]: net for way, net in views.generators.items()}


def _formats(way: Direction, data: Data) -> dict[str, Any]:
    formats = {"A": asdict(data.a.format), "B": asdict(data.b.format)}
    source, target = ends(way)
    return {"input": formats[source], "output": formats[target]}


def _judged(role: Role, data: Data) -> dict[str, Any]:
    if role.judges is None:
        return {}
    judged: dict[str, Any] = {"judges": role.judges, "sees": role.sees}
    if role.sees == "images":
        judged["input"] = asdict((data.a if role.judges == "A" else data.b).format)
    return judged
