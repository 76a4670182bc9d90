"""Checkpoints: one folder each, written aside and renamed into place, verified by checksum before use.

    RUN/checkpoints/000012000/G_A.safetensors        weights, with the network's configuration in the header
                              G_A.ema.safetensors    their moving average
                              state.safetensors      everything else that training computed
                              clock.json             what a clock measured: seconds, speed
                              manifest.json          images seen, and the SHA-256 of every file
    RUN/checkpoints/best.json                        which one scored best

Nothing is pickled, so loading a file never runs code from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

FORMAT = "velogan-network"


def save_checkpoint(
    run: Path,
    *,
    images: int,
    networks: Mapping[str, nn.Module],
    headers: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any],
    clock: Mapping[str, Any],
) -> Path:
    """Writes the checkpoint at `images` seen and returns its folder.

    `networks` are stored one file each, by name (`G_A`, `G_A.ema`), with `headers[name]` as their description;
    `state` is nested dicts, lists, tensors and plain values, a function of configuration and data alone; `clock`
    holds plain values that are not. A crash at any instant leaves the earlier ones whole.
    """
    folder = run / "checkpoints" / f"{images:09d}"
    aside = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    files = {
        f"{name}.safetensors": _encode(net.state_dict(), {"format": FORMAT, **headers[name]})
        for name, net in networks.items()
    }
    tensors: dict[str, Tensor] = {}
    files["state.safetensors"] = _encode_tree(state, tensors)
    files["clock.json"] = json.dumps(clock).encode()
    manifest = {"images": images, "files": {}}
    for name, content in files.items():
        _write_synced(aside / name, content)
        manifest["files"][name] = hashlib.sha256(content).hexdigest()
    _write_synced(aside / "manifest.json", json.dumps(manifest, indent=1).encode())
    _sync_folder(aside)
    if folder.exists():  # the same place reached again after falling back to an earlier one
        shutil.rmtree(folder)
    os.rename(aside, folder)
    _sync_folder(folder.parent)
    return folder


def load_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The `state` and the `clock` that `save_checkpoint` was given."""
    with _open(folder / "state.safetensors") as file:
        tree = json.loads(file.metadata()["tree"])
        state = _decode_tree(tree, file.get_tensor)
    return state, json.loads((folder / "clock.json").read_text())


def load_weights(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A network file's description and weights. ValueError where it is no such file."""
    with _open(file) as opened:
        header = json.loads((opened.metadata() or {}).get("velogan", "{}"))
        if header.get("format") != FORMAT:
            raise ValueError(f"{file} holds no velogan network: name a G_A.safetensors from a run's checkpoints")
        return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)


def list_checkpoints(run: Path) -> list[Path]:
    """Finished checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    found = [path for path in folder.glob("[0-9]*") if path.name.isdigit()] if folder.is_dir() else []
    return sorted((path for path in found if (path / "manifest.json").is_file()), key=lambda path: int(path.name))


def find_checkpoint(run: Path, which: Literal["last", "best"] = "last") -> Path:
    """The newest checkpoint whose files match their checksums, or the best one. ValueError where there is none."""
    if which == "best":
        best = read_best(run)
        if best is not None:
            return run / "checkpoints" / best["checkpoint"]
        raise ValueError(f"{run} has no best checkpoint: it is chosen by a score during training; use last")
    for folder in reversed(list_checkpoints(run)):
        if not damage(folder):
            return folder
    raise ValueError(f"{run} holds no complete checkpoint: train it first, or name another run folder")


def damage(folder: Path) -> str:
    """What is wrong with the checkpoint in `folder`: a sentence, or nothing."""
    try:
        for name, expected in json.loads((folder / "manifest.json").read_text())["files"].items():
            with open(folder / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return f"{folder / name} does not match its checksum"
    except (OSError, ValueError, KeyError) as error:
        return f"{folder} cannot be read: {error}"
    return ""


def mark_best(run: Path, *, checkpoint: Path, name: str, score: float) -> None:
    """Remembers `checkpoint` as the best by the score called `name`."""
    content = {"checkpoint": checkpoint.name, "name": name, "score": score}
    write_text(run / "checkpoints" / "best.json", json.dumps(content))


def read_best(run: Path) -> dict[str, Any] | None:
    """`checkpoint`, `name` and `score` of the best checkpoint; None where none was marked or it is gone."""
    try:
        best = json.loads((run / "checkpoints" / "best.json").read_text())
        return best if (run / "checkpoints" / best["checkpoint"] / "manifest.json").is_file() else None
    except (OSError, ValueError, KeyError):
        return None


def remove_old(run: Path, *, keep: int) -> None:
    """Leaves the newest `keep` checkpoints and the best one, and no remains of interrupted writes."""
    kept = {path.name for path in list_checkpoints(run)[-keep:]}
    best = read_best(run)
    if best is not None:
        kept.add(best["checkpoint"])
    for path in list_checkpoints(run):
        if path.name not in kept:
            shutil.rmtree(path)
    for path in (run / "checkpoints").glob(".writing-*"):
        shutil.rmtree(path, ignore_errors=True)


def digest(folder: Path) -> str:
    """SHA-256 over everything that training computed: networks, averages, optimizers, pool; not the clock."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    lines = [f"{name}:{files[name]}\n" for name in sorted(files) if name != "clock.json"]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """Writes a small file so that readers see the old or the new content, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    _write_synced(aside, text.encode())
    os.replace(aside, path)


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as safetensors: {error}") from error


def _encode(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    return save({k: _plain(v) for k, v in tensors.items()}, {"velogan": json.dumps(header, sort_keys=True)})


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous(memory_format=torch.contiguous_format)


def _encode_tree(state: Any, tensors: dict[str, Tensor]) -> bytes:
    tree = json.dumps(_skeleton(state, tensors), sort_keys=True)
    return save(tensors, {"tree": tree})


def _skeleton(node: Any, tensors: dict[str, Tensor]) -> Any:
    """`node` as JSON, with tensors moved out and numbered; dicts as pairs, since their keys may be numbers."""
    match node:
        case Tensor():
            tensors[f"{len(tensors):05d}"] = _plain(node).clone()
            return {"tensor": f"{len(tensors) - 1:05d}"}
        case Mapping():
            return {"dict": [[key, _skeleton(value, tensors)] for key, value in node.items()]}
        case list() | tuple():
            return {"list": [_skeleton(value, tensors) for value in node]}
        case None | bool() | int() | float() | str():
            return {"value": node}
    raise TypeError(f"cannot store a {type(node).__name__} in a checkpoint")


def _decode_tree(node: dict[str, Any], tensor: Any) -> Any:
    (kind, content), *_ = node.items()
    match kind:
        case "tensor":
            return tensor(content)
        case "dict":
            return {key: _decode_tree(value, tensor) for key, value in content}
        case "list":
            return [_decode_tree(value, tensor) for value in content]
    return content


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
