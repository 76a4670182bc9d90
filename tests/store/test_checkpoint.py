from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from velogan.files import write_text
from velogan.store.checkpoint import (
    digest,
    find_checkpoint,
    find_corruption,
    list_checkpoints,
    load_state,
    load_weights,
    mark_best,
    read_best,
    remove_old,
    save_checkpoint,
)

HEADER = {"role": "G_A", "config": {"channels": 4, "norm": "instance"}}


def _save(run: Path, images: int, *, seconds: float = 1.5, value: float | None = None) -> Path:
    net = nn.Linear(2, 2)
    nn.init.constant_(net.weight, images if value is None else value)
    nn.init.zeros_(net.bias)
    return save_checkpoint(
        run,
        images=images,
        networks={"G_A": net, "G_A.ema": net},
        headers={"G_A": HEADER, "G_A.ema": HEADER},
        state={"images": images, "pool": torch.full((3,), images)},
        clock={"seconds": seconds},
    )


def test_restores_nested_state(tmp_path: Path):
    tensors = {
        "float": torch.randn(2, 3),
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "half": torch.randn(3).bfloat16(),
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
    }
    shared = torch.ones(2)
    state = {
        "tensors": tensors,
        "aliases": [shared, shared, shared.view(2, 1)],
        "optimizer": {0: {"step": torch.tensor(3.0)}, 1: {"lr": 1e-4}},
        "values": [None, True, 3, 0.1, "text", [], {}, ["tensor", {"dict": 1}]],
    }
    folder = save_checkpoint(tmp_path, images=1, networks={}, headers={}, state=state, clock={"seconds": 0.25})
    loaded, clock = load_state(folder)
    for name, value in tensors.items():
        assert torch.equal(loaded["tensors"][name], value)
        assert loaded["tensors"][name].dtype == value.dtype
    assert [tuple(value.shape) for value in loaded["aliases"]] == [(2,), (2,), (2, 1)]
    assert list(loaded["optimizer"]) == [0, 1]  # keys stay numbers
    assert torch.equal(loaded["optimizer"][0]["step"], torch.tensor(3.0))
    assert loaded["optimizer"][1] == {"lr": 1e-4}
    assert loaded["values"] == state["values"]
    assert clock == {"seconds": 0.25}


def test_rejects_objects_in_state(tmp_path: Path):
    with pytest.raises(TypeError, match=r"cannot store a .*Path in a checkpoint"):
        save_checkpoint(tmp_path, images=1, networks={}, headers={}, state={"a": Path()}, clock={})
    assert list_checkpoints(tmp_path) == []


def test_weights_files_describe_themselves(tmp_path: Path):
    header, weights = load_weights(_save(tmp_path, 12) / "G_A.safetensors")
    assert header == {"format": "velogan-network", **HEADER}
    assert torch.equal(weights["weight"], torch.full((2, 2), 12.0))
    with safe_open(tmp_path / "checkpoints" / "000000012" / "G_A.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["velogan"])["config"]["channels"] == 4  # as any other tool reads it


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("checkpoints/000000012/state.safetensors", "network of velogan"),
        ("text.safetensors", "cannot be read as safetensors"),
        ("absent.safetensors", "cannot be read as safetensors"),
    ],
)
def test_rejects_other_files(file: str, message: str, tmp_path: Path):
    _save(tmp_path, 12)
    (tmp_path / "text.safetensors").write_text("nothing of the kind")
    with pytest.raises(ValueError, match=message):
        load_weights(tmp_path / file)


def test_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = _save(tmp_path, 12)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    assert load_state(find_checkpoint(tmp_path))[0]["images"] == 12
    assert load_weights(folder / "G_A.safetensors")[0]["role"] == "G_A"


class _Crash(BaseException):
    """Nothing catches it, like a kill."""


def _crash_in_call(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    count = itertools.count(1)

    def guarded(call: Callable) -> Callable:
        def wrapped(*args: Any, **settings: Any) -> Any:
            if next(count) >= number:
                raise _Crash
            return call(*args, **settings)

        return wrapped

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))


def test_a_crash_between_any_two_operations_leaves_a_valid_checkpoint(tmp_path: Path):
    survivors = set()
    for number in itertools.count(1):
        run = tmp_path / str(number)
        for images in (1, 2):
            _save(run, images)
        try:
            with pytest.MonkeyPatch.context() as patch:
                _crash_in_call(patch, number)
                mark_best(run, checkpoint=_save(run, 3), name="loss", score=0.5, scored_on="2 apples")
                remove_old(run, keep=1)
        except _Crash:
            finished = False
        else:
            finished = True
        folder = find_checkpoint(run)
        images = int(folder.name)
        assert find_corruption(folder) == ""
        assert load_state(folder)[0]["images"] == images
        assert torch.equal(load_weights(folder / "G_A.safetensors")[1]["weight"], torch.full((2, 2), float(images)))
        if survivors:
            assert images >= max(survivors)  # a checkpoint in place is never lost again
        survivors.add(images)
        _save(run, 4)  # and the next one goes through
        remove_old(run, keep=1)
        assert find_checkpoint(run).name == "000000004"
        assert not list((run / "checkpoints").glob(".writing*"))
        if finished:
            break
    assert survivors == {2, 3}
    assert number > 15


@pytest.mark.parametrize("file", ["G_A.ema.safetensors", "state.safetensors", "clock.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_ignores_damaged_checkpoints(file: str, damage: str, tmp_path: Path):
    _save(tmp_path, 1)
    victim = _save(tmp_path, 2) / file
    content = victim.read_bytes()
    if damage == "changed":
        victim.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "cut":
        victim.write_bytes(content[: len(content) // 2])
    else:
        victim.unlink()
    if (file, damage) == ("manifest.json", "changed"):  # still the truth about the files
        victim.write_text("{}")
    assert find_corruption(victim.parent) != ""
    assert find_checkpoint(tmp_path).name == "000000001"
    whole = _save(tmp_path, 2)  # training from 1 comes by again
    assert find_corruption(whole) == ""
    assert find_checkpoint(tmp_path).name == "000000002"


def test_rejects_runs_without_a_checkpoint(tmp_path: Path):
    with pytest.raises(ValueError, match="contains no complete checkpoint: train it first"):
        find_checkpoint(tmp_path)
    _save(tmp_path, 1)
    with pytest.raises(ValueError, match="has no best checkpoint"):
        find_checkpoint(tmp_path, "best")


def test_keeps_the_newest_and_the_best(tmp_path: Path):
    mark_best(tmp_path, checkpoint=_save(tmp_path, 5), name="loss", score=0.25, scored_on="2 apples")
    for images in (10, 100, 1000):
        _save(tmp_path, images)
        remove_old(tmp_path, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000000005", "000000100", "000001000"]
    assert read_best(tmp_path) == {"checkpoint": "000000005", "name": "loss", "score": 0.25, "on": "2 apples"}
    assert find_checkpoint(tmp_path, "best").name == "000000005"
    shutil.rmtree(tmp_path / "checkpoints" / "000000005")
    assert read_best(tmp_path) is None


def test_digest_ignores_the_clock(tmp_path: Path):
    first = digest(_save(tmp_path / "a", 7))
    assert digest(_save(tmp_path / "b", 7, seconds=99.0)) == first
    assert digest(_save(tmp_path / "c", 8, value=7.0)) != first  # the state says 8 images
    assert digest(_save(tmp_path / "d", 7, value=7.5)) != first


def test_replaces_text_atomically(tmp_path: Path):
    write_text(tmp_path / "file", "old")
    with pytest.MonkeyPatch.context() as patch:
        _crash_in_call(patch, 1)
        with pytest.raises(_Crash):
            write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
