"""A run's networks and their files: what a checkpoint keeps, and how a run begins with weights from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from velogan.data.sets.pair import Data
from velogan.interchange.hub import resolve_model_path
from velogan.methods.base import Method, Role, Spec, ends
from velogan.networks.reference import RecognisedNetwork
from velogan.translate.weights import load_networks
from velogan.types import GENERATOR_FILES, Direction, Nets

_AVERAGED = ".ema"
_UNSEEN = ("network", "norm", "decoder", "padding", "output", "space", "operations")
"""Fields that change what a network computes, though its weights may have the same names and shapes."""


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


def starting(start: Path) -> dict[str, RecognisedNetwork]:
    """The networks by role that a run begins with. ValueError where there are none."""
    try:
        return load_networks(resolve_model_path(start))
    except ValueError as error:
        raise ValueError(f"train.start (--start): {error}") from None


def begin(
    method: Method, spec: Spec, roles: Mapping[str, Role], *, found: Mapping[str, RecognisedNetwork], start: Path
) -> str:
    """Gives the networks of `roles` the weights that were `found` in `start`, and says which.

    Other networks than generators that do not fit begin anew. ValueError where a generator does not fit, or nothing
    does.
    """
    wanted = raw(method, spec, roles)
    headers: dict[str, Mapping[str, Any]] = {
        GENERATOR_FILES[way]: header for way, header in method.headers(spec).items()
    }
    headers |= {name: role.header for name, role in roles.items() if role.header is not None}
    taken, anew = [], []
    for name in sorted(wanted, reverse=True):  # where two generators share weights, those of a2b stay
        if name not in found:
            anew.append(name)
        elif not (misfit := _misfit(wanted[name], headers[name], found[name])):
            wanted[name].load_state_dict(found[name].state)
            taken.append(name)
        elif name in GENERATOR_FILES.values():
            raise ValueError(f"{start} does not fit: {misfit}")
        else:
            anew.append(f"{name} ({misfit})")
    if not taken:
        raise ValueError(
            f"{start} holds {', '.join(found)}, and this run has {', '.join(sorted(wanted))}: nothing fits"
        )
    unused = sorted(set(found) - set(wanted))
    parts = [f"the run begins with {', '.join(sorted(taken))} of {start}"]
    parts += [f"beginning anew: {', '.join(sorted(anew))}"] if anew else []
    parts += [f"not used: {', '.join(unused)}"] if unused else []
    return "; ".join(parts)


def _misfit(net: nn.Module, header: Mapping[str, Any], found: RecognisedNetwork) -> str:
    """What is another, with the mend; empty where the weights fit."""
    shapes, given = ({name: value.shape for name, value in of.items()} for of in (net.state_dict(), found.state))
    equal = shapes == given
    here, there = (_facts(one, unseen=equal) for one in (header, found.header))
    for name in sorted({*here, *there}):
        mine, theirs = here.get(name), there.get(name)
        if mine != theirs:
            return f"{name} is {_shown(mine)} here and {_shown(theirs)} there; set the same here, or start from another"
    if equal:
        return ""
    odd = next(name for name in (*given, *shapes) if shapes.get(name) != given.get(name))
    return f"{odd} is another; start from another"


def _facts(header: Mapping[str, Any], *, unseen: bool) -> dict[str, Any]:
    """What the header says of the network, by the names of fields; `unseen`: only what no weight shows."""
    kind, config = str(header.get("network")), header.get("config")
    section = "discriminator" if kind.endswith("discriminator") else kind
    facts = {"kind": kind, **{f"{section}.{name}": value for name, value in dict(config or {}).items()}}
    if facts.get(f"{section}.norm") == "sync_batch":
        facts[f"{section}.norm"] = "batch"
    if unseen:
        return {name: value for name, value in facts.items() if name.rpartition(".")[2] in ("kind", *_UNSEEN)}
    facts.pop(f"{section}.init", None)
    return facts | {name: header[name] for name in ("in_channels", "out_channels") if name in header}


def _shown(value: Any) -> str:
    return "absent" if value is None else str(value)[:60]
