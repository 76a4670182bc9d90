"""What a checkpoint keeps of a run's networks: whole generators, their averages, and the networks in none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from velogan.data.domains.pair import Data
from velogan.methods.base import Method, Role, Spec, ends
from velogan.types import GENERATOR_FILES, Direction, Nets

_AVERAGED = ".ema"


def stored(method: Method, spec: Spec, roles: Mapping[str, Role], averages: Nets) -> dict[str, nn.Module]:
    """Networks by the name of their file: `G_A`, `D_A`, `G_A.ema`."""
    averaged = {f"{name}{_AVERAGED}": net for name, net in _generators(method, spec, averages).items()}
    return {**raw(method, spec, roles), **averaged}


def raw(method: Method, spec: Spec, roles: Mapping[str, Role]) -> dict[str, nn.Module]:
    """The same without averages."""
    generators = _generators(method, spec, {name: role.net for name, role in roles.items()})
    return {**generators, **{name: role.net for name, role in roles.items() if role.header is not None}}


def headers(method: Method, spec: Spec, roles: Mapping[str, Role], data: Data) -> dict[str, dict[str, Any]]:
    """What each of these files says of the network in it: enough to build it again, and the pictures it takes."""
    described = {GENERATOR_FILES[way]: header | _formats(way, data) for way, header in method.headers(spec).items()}
    made = {name: {"weights": "raw", **header} for name, header in described.items()}
    made |= {f"{name}{_AVERAGED}": {"weights": "ema", **header} for name, header in described.items()}
    for name, role in roles.items():
        if role.header is not None:
            made[name] = {"weights": "raw", **role.header, **_judged(role, data)}
    return {name: {"role": name.removesuffix(_AVERAGED), **header} for name, header in made.items()}


def _generators(method: Method, spec: Spec, nets: Nets) -> dict[str, nn.Module]:
    views = method.views(nets, spec)
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
