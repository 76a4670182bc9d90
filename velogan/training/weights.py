"""The networks in a run's checkpoints, and the initial weights of a new run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from velogan.config import Config
from velogan.data.sets.pair import TrainingData
from velogan.interchange.hub import resolve_model_path
from velogan.methods.base import Role
from velogan.networks.reference import RecognisedNetwork
from velogan.translate.weights import load_networks
from velogan.types import GENERATOR_FILES, Direction, Nets, domains_of

_EMA_SUFFIX = ".ema"
_FIELDS_NOT_VISIBLE_IN_WEIGHTS = ("network", "norm", "decoder", "padding", "output", "space", "operations")
"""Fields that change what a network computes, though its weights may have the same names and shapes."""


def checkpoint_networks(config: Config, roles: Mapping[str, Role], averages: Nets) -> dict[str, nn.Module]:
    """Return the networks of a checkpoint by the names of their files, such as `G_A`, `D_A` and `G_A.ema`."""
    averaged = {f"{name}{_EMA_SUFFIX}": net for name, net in _generators(config, averages).items()}
    return {**_raw_networks(config, roles), **averaged}


def _raw_networks(config: Config, roles: Mapping[str, Role]) -> dict[str, nn.Module]:
    """Return the networks of a checkpoint, except averages, by the names of their files."""
    generators = _generators(config, {name: role.net for name, role in roles.items()})
    return {**generators, **{name: role.net for name, role in roles.items() if role.header is not None}}


def checkpoint_headers(config: Config, roles: Mapping[str, Role], data: TrainingData) -> dict[str, dict[str, Any]]:
    """Return the headers of a checkpoint's files: how to rebuild each network, and the formats of its images."""
    files: dict[str, dict[str, Any]] = {}
    for direction, header in config.method.headers(config.spec).items():
        name, header = GENERATOR_FILES[direction], header | _image_formats(direction, data)
        files[name] = {"role": name, "weights": "raw", **header}
        files[f"{name}{_EMA_SUFFIX}"] = {"role": name, "weights": "ema", **header}
    for name, role in roles.items():
        if role.header is not None:
            files[name] = {"role": name, "weights": "raw", **role.header, **_discriminator_fields(role, data)}
    return files


def _generators(config: Config, nets: Nets) -> dict[str, nn.Module]:
    inference = config.method.inference_generators(nets, config.spec)
    return {GENERATOR_FILES[direction]: net for direction, net in inference.generators.items()}


def _image_formats(direction: Direction, data: TrainingData) -> dict[str, Any]:
    formats = {"A": asdict(data.a.format), "B": asdict(data.b.format)}
    source, target = domains_of(direction)
    return {"input": formats[source], "output": formats[target]}


def _discriminator_fields(role: Role, data: TrainingData) -> dict[str, Any]:
    if role.real_domain is None:
        return {}
    fields: dict[str, Any] = {"judges": role.real_domain, "sees": role.input_kind}
    if role.input_kind == "images":
        fields["input"] = asdict((data.a if role.real_domain == "A" else data.b).format)
    return fields


def read_initial_weights(path: Path) -> dict[str, RecognisedNetwork]:
    """Read the initial weights of a new run from `path`, as networks by role. Raises ValueError if there are none."""
    try:
        return load_networks(resolve_model_path(path))
    except ValueError as error:
        raise ValueError(f"train.start (--start): {error}") from None


def load_initial_weights(
    config: Config, roles: Mapping[str, Role], *, weights: Mapping[str, RecognisedNetwork], path: Path
) -> str:
    """Load `weights`, read from `path`, into the networks of `roles`; return a message that lists them.

    A network starts from scratch if `weights` lacks it or, unless it is a generator, if its weights do not fit.
    Raises ValueError if the weights of a generator do not fit, or if no network is loaded.
    """
    networks = _raw_networks(config, roles)
    expected: dict[str, Mapping[str, Any]] = {
        GENERATOR_FILES[direction]: header for direction, header in config.method.headers(config.spec).items()
    }
    expected |= {name: role.header for name, role in roles.items() if role.header is not None}
    loaded, from_scratch = [], []
    for name in sorted(networks, reverse=True):  # if the generators share weights, G_A's are loaded last
        if name not in weights:
            from_scratch.append(name)
        elif not (mismatch := _mismatch_reason(networks[name], expected[name], weights[name])):
            networks[name].load_state_dict(weights[name].state)
            loaded.append(name)
        elif name in GENERATOR_FILES.values():
            raise ValueError(f"{path} does not fit: {mismatch}")
        else:
            from_scratch.append(f"{name} ({mismatch})")
    if not loaded:
        raise ValueError(
            f"{path} contains {', '.join(weights)}, and this run has {', '.join(sorted(networks))}: none fits"
        )
    unused = sorted(set(weights) - set(networks))
    parts = [f"the run starts with {', '.join(sorted(loaded))} of {path}"]
    parts += [f"starting from scratch: {', '.join(sorted(from_scratch))}"] if from_scratch else []
    parts += [f"not used: {', '.join(unused)}"] if unused else []
    return "; ".join(parts)


def _mismatch_reason(net: nn.Module, header: Mapping[str, Any], saved: RecognisedNetwork) -> str:
    """Return why the `saved` weights do not fit `net`, and how to fix that; empty if they fit."""
    shapes = {name: value.shape for name, value in net.state_dict().items()}
    saved_shapes = {name: value.shape for name, value in saved.state.items()}
    is_equal = shapes == saved_shapes
    fields = _header_fields(header, not_in_weights=is_equal)
    saved_fields = _header_fields(saved.header, not_in_weights=is_equal)
    for name in sorted({*fields, *saved_fields}):
        value, saved_value = fields.get(name), saved_fields.get(name)
        if value != saved_value:
            return (
                f"{name} is {_shorten(value)} here and {_shorten(saved_value)} there; set the same value, or use other "
                "weights"
            )
    if is_equal:
        return ""
    different = next(name for name in (*saved_shapes, *shapes) if shapes.get(name) != saved_shapes.get(name))
    return f"{different} differs; use other weights"


def _header_fields(header: Mapping[str, Any], *, not_in_weights: bool) -> dict[str, Any]:
    """Return a header's fields by name; `not_in_weights`: only fields that do not affect names or shapes of weights."""
    kind, config = str(header.get("network")), header.get("config")
    section = "discriminator" if kind.endswith("discriminator") else kind
    fields = {"kind": kind, **{f"{section}.{name}": value for name, value in dict(config or {}).items()}}
    if fields.get(f"{section}.norm") == "sync_batch":
        fields[f"{section}.norm"] = "batch"
    if not_in_weights:
        names = ("kind", *_FIELDS_NOT_VISIBLE_IN_WEIGHTS)
        return {name: value for name, value in fields.items() if name.rpartition(".")[2] in names}
    fields.pop(f"{section}.init", None)
    return fields | {name: header[name] for name in ("in_channels", "out_channels") if name in header}


def _shorten(value: Any) -> str:
    return "absent" if value is None else str(value)[:60]
