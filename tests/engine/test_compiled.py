from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from velogan.engine import compiled as room
from velogan.engine.compiled import compiled, compiler_missing


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_what_is_compiled_is_kept_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert compiled(nn.Identity(), cache=tmp_path) is not None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    compiled(nn.Identity(), cache=tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "elsewhere")


def test_what_compiling_lacks_is_named(monkeypatch: pytest.MonkeyPatch):
    found = {"g++": "/usr/bin/g++"}
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(room.shutil, "which", found.get)
    assert compiler_missing(torch.device("cpu")) == ""
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None)
    assert compiler_missing(torch.device("cuda")) == "Triton"
    found.clear()
    assert compiler_missing(torch.device("cpu")) == "a C++ compiler"
    monkeypatch.setenv("CXX", "c++")
    assert compiler_missing(torch.device("cpu")) == ""
