"""Conversion of networks from and to the reference implementation and CUT, recognised by names and shapes of weights.

CUT (contrastive-unpaired-translation), by the same authors, has the same ResNets and PatchGANs with anti-aliased
sampling, whose filters its files contain. Files do not contain the options of a network: norm, dropout, width and depth
are inferred from the weights. What cannot be inferred: dropout in a U-Net, which does not affect inference; the padding
of a resnet's blocks, assumed to be reflection, the default; and CUT's `--netD patch`, a PatchGAN of 2 layers on squares
cut from images: it looks like `n_layers`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig
from velogan.networks.generators import GeneratorConfig

_WRAPPERS = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_FILTER = ".filt"  # of anti-aliased sampling: 3x3 for downsampling, 4x4 for upsampling
_UNETS = {7: "unet_128", 8: "unet_256"}


@dataclass(frozen=True)
class RecognisedNetwork:
    """The weights of a network, and the header from which `networks.build.build_network` builds it."""

    header: dict[str, Any]
    state: dict[str, Tensor]

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(value.numel() for name, value in self.state.items() if not name.endswith((*_STATISTICS, _FILTER)))

    @property
    def is_generator(self) -> bool:
        return self.header["network"] == "generator"

    @property
    def description(self) -> str:
        """The network in words: kind, depth, width, norm."""
        return _describe(self.header)


def recognise(tensors: Mapping[str, Tensor], *, file: object) -> RecognisedNetwork:
    """Identify a network by its weights. Raises ValueError, with the key that does not fit, if it is unknown."""
    state = _normalize(tensors)
    try:
        header = _infer_header(state)
    except ValueError as error:
        raise ValueError(
            f"{file} is not a network of the reference implementation: {' '.join(str(error).split())}"
        ) from None
    with torch.device("meta"):
        expected_state = build_network(header).state_dict()
    for name in [*state, *(name for name in expected_state if name not in state)]:
        if name not in expected_state:
            raise ValueError(f"{file}: unexpected key {name!r} in a {_describe(header)}")
        if name not in state and name.endswith("num_batches_tracked"):  # older than torch 0.4.1
            state[name] = torch.zeros((), dtype=torch.long)
        elif name not in state:
            raise ValueError(f"{file}: the key {name!r} is missing for a {_describe(header)}")
        shape, expected = tuple(state[name].shape), tuple(expected_state[name].shape)
        if shape != expected:
            raise ValueError(f"{file}: the key {name!r} has shape {shape}, not {expected} as in a {_describe(header)}")
    return RecognisedNetwork(header, {name: state[name] for name in expected_state})


def to_reference(network: RecognisedNetwork) -> dict[str, Tensor]:
    """Return the weights as the reference implementation names them. Raises ValueError if it has no such network."""
    reference_flags(network.header)
    is_pixel = network.header["config"]["network"] == "pixel"
    return {name.replace("model.", "net.", 1) if is_pixel else name: value for name, value in network.state.items()}


def to_instance_norm(network: RecognisedNetwork) -> RecognisedNetwork:
    """Replace batch norms by affine instance norms, which equal batch norm on single images in training mode.

    `instance_affine` has a hundred times the epsilon of batch norm, so the convolution before each norm is multiplied
    by ten, which the norm divides out.
    """
    norms = {name.removesuffix(".running_mean") for name in network.state if name.endswith(".running_mean")}
    state = {name: value for name, value in network.state.items() if not name.endswith(_STATISTICS)}
    for norm in norms:
        layers, _, index = norm.rpartition(".")
        state[f"{layers}.{int(index) - 1}.weight"] = state[f"{layers}.{int(index) - 1}.weight"] * 10
    header = {**network.header, "config": {**network.header["config"], "norm": "instance_affine"}}
    return RecognisedNetwork(header, state)


def reference_flags(header: Mapping[str, Any]) -> list[str]:
    """Return the flags that build the network in the reference implementation, or in CUT if it is anti-aliased.

    Raises ValueError if neither has such a network.
    """
    kind, config = header["network"], header.get("config", {})
    if kind not in ("generator", "discriminator"):
        raise ValueError(f"the reference implementation has no {kind}: choose another format")
    for name, values in _SUPPORTED.items():
        if config.get(name, values[0]) not in values:
            raise ValueError(
                f"the reference implementation has no {kind} with {name}={config[name]}: choose another format"
            )
    norm = {"sync_batch": "syncbatch"}.get(config["norm"], config["norm"])
    is_cut = config.get("antialias", False) not in (False, "none")
    norm_flag = f"--norm{kind[0].upper() if is_cut else ''} {'batch' if is_cut and norm == 'syncbatch' else norm}"
    if kind == "generator":
        flags = [f"--netG {_generator_name(config)}", f"--ngf {config['channels']}"]
        flags += [f"--input_nc {header['in_channels']}", f"--output_nc {header['out_channels']}", norm_flag]
        if is_cut:  # CUT has no dropout by default
            flags += _ANTIALIAS_FLAGS[config["antialias"]]
            return [*flags, *(["--no_dropout false"] if config["dropout"] else [])]
        return [*flags, *([] if config["dropout"] else ["--no_dropout"])]
    depth = [f"--n_layers_D {config['layers']}"] if config["network"] == "n_layers" else []
    return [f"--netD {config['network']}", *depth, f"--ndf {config['channels']}", norm_flag]


def _generator_name(config: Mapping[str, Any]) -> str:
    if config["network"] != "resnet":
        return config["network"]
    blocks = config["blocks"]
    return f"resnet_{blocks}blocks" if blocks in (6, 9) else f"resnet_9blocks (with n_blocks={blocks} in its define_G)"


_ANTIALIAS_FLAGS = {"both": [], "down": ["--no_antialias_up"], "up": ["--no_antialias"]}
_SUPPORTED = {
    "network": ("resnet", "unet_128", "unet_256", "basic", "n_layers", "pixel"),
    "norm": ("instance", "batch", "sync_batch", "none"),
    "decoder": ("reference",),
    "padding": ("zeros",),
    "output": ("image",),
}
"""Values that the reference implementation has, by configuration field; the default first."""


def _normalize(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Unify the names, remove running statistics of instance norms in old files, and convert weights to float32."""
    state = dict(tensors)
    while wrapper := next((prefix for prefix in _WRAPPERS if all(name.startswith(prefix) for name in state)), None):
        state = {name.removeprefix(wrapper): value for name, value in state.items()}
    if all(name.startswith("net.") for name in state):
        state = {name.replace("net.", "model.", 1): value for name, value in state.items()}
    weights = {}
    for name, value in state.items():
        layer, _, last = name.rpartition(".")
        if last in _STATISTICS and f"{layer}.weight" not in state:
            continue
        weights[name] = value.float() if value.is_floating_point() else value
    return weights


def _infer_header(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Infer the header of a network from its first convolution and the names of its weights."""
    if _kernel_size(state, "model.1.weight") == (7, 7):
        return _infer_resnet(state)
    if "model.model.0.weight" in state:
        return _infer_unet(state)
    if _kernel_size(state, "model.0.weight") == (4, 4):
        return _infer_patch(state)
    if _kernel_size(state, "model.0.weight") == (1, 1):
        return _infer_pixel(state)
    first = next(iter(state))
    raise ValueError(f"unexpected key {first[:120]!r} of shape {tuple(state[first].shape)}")


def _infer_resnet(state: Mapping[str, Tensor]) -> dict[str, Any]:
    blocks = {match[1] for name in state if (match := re.match(r"model\.(\d+)\.conv_block\.", name))}
    if zero_padded := next((name for name in state if re.fullmatch(r"model\.\d+\.conv_block\.0\.weight", name)), None):
        raise ValueError(f"unexpected key {zero_padded!r}: its blocks have zero padding, not reflection padding")
    first = state["model.1.weight"]
    last = _last_convolution(state)
    filter_sizes = {len(value[0, 0]) for name, value in state.items() if name.endswith(_FILTER) and value.ndim == 4}
    antialias: dict[tuple[int, ...], Any] = {(3,): "down", (4,): "up", (3, 4): "both"}
    config = GeneratorConfig(
        blocks=len(blocks),
        channels=first.shape[0],
        antialias=antialias.get(tuple(sorted(filter_sizes)), "none"),
        norm=_norm_of(state, "model.1", "model.2"),
        dropout=any(name.endswith(".conv_block.6.weight") and value.ndim == 4 for name, value in state.items()),
    )
    return _build_header("generator", config, in_channels=first.shape[1], out_channels=last.shape[0])


def _infer_unet(state: Mapping[str, Tensor]) -> dict[str, Any]:
    num_downs = max(name.count(".model.") for name in state)
    if num_downs not in _UNETS:
        raise ValueError(f"a U-Net of {num_downs} levels is not supported, only of 7 (unet_128) and 8 (unet_256)")
    first = state["model.model.0.weight"]
    last = state.get("model.model.3.weight")
    if first.ndim != 4 or last is None or last.ndim != 4:
        raise ValueError("the key 'model.model.3.weight' is missing or not a convolution")
    inner = "model.model.1.model"
    norm = _norm_of(state, f"{inner}.1", f"{inner}.2")
    config = GeneratorConfig.model_validate({"network": _UNETS[num_downs], "channels": first.shape[0], "norm": norm})
    return _build_header("generator", config, in_channels=first.shape[1], out_channels=last.shape[1])


def _infer_patch(state: Mapping[str, Tensor]) -> dict[str, Any]:
    first = state["model.0.weight"]
    layers = sum(value.ndim == 4 and not name.endswith(_FILTER) for name, value in state.items()) - 2
    fields: dict[str, Any] = {"network": "n_layers", "layers": layers} if layers != 3 else {}
    if f"model.2{_FILTER}" in state:
        fields["antialias"] = True
        norm = _norm_of(state, "model.3", "model.4")
    else:
        norm = _norm_of(state, "model.2", "model.3")
    config = DiscriminatorConfig.model_validate({"channels": first.shape[0], "norm": norm, **fields})
    return _build_header("discriminator", config, in_channels=first.shape[1])


def _infer_pixel(state: Mapping[str, Tensor]) -> dict[str, Any]:
    first = state["model.0.weight"]
    config = DiscriminatorConfig(network="pixel", channels=first.shape[0], norm=_norm_of(state, "model.2", "model.3"))
    return _build_header("discriminator", config, in_channels=first.shape[1])


def _build_header(kind: str, config: GeneratorConfig | DiscriminatorConfig, **channels: int) -> dict[str, Any]:
    return {"network": kind, "config": config.model_dump(mode="json"), **channels}


def _norm_of(state: Mapping[str, Tensor], convolution: str, norm: str) -> Any:
    """Infer the norm after a convolution: batch norm has running statistics; before instance norm there is a bias."""
    if f"{norm}.running_mean" in state:
        return "batch"
    return "instance" if f"{convolution}.bias" in state else "none"


def _kernel_size(state: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """Return height and width of a convolution's kernel; empty if there is no such convolution."""
    return tuple(state[name].shape[2:]) if name in state and state[name].ndim == 4 else ()


def _last_convolution(state: Mapping[str, Tensor]) -> Tensor:
    numbered = {int(match[1]): name for name in state if (match := re.fullmatch(r"model\.(\d+)\.weight", name))}
    return state[numbered[max(n for n, name in numbered.items() if state[name].ndim == 4)]]


def _describe(header: Mapping[str, Any]) -> str:
    config = header["config"]
    depth = {"resnet": f" of {config.get('blocks')} blocks", "n_layers": f" of {config.get('layers')} layers"}
    suffix = ", dropout" if config.get("dropout") else ""
    suffix += ", anti-aliased" if config.get("antialias", False) not in (False, "none") else ""
    kind = f"{config['network']}{depth.get(config['network'], '')}"
    return f"{header['network']} {kind}, width {config['channels']}, norm {config['norm']}{suffix}"
