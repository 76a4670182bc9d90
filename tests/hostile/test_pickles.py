"""Files of torch.save that someone else has made: nothing of them is run, and each is refused with a reason."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from velogan.cli import main
from velogan.networks.pickles import read_tensors


class _Evil:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def _refusal(file: Path) -> str:
    with pytest.raises(ValueError, match=str(file)) as caught:
        read_tensors(file)
    return str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_calls_something_is_refused_and_named(
    legacy: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, mark = tmp_path / "evil.pth", tmp_path / "mark"
    torch.save({"model.0.weight": _Evil(mark)}, file, _use_new_zipfile_serialization=not legacy)
    assert "no code of it was run: it requests posix.system" in _refusal(file)
    assert main(["import", str(file), str(tmp_path / "run")]) == 2
    assert "posix.system" in capsys.readouterr().err
    assert not mark.exists()
    assert not (tmp_path / "run").exists()
    file.write_bytes(pickle.dumps(_Evil(mark), protocol=2))
    assert "system" in _refusal(file)
    assert not mark.exists()


def test_rejects_damaged_and_misused_files(tmp_path: Path):
    file = tmp_path / "some.pth"
    torch.save({"a": torch.zeros(1000)}, file)
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04", whole[:-200], whole[:100], b"\x80\x02" + b"\x00" * 50, b"<html>" * 9):
        file.write_bytes(content)
        assert "or is damaged" in _refusal(file)
    for value, message in (
        ([torch.zeros(1)], "contains a list"),
        ({}, "contains no tensors"),
        ({"weights": {"a": torch.zeros(1)}}, "'weights' is a dict"),
        ({"state_dict": {}}, "contains no tensors"),
        ({3: torch.zeros(1)}, "'3' is"),
        ({"a": torch.zeros(3, 3).to_sparse()}, "not strided"),
        ({"a": torch.zeros(1).expand(2**40)}, "more than 4 GiB"),
    ):
        torch.save(value, file)
        assert message in _refusal(file)


def test_a_bomb_is_not_unpacked(tmp_path: Path):
    file = tmp_path / "bomb.pth"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**7))
    assert "is compressed" in _refusal(file)
    with file.open("wb") as opened:
        opened.truncate(5 * 2**30)  # sparse: takes no room
    assert "has 5.0 GiB" in _refusal(file)
