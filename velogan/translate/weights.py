"""Load networks by role from a run, a checkpoint, a file, or files of the reference implementation."""

from __future__ import annotations

import re
from pathlib import Path

from velogan.networks.pickles import read_tensors
from velogan.networks.reference import RecognisedNetwork, recognise
from velogan.store.checkpoint import find_checkpoint, list_checkpoints, load_weights

_FILE = re.compile(r"(?P<epoch>latest|\d+)_net_(?P<role>[GD](?:_[AB])?)\.pth")


def load_networks(path: Path) -> dict[str, RecognisedNetwork]:
    """Load networks by role (G_A, D_B): with raw weights from a run's last checkpoint, or from weights files.

    Raises ValueError if there are none.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: name a run folder, a .safetensors or .pth file, or a folder of those")
    if path.is_dir() and ((path / "manifest.json").is_file() or list_checkpoints(path)):
        folder = path if (path / "manifest.json").is_file() else find_checkpoint(path)
        files = [file for file in sorted(folder.glob("*.safetensors")) if file.stem.isidentifier()]
        loaded = [load_weights(file) for file in files if file.stem != "state"]
        return {str(header.get("role")): RecognisedNetwork(header, state) for header, state in loaded}
    if path.suffix == ".safetensors":
        header, state = load_weights(path)
        return {str(header.get("role")): RecognisedNetwork(header, state)}
    return load_reference_folder(path) if path.is_dir() else load_reference_file(path)


def load_reference_file(file: Path) -> dict[str, RecognisedNetwork]:
    """Load a reference file; return its network by role: G_A or D_A, or G_B or D_B if the file's name says so."""
    network = recognise(read_tensors(file), file=file)
    is_b = re.search(r"[GD]_B\.pth$", file.name) is not None
    return {f"{'G' if network.is_generator else 'D'}_{'B' if is_b else 'A'}": network}


def load_reference_folder(folder: Path) -> dict[str, RecognisedNetwork]:
    """Load the networks in the reference's folder `checkpoints/NAME`: its `latest` files, else its last epoch's.

    A single generator (`latest_net_G.pth`) has the direction a2b. Raises ValueError if there are no networks.
    """
    matches = [match for file in folder.iterdir() if (match := _FILE.fullmatch(file.name))]
    if not matches:
        raise ValueError(f"{folder} contains no EPOCH_net_G_A.pth or latest_net_G.pth: name a folder checkpoints/NAME")
    chosen = max({match["epoch"] for match in matches}, key=lambda epoch: 10**9 if epoch == "latest" else int(epoch))
    networks: dict[str, RecognisedNetwork] = {}
    for role in sorted(match["role"] for match in matches if match["epoch"] == chosen):
        file = folder / f"{chosen}_net_{role}.pth"
        network = recognise(read_tensors(file), file=file)
        if network.is_generator is not role.startswith("G"):
            raise ValueError(f"{file} contains a {network.header['network']}, but its name says otherwise: rename it")
        networks[role if "_" in role else f"{role}_A"] = network
    return networks
