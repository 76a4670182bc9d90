"""The networks that a path holds, by name: a run, a checkpoint, one file, or files of the reference implementation."""

from __future__ import annotations

import re
from pathlib import Path

from velogan.networks.pickles import read_tensors
from velogan.networks.reference import Recognised, recognise
from velogan.store.checkpoint import find_checkpoint, list_checkpoints, load_weights

_FILE = re.compile(r"(?P<epoch>latest|\d+)_net_(?P<role>[GD](?:_[AB])?)\.pth")


def load_networks(path: Path) -> dict[str, Recognised]:
    """Networks by role (G_A, D_B): the raw ones of a run's last checkpoint, or those of the reference's files.

    ValueError where there are none.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: name a run folder, a .safetensors or .pth file, or a folder of those")
    if path.is_dir() and ((path / "manifest.json").is_file() or list_checkpoints(path)):
        folder = path if (path / "manifest.json").is_file() else find_checkpoint(path)
        names = [file for file in sorted(folder.glob("*.safetensors")) if file.stem.isidentifier()]
        loaded = [load_weights(file) for file in names if file.stem != "state"]
        return {str(header.get("role")): Recognised(header, state) for header, state in loaded}
    if path.suffix == ".safetensors":
        header, state = load_weights(path)
        return {str(header.get("role")): Recognised(header, state)}
    return load_reference_folder(path) if path.is_dir() else load_reference_file(path)


def load_reference_file(file: Path) -> dict[str, Recognised]:
    """The network of one file of the reference implementation. Without a name that says otherwise it is of a2b."""
    network = recognise(read_tensors(file), file=file)
    b = bool(re.search(r"[GD]_B\.pth$", file.name))
    return {f"{'G' if network.generates else 'D'}_{'B' if b else 'A'}": network}


def load_reference_folder(folder: Path) -> dict[str, Recognised]:
    """The networks of a folder `checkpoints/NAME` of the reference implementation: `latest`, else the last epoch.

    The generator of one direction (`latest_net_G.pth`) is of a2b. ValueError where there is none.
    """
    names = [found for file in folder.iterdir() if (found := _FILE.fullmatch(file.name))]
    if not names:
        raise ValueError(f"{folder} holds no EPOCH_net_G_A.pth or latest_net_G.pth: name a folder checkpoints/NAME")
    chosen = max({found["epoch"] for found in names}, key=lambda epoch: 10**9 if epoch == "latest" else int(epoch))
    made: dict[str, Recognised] = {}
    for role in sorted(found["role"] for found in names if found["epoch"] == chosen):
        file = folder / f"{chosen}_net_{role}.pth"
        network = recognise(read_tensors(file), file=file)
        if network.generates is not role.startswith("G"):
            raise ValueError(f"{file} holds a {network.header['network']}, which its name does not say: rename it")
        made[role if "_" in role else f"{role}_A"] = network
    return made
