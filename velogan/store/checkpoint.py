"""Checkpoints: one folder each, written under a hidden name, renamed into place, verified by checksum before use.

    RUN/checkpoints/000012000/G_A.safetensors        weights, with the network's configuration in the header
                              G_A.ema.safetensors    moving average of the weights
                              state.safetensors      everything else that training computed
                              clock.json             measured times: seconds, speed
                              manifest.json          images seen, and the SHA-256 of every file
    RUN/checkpoints/best.json                        the checkpoint with the best score

Nothing is pickled, so loading a file never runs code from it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from velogan.files import pluralize, sha256, write_text

FORMAT = "velogan-network"

_PARSE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Exceptions from parsing a file that is damaged or was not written by velogan."""

_MAX_JSON_BYTES = 2**24
"""Maximum size of a JSON file in a checkpoint; those that velogan writes have a few thousand bytes."""


def save_checkpoint(
    run: Path,
    *,
    images: int,
    networks: Mapping[str, nn.Module],
    headers: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any] | None,
    clock: Mapping[str, Any] | None,
) -> Path:
    """Write the checkpoint of a run after `images` images and return its folder.

    `networks`: by name (`G_A`, `G_A.ema`), one file each; `headers[name]` is the description in its header.
    `state`: nested dicts, lists, tensors and plain values that depend on configuration and data alone.
    `clock`: plain values that depend on the machine too. Both are None for imported networks (`has_only_weights`).

    Earlier checkpoints stay valid, even if the process crashes at any instant. Raises OSError, with the space that is
    needed, if the checkpoint cannot be written.
    """
    folder = run / "checkpoints" / f"{images:09d}"
    files = {
        f"{name}.safetensors": _encode(net.state_dict(), {"format": FORMAT, **headers[name]})
        for name, net in networks.items()
    }
    if state is not None:
        tensors: dict[str, Tensor] = {}
        tree = json.dumps(_encode_node(state, tensors), sort_keys=True)
        files["state.safetensors"] = save(tensors, {"tree": tree})
    if clock is not None:
        files["clock.json"] = json.dumps(clock).encode()
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files["manifest.json"] = json.dumps({"images": images, "files": checksums}, indent=1).encode()
    tmp_folder = folder.with_name(f".writing-{folder.name}")
    try:
        remove_leftovers(run, ".writing-*")  # folders that a killed process left take space that is needed now
        tmp_folder.mkdir(parents=True)
        for name, content in files.items():
            _write_synced(tmp_folder / name, content)
        _sync_folder(tmp_folder)
        if folder.exists():
            hide_checkpoint(folder)  # the same number of images: replaced, and removed by the next `remove_old`
        os.rename(tmp_folder, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(tmp_folder, ignore_errors=True)
        with suppress(OSError):
            restore_hidden(run)
        size = sum(map(len, files.values())) / 1e6
        text = (
            f"{error.strerror} while saving a checkpoint of {size:.1f} MB at {pluralize(images, 'image')}: free some "
            "space or make it writable; the same command then resumes from the checkpoint before"
        )
        raise OSError(error.errno, text, str(folder.parent)) from error
    return folder


def save_network(file: Path, state: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write one network in the format of checkpoints, with `header` as its description."""
    _write_synced(file, _encode(state, {**header, "format": FORMAT}))


def write_manifest(folder: Path, *, images: int) -> None:
    """Write the manifest that turns a folder of network files into a checkpoint."""
    checksums = {file.name: sha256(file) for file in sorted(folder.glob("*.safetensors"))}
    write_text(folder / "manifest.json", json.dumps({"images": images, "files": checksums}, indent=1))


def load_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Load the `state` and the `clock` of a checkpoint. Raises ValueError if the files contain something else."""
    path = folder / "state.safetensors"
    with _open(path) as file:
        try:
            state = _decode_tree(json.loads(file.metadata()["tree"]), file.get_tensor)
        except (*_PARSE_ERRORS, SafetensorError) as error:
            raise ValueError(f"{path} contains no training state ({_shorten(error)})") from error
    try:
        clock = _read_json(folder / "clock.json")
    except _PARSE_ERRORS as error:
        raise ValueError(f"{folder / 'clock.json'} contains no times of a training run ({_shorten(error)})") from error
    return state, clock


def has_only_weights(folder: Path) -> bool:
    """Return whether a checkpoint has networks but no training state, for example after an import."""
    return not (folder / "state.safetensors").exists()


def is_imported(run: Path) -> bool:
    """Return whether all checkpoints of a run are imported networks, so that training has not started."""
    checkpoints = list_checkpoints(run)
    return bool(checkpoints) and all(map(has_only_weights, checkpoints))


def load_weights(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Load the description and weights of a network file. Raises ValueError if it is not a network file."""
    with _open(file) as opened:
        try:
            header = json.loads((opened.metadata() or {}).get("velogan", "{}"))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError(f"{file} contains no network of velogan: name a G_A.safetensors from a run's checkpoints")
        return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)


def list_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first; damaged ones too, but not those that were not written fully."""
    folder = run / "checkpoints"
    checkpoints = [path for path in folder.glob("[0-9]*") if path.name.isdecimal()] if folder.is_dir() else []
    return sorted(checkpoints, key=lambda path: int(path.name))


def latest_valid_checkpoint(run: Path) -> tuple[Path | None, dict[Path, str]]:
    """Return the newest checkpoint whose files match their checksums, and what is wrong with each newer one.

    The first is None if there are no checkpoints. Raises OSError if there are checkpoints and all are damaged.
    """
    damaged: dict[Path, str] = {}
    for folder in reversed(list_checkpoints(run)):
        problem = find_corruption(folder)
        if not problem:
            return folder, damaged
        damaged[folder] = problem
    if damaged:
        raise OSError(
            f"{run / 'checkpoints'} contains no valid checkpoint ({'; '.join(damaged.values())}): nothing was "
            "removed; put a copy of one there, or start a new run folder"
        )
    return None, {}


def find_checkpoint(run: Path, which: Literal["last", "best"] | None = "last") -> Path:
    """Return the newest checkpoint whose files match their checksums, or the best one.

    `which`: None means the newest, or the best if the newest is marked as much worse (`mark_best`). Damaged newer ones
    are logged. Raises ValueError if there is no such checkpoint, OSError if all of them, or the best one, are damaged.
    """
    if which not in ("last", "best", None):
        raise ValueError(f"checkpoint={which}: choose last or best")
    if which == "best" or (which is None and default_checkpoint(run) == "best"):
        best = read_best(run)
        if best is None:
            raise ValueError(
                f"{run} has no best checkpoint: it is chosen on training pictures that data.validation holds out, and "
                "this run has no held-out pictures, or has not scored a checkpoint on them yet; use last"
            )
        folder = run / "checkpoints" / best["checkpoint"]
        if problem := find_corruption(folder):
            raise OSError(f"{problem}: it was the best checkpoint; use last, or put a copy of it there")
        return folder
    folder, damaged = latest_valid_checkpoint(run)
    if folder is None:
        raise ValueError(f"{run} contains no complete checkpoint: train it first, or name another run folder")
    for problem in damaged.values():
        logging.getLogger(__name__).warning("%s; checkpoint %s is used", problem, folder.name)
    return folder


def find_corruption(folder: Path) -> str:
    """Return what is wrong with the checkpoint in `folder`, as a sentence; empty if it is valid."""
    try:
        files = _read_json(folder / "manifest.json")["files"]
        if not files or any(name in ("", ".", "..") or "/" in name or "\0" in name for name in files):
            raise ValueError("it names no files of its own folder")
        for name, expected in files.items():
            if not (folder / name).is_file():
                return f"{folder / name} is missing"
            if sha256(folder / name) != expected:
                return f"{folder / name} does not match its checksum"
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror}"
    except _PARSE_ERRORS:
        return f"{folder / 'manifest.json'} is not a checkpoint's manifest"
    return ""


def mark_best(
    run: Path, *, checkpoint: Path, name: str, score: float, scored_on: str, instead_of: Path | None = None
) -> None:
    """Record `checkpoint` as the best by the score `name`; `scored_on` describes the images that were scored.

    `instead_of`: a checkpoint that is much worse; while it is the newest, the best one is used by default.
    """
    content = {"checkpoint": checkpoint.name, "name": name, "score": score, "on": scored_on}
    content |= {"instead_of": instead_of.name} if instead_of else {}
    write_text(run / "checkpoints" / "best.json", json.dumps(content))


def default_checkpoint(run: Path) -> Literal["last", "best"]:
    """Return which checkpoint is used by default: the best if it is valid and the newest is marked as much worse."""
    best, newest = read_best(run), list_checkpoints(run)[-1:]
    is_replaced = best is not None and newest and best.get("instead_of") == newest[0].name
    return "best" if best and is_replaced and not find_corruption(run / "checkpoints" / best["checkpoint"]) else "last"


def read_best(run: Path) -> dict[str, Any] | None:
    """Read `checkpoint`, `name`, `score` and `on` of the best checkpoint; None if none is marked or it is gone."""
    try:
        best = _read_json(run / "checkpoints" / "best.json")
        return best if best["checkpoint"] in [folder.name for folder in list_checkpoints(run)] else None
    except (OSError, *_PARSE_ERRORS):
        return None


def hide_checkpoint(folder: Path) -> None:
    """Hide a damaged or replaced checkpoint. The next `remove_old` removes it; `restore_hidden` undoes this."""
    hidden = folder.with_name(f".aside-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)


def restore_hidden(run: Path) -> None:
    """Restore hidden checkpoints whose replacement was never completed, such as after a crash."""
    for hidden in (run / "checkpoints").glob(".aside-*"):
        folder = hidden.with_name(hidden.name.removeprefix(".aside-"))
        if not folder.exists():
            os.rename(hidden, folder)


def remove_old(run: Path, *, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and leftovers of interrupted writes."""
    retained = {path.name for path in list_checkpoints(run)[-keep:]}
    best = read_best(run)
    if best is not None:
        retained.add(best["checkpoint"])
    for path in list_checkpoints(run):
        if path.name not in retained:
            shutil.rmtree(path)
    remove_leftovers(run, ".writing-*")
    remove_leftovers(run, ".aside-*")


def remove_leftovers(run: Path, pattern: str) -> None:
    """Remove hidden folders of interrupted or replaced checkpoints whose names match `pattern`."""
    for path in (run / "checkpoints").glob(pattern):
        shutil.rmtree(path, ignore_errors=True)


def digest(folder: Path) -> str:
    """Return a SHA-256 of all that training computed (networks, averages, optimizers, pools), without the clock."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    lines = [f"{name}:{files[name]}\n" for name in sorted(files) if name != "clock.json"]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _open(file: Path) -> Any:
    try:
        if not file.is_file():  # opening a pipe would block
            raise OSError("there is no such file")
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as safetensors: {_shorten(error)}") from error


def _read_json(file: Path) -> dict[str, Any]:
    """Read the object in a small JSON file. Raises OSError or one of `_PARSE_ERRORS`."""
    size = file.stat().st_size if file.is_file() else _MAX_JSON_BYTES + 1
    if size > _MAX_JSON_BYTES:
        raise ValueError("not a regular file, or too large")
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} instead of names and values")
    return content


def _shorten(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}" if isinstance(error, KeyError) else str(error)[:200]


def _encode(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    on_host = {name: _to_host(tensor) for name, tensor in tensors.items()}
    return save(on_host, {"velogan": json.dumps(header, sort_keys=True)})


def _to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous(memory_format=torch.contiguous_format)


def _encode_node(node: Any, tensors: dict[str, Tensor]) -> Any:
    """Convert `node` to JSON values: tensors are moved to `tensors`, by number; dicts become lists of pairs."""
    match node:
        case Tensor():
            tensors[f"{len(tensors):05d}"] = _to_host(node).clone()
            return {"tensor": f"{len(tensors) - 1:05d}"}
        case Mapping():
            return {"dict": [[key, _encode_node(value, tensors)] for key, value in node.items()]}
        case list() | tuple():
            return {"list": [_encode_node(value, tensors) for value in node]}
        case None | bool() | int() | float() | str():
            return {"value": node}
    raise TypeError(f"cannot store a {type(node).__name__} in a checkpoint")


def _decode_tree(node: dict[str, Any], get_tensor: Any) -> Any:
    ((kind, content),) = node.items()
    match kind:
        case "tensor":
            return get_tensor(content)
        case "dict":
            return {key: _decode_tree(value, get_tensor) for key, value in content}
        case "list":
            return [_decode_tree(value, get_tensor) for value in content]
        case "value":
            return content
    raise ValueError(f"{kind!r} is not a kind of value")


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
