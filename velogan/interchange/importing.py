"""Import of the reference implementation's networks into a run folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from velogan.config import Config, to_yaml
from velogan.data.pictures.values import PixelFormat
from velogan.files import __version__, write_text
from velogan.networks.build import build_network
from velogan.networks.reference import RecognisedNetwork, to_instance_norm
from velogan.store.checkpoint import save_checkpoint
from velogan.store.record import write_record
from velogan.translate.weights import load_reference_file, load_reference_folder


def import_reference(source: Path, run: Path, *, picture_statistics: bool = False) -> dict[str, Any]:
    """Create the run folder `run` from a `.pth` file or a folder `checkpoints/NAME`; return `run` and `networks`.

    A file becomes the direction a2b; a folder with both generators becomes a run that training can start from.
    `picture_statistics`: batch norm of generators uses statistics of each image, not the running statistics.
    Raises ValueError if `source` contains no such networks or `run` is not empty.
    """
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise ValueError(f"{run} exists already: choose a new folder")
    if not source.exists():
        raise ValueError(f"{source} does not exist: give a .pth file or a folder checkpoints/NAME")
    networks = _load_usable(source)
    if picture_statistics:
        networks = _use_picture_statistics(networks, source)
    config = _build_config(networks)
    nets = {role: build_network(network.header) for role, network in networks.items()}
    for role, net in nets.items():
        net.load_state_dict(networks[role].state)
    headers = {role: _build_header(role, network, config) for role, network in networks.items()}
    save_checkpoint(run, images=0, networks=nets, headers=headers, state=None, clock=None)
    write_text(run / "config.yaml", to_yaml(config))
    origin = {"imported": str(source), "picture_statistics": picture_statistics}
    write_record(run, {"velogan": __version__, **origin})
    records = [
        {"role": role, "network": network.description, "parameters": network.num_parameters}
        for role, network in networks.items()
    ]
    return {"run": str(run), "networks": records}


def _load_usable(source: Path) -> dict[str, RecognisedNetwork]:
    """Load the generators, and the discriminators whose input channels match the generators' outputs."""
    if source.is_dir():
        networks = load_reference_folder(source)
    else:
        (network,) = load_reference_file(source).values()
        networks = {"G_A" if network.is_generator else "D_A": network}
    out_channels = {
        role[-1]: network.header["out_channels"] for role, network in networks.items() if network.is_generator
    }
    if not out_channels:
        raise ValueError(f"{source} contains only discriminators, which cannot translate: give a generator or a folder")
    if set(out_channels) == {"B"}:
        raise ValueError(f"{source} contains G_B without G_A: give the file of G_B itself, which then becomes a2b")
    # discriminators of pix2pix also take the input image, which those of velogan do not
    return {
        role: network
        for role, network in networks.items()
        if network.is_generator or network.header["in_channels"] == out_channels.get(role[-1])
    }


def _use_picture_statistics(networks: dict[str, RecognisedNetwork], source: Path) -> dict[str, RecognisedNetwork]:
    norms = {role: network.header["config"]["norm"] for role, network in networks.items() if network.is_generator}
    if "batch" not in norms.values():
        raise ValueError(
            f"--picture-statistics is for generators with batch norm, and {source} has norm "
            f"{', '.join(sorted(set(norms.values())))}: remove it"
        )
    return {
        role: to_instance_norm(network) if norms.get(role) == "batch" else network for role, network in networks.items()
    }


def _build_config(networks: dict[str, RecognisedNetwork]) -> Config:
    sections: dict[str, Any] = {}
    for kind, section in (("G", "generator"), ("D", "discriminator")):
        first, second = (networks.get(f"{kind}_{suffix}") for suffix in "AB")
        if first is not None:
            sections[section] = first.header["config"]
        if first is not None and second is not None:
            values, values_b = first.header["config"], second.header["config"]
            sections[f"{section}_b"] = {name: value for name, value in values_b.items() if value != values[name]}
    header = networks["G_A"].header
    return Config().change(data={"channels_a": header["in_channels"], "channels_b": header["out_channels"]}, **sections)


def _build_header(role: str, network: RecognisedNetwork, config: Config) -> dict[str, Any]:
    facts = {"role": role, "weights": "raw", "method": "imported", "image_size": config.data.crop_size}
    header = {**network.header, **facts, "images_seen": 0}
    if network.is_generator:
        header["output"] = asdict(PixelFormat(channels=network.header["out_channels"]))
    else:
        header["judges"] = "B" if role == "D_A" else "A"
    return {**header, "input": asdict(PixelFormat(channels=network.header["in_channels"]))}
