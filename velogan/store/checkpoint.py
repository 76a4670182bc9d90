"""Checkpoints: one folder each, written under a hidden name, renamed into place, verified by checksum before use.

    RUN/checkpoints/000012000/G_A.safetensors        weights, with the network's configuration in the header
                              G_A.ema.safetensors    their moving average
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

_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Exceptions from reading a file that velogan did not write."""

_MOST_JSON = 2**24
"""The most bytes of a JSON file in a checkpoint; ours have a few thousand."""


def save_checkpoint(
    run: Path,
    *,
    images: int,
    networks: Mapping[str, nn.Module],
    headers: Mapping[str, Mapping[str, Any]],
    state: Mapping[str, Any] | None,
    clock: Mapping[str, Any] | None,
) -> Path:
    """Writes the checkpoint at `images` seen and returns its folder.

    `networks` are stored one file each, by name (`G_A`, `G_A.ema`), with `headers[name]` as their description;
    `state` is nested dicts, lists, tensors and plain values that depend on configuration and data alone; `clock` holds
    plain values that depend on the machine, too; both are None where networks are kept that no run of ours has trained
    (`weights_only`). A crash at any instant leaves the earlier checkpoints whole, and so
    does an OSError, which says how much space is needed.
    """
    folder = run / "checkpoints" / f"{images:09d}"
    files = {
        f"{name}.safetensors": _encode(net.state_dict(), {"format": FORMAT, **headers[name]})
        for name, net in networks.items()
    }
    if state is not None:
        files["state.safetensors"] = _encode_tree(state, {})
    if clock is not None:
        files["clock.json"] = json.dumps(clock).encode()
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files["manifest.json"] = json.dumps({"images": images, "files": sums}, indent=1).encode()
    aside = folder.with_name(f".writing-{folder.name}")
    try:
        remove_remains(run, ".writing-*")  # folders that a killed process left take space that is needed now
        aside.mkdir(parents=True)
        for name, content in files.items():
            _write_synced(aside / name, content)
        _sync_folder(aside)
        if folder.exists():
            set_aside(folder)  # the same position again: removed when the new one is in place
        os.rename(aside, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            put_back(run)
        size = sum(map(len, files.values())) / 1e6
        text = (
            f"{error.strerror} while saving a checkpoint of {size:.1f} MB at {pluralize(images, 'image')}: make room, "
            "or make it writable, and the same command goes on from the checkpoint before"
        )
        raise OSError(error.errno, text, str(folder.parent)) from error
    return folder


def save_network(file: Path, state: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Writes one network as the checkpoints have it, with `header` as its description."""
    _write_synced(file, _encode(state, {**header, "format": FORMAT}))


def write_manifest(folder: Path, *, images: int) -> None:
    """Makes a checkpoint of a folder with networks alone."""
    sums = {file.name: sha256(file) for file in sorted(folder.glob("*.safetensors"))}
    write_text(folder / "manifest.json", json.dumps({"images": images, "files": sums}, indent=1))


def load_state(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The `state` and the `clock` that `save_checkpoint` was given. ValueError if the files hold something else."""
    path = folder / "state.safetensors"
    with _open(path) as file:
        try:
            state = _decode_tree(json.loads(file.metadata()["tree"]), file.get_tensor)
        except (*_NOT_OURS, SafetensorError) as error:
            raise ValueError(f"{path} holds no state of a training run ({_short(error)})") from error
    try:
        clock = _read_json(folder / "clock.json")
    except _NOT_OURS as error:
        raise ValueError(f"{folder / 'clock.json'} holds no times of a training run ({_short(error)})") from error
    return state, clock


def weights_only(folder: Path) -> bool:
    """Whether a checkpoint holds networks and no state of a training: they come from elsewhere."""
    return not (folder / "state.safetensors").exists()


def imported(run: Path) -> bool:
    """Whether a run folder has no checkpoints but such: no training of ours has begun."""
    found = list_checkpoints(run)
    return bool(found) and all(map(weights_only, found))


def load_weights(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A network file's description and weights. ValueError if it is not a network file."""
    with _open(file) as opened:
        try:
            header = json.loads((opened.metadata() or {}).get("velogan", "{}"))
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError(f"{file} holds no velogan network: name a G_A.safetensors from a run's checkpoints")
        return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first, with damaged ones, without incomplete ones."""
    folder = run / "checkpoints"
    found = [path for path in folder.glob("[0-9]*") if path.name.isdecimal()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def newest_whole(run: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint whose files match their checksums, and what is wrong with each newer one.

    OSError if there are checkpoints and all are damaged.
    """
    broken: dict[Path, str] = {}
    for folder in reversed(list_checkpoints(run)):
        wrong = damage(folder)
        if not wrong:
            return folder, broken
        broken[folder] = wrong
    if broken:
        raise OSError(
            f"{run / 'checkpoints'} holds no checkpoint that is whole ({'; '.join(broken.values())}): nothing was "
            "removed; put a copy of one there, or begin a new run folder"
        )
    return None, {}


def find_checkpoint(run: Path, which: Literal["last", "best"] | None = "last") -> Path:
    """The newest checkpoint whose files match their checksums, or the best one.

    None is the one to use: the newest, or the best where the newest is much worse (`mark_best`).
    A logged warning names damaged newer ones. ValueError if there is none; OSError if all of them, or the best, are
    damaged.
    """
    if which not in ("last", "best", None):
        raise ValueError(f"checkpoint={which}: choose last or best")
    if which == "best" or (which is None and taken(run) == "best"):
        best = read_best(run)
        if best is None:
            raise ValueError(
                f"{run} has no best checkpoint: it is chosen on training pictures that data.validation holds out, and "
                "this run holds none out, or has not scored a checkpoint on them yet; use last"
            )
        folder = run / "checkpoints" / best["checkpoint"]
        if wrong := damage(folder):
            raise OSError(f"{wrong}: it was the best checkpoint; use last, or put a copy of it there")
        return folder
    folder, broken = newest_whole(run)
    if folder is None:
        raise ValueError(f"{run} holds no complete checkpoint: train it first, or name another run folder")
    for wrong in broken.values():
        logging.getLogger(__name__).warning("%s; checkpoint %s is used", wrong, folder.name)
    return folder


def damage(folder: Path) -> str:
    """What is wrong with the checkpoint in `folder`, as a sentence; empty if it is whole."""
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
    except _NOT_OURS:
        return f"{folder / 'manifest.json'} is not a checkpoint's manifest"
    return ""


def mark_best(run: Path, *, checkpoint: Path, name: str, score: float, on: str, instead_of: Path | None = None) -> None:
    """Records `checkpoint` as the best by the score `name`; `on` describes the pictures it was measured on.

    It is to be used `instead_of` that one, as long as that is the newest.
    """
    content = {"checkpoint": checkpoint.name, "name": name, "score": score, "on": on}
    instead = {"instead_of": instead_of.name} if instead_of else {}
    write_text(run / "checkpoints" / "best.json", json.dumps(content | instead))


def taken(run: Path) -> Literal["last", "best"]:
    """Which checkpoint is used where nobody chooses: the best one where the newest is much worse and it is whole."""
    best, newest = read_best(run), list_checkpoints(run)[-1:]
    instead = best is not None and newest and best.get("instead_of") == newest[0].name
    return "best" if best and instead and not damage(run / "checkpoints" / best["checkpoint"]) else "last"


def read_best(run: Path) -> dict[str, Any] | None:
    """`checkpoint`, `name`, `score` and `on` of the best checkpoint; None if none was marked or it is gone."""
    try:
        best = _read_json(run / "checkpoints" / "best.json")
        return best if best["checkpoint"] in [folder.name for folder in list_checkpoints(run)] else None
    except (OSError, *_NOT_OURS):
        return None


def set_aside(folder: Path) -> None:
    """Hides a damaged or replaced checkpoint. The next `remove_old` removes it; `put_back` undoes this."""
    hidden = folder.with_name(f".aside-{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)


def put_back(run: Path) -> None:
    """Restores checkpoints that were set aside for a new one that was never completed, as after a crash."""
    for hidden in (run / "checkpoints").glob(".aside-*"):
        folder = hidden.with_name(hidden.name.removeprefix(".aside-"))
        if not folder.exists():
            os.rename(hidden, folder)


def remove_old(run: Path, *, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints and the best one, and remains of interrupted writes."""
    kept = {path.name for path in list_checkpoints(run)[-keep:]}
    best = read_best(run)
    if best is not None:
        kept.add(best["checkpoint"])
    for path in list_checkpoints(run):
        if path.name not in kept:
            shutil.rmtree(path)
    remove_remains(run, ".writing-*")
    remove_remains(run, ".aside-*")


def remove_remains(run: Path, pattern: str) -> None:
    """Removes hidden folders of interrupted or replaced checkpoints."""
    for path in (run / "checkpoints").glob(pattern):
        shutil.rmtree(path, ignore_errors=True)


def digest(folder: Path) -> str:
    """SHA-256 over all that training computed: networks, averages, optimizers, pools; not the clock."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    lines = [f"{name}:{files[name]}\n" for name in sorted(files) if name != "clock.json"]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _open(file: Path) -> Any:
    try:
        if not file.is_file():  # opening a pipe would block
            raise OSError("there is no such file")
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as safetensors: {_short(error)}") from error


def _read_json(file: Path) -> dict[str, Any]:
    """The object in a small JSON file. Raises OSError or one of `_NOT_OURS`."""
    size = file.stat().st_size if file.is_file() else _MOST_JSON + 1
    if size > _MOST_JSON:
        raise ValueError("not a regular file, or too large")
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} instead of names and values")
    return content


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}" if isinstance(error, KeyError) else str(error)[:200]


def _encode(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    return save({k: _plain(v) for k, v in tensors.items()}, {"velogan": json.dumps(header, sort_keys=True)})


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous(memory_format=torch.contiguous_format)


def _encode_tree(state: Any, tensors: dict[str, Tensor]) -> bytes:
    tree = json.dumps(_skeleton(state, tensors), sort_keys=True)
    return save(tensors, {"tree": tree})


def _skeleton(node: Any, tensors: dict[str, Tensor]) -> Any:
    """`node` as JSON. Tensors move to `tensors`, by number; dicts become pairs, as their keys may be numbers."""
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
    ((kind, content),) = node.items()
    match kind:
        case "tensor":
            return tensor(content)
        case "dict":
            return {key: _decode_tree(value, tensor) for key, value in content}
        case "list":
            return [_decode_tree(value, tensor) for value in content]
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
