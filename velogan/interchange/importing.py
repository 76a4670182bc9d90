"""A run folder made of networks that the reference implementation has trained."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import velogan
from velogan.config import Config, write_yaml
from velogan.data.pictures.values import PixelFormat
from velogan.files import write_text
from velogan.networks.build import build_network
from velogan.networks.reference import RecognisedNetwork, to_instance_norm
from velogan.store.checkpoint import save_checkpoint
from velogan.store.record import write_record
from velogan.translate.weights import load_reference_file, load_reference_folder


def import_reference(source: Path, run: Path, *, picture_statistics: bool = False) -> dict[str, Any]:
    """Makes the run folder `run` of one file, or of a folder `checkpoints/NAME`; gives `run` and `networks`.

    A file becomes the direction a2b, a folder with both generators a run that can be trained on. `picture_statistics`:
    batch norm of generators takes the statistics of each picture in place of those of training. ValueError where
    `source` holds no such networks, or `run` is there already.
    """
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ValueError(f"{run} is there already: name a new folder")
    if not source.exists():
        raise ValueError(f"{source} does not exist: name a .pth file, or a folder checkpoints/NAME")
    found = _usable(source)
    if picture_statistics:
        found = _by_picture(found, source)
    config = _config(found)
    nets = {role: build_network(network.header) for role, network in found.items()}
    for role, net in nets.items():
        net.load_state_dict(found[role].state)
    headers = {role: _header(role, network, config) for role, network in found.items()}
    save_checkpoint(run, images=0, networks=nets, headers=headers, state=None, clock=None)
    write_text(run / "config.yaml", write_yaml(config))
    origin = {"imported": str(source), "picture_statistics": picture_statistics}
    write_record(run, {"velogan": velogan.__version__, **origin})
    told = [{"role": role, "network": one.description, "parameters": one.parameters} for role, one in found.items()]
    return {"run": str(run), "networks": told}


def _usable(source: Path) -> dict[str, RecognisedNetwork]:
    """The generators, and the discriminators that see what these make."""
    if source.is_dir():
        found = load_reference_folder(source)
    else:
        (network,) = load_reference_file(source).values()
        found = {"G_A" if network.is_generator else "D_A": network}
    makes = {role[-1]: one.header["out_channels"] for role, one in found.items() if one.is_generator}
    if not makes:
        raise ValueError(f"{source} holds discriminators alone, which do not translate: name a generator or a folder")
    if set(makes) == {"B"}:
        raise ValueError(f"{source} holds G_B without G_A: name the file of G_B itself, which then becomes a2b")
    # a discriminator of pix2pix sees the input, too: ours never do
    return {
        role: one for role, one in found.items() if one.is_generator or one.header["in_channels"] == makes.get(role[-1])
    }


def _by_picture(found: dict[str, RecognisedNetwork], source: Path) -> dict[str, RecognisedNetwork]:
    norms = {role: one.header["config"]["norm"] for role, one in found.items() if one.is_generator}
    if "batch" not in norms.values():
        raise ValueError(
            f"--picture-statistics is for generators with batch norm, and {source} has norm "
            f"{', '.join(sorted(set(norms.values())))}: leave it out"
        )
    return {role: to_instance_norm(one) if norms.get(role) == "batch" else one for role, one in found.items()}


def _config(found: dict[str, RecognisedNetwork]) -> Config:
    """The default configuration with these networks."""
    sections: dict[str, Any] = {}
    for letter, section in (("G", "generator"), ("D", "discriminator")):
        first, second = (found.get(f"{letter}_{way}") for way in "AB")
        if first is not None:
            sections[section] = first.header["config"]
        if first is not None and second is not None:
            mine, theirs = first.header["config"], second.header["config"]
            sections[f"{section}_b"] = {name: value for name, value in theirs.items() if value != mine[name]}
    one = found["G_A"].header
    return Config().change(data={"channels_a": one["in_channels"], "channels_b": one["out_channels"]}, **sections)


def _header(role: str, network: RecognisedNetwork, config: Config) -> dict[str, Any]:
    facts = {"role": role, "weights": "raw", "method": "imported", "image_size": config.data.crop_size}
    header = {**network.header, **facts, "images_seen": 0}
    if network.is_generator:
        header["output"] = asdict(PixelFormat(channels=network.header["out_channels"]))
    else:
        header["judges"] = "B" if role == "D_A" else "A"
    return {**header, "input": asdict(PixelFormat(channels=network.header["in_channels"]))}
