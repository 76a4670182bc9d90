from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from velogan.engine import compiled
from velogan.engine.compiled import compile_network, find_missing_compiler


def test_names_the_missing_compiler(monkeypatch: pytest.MonkeyPatch):
    programs = {"g++": "/usr/bin/g++"}
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiled.shutil, "which", programs.get)
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    assert find_missing_compiler(torch.device("cpu")) == ""
    assert find_missing_compiler(torch.device("cuda")) == "Triton"
    programs.clear()
    assert find_missing_compiler(torch.device("cpu")) == "a C++ compiler"
    monkeypatch.setenv("CXX", "c++")
    assert find_missing_compiler(torch.device("cpu")) == ""


class _Scaled(nn.Module):
    def __init__(self, by: float):
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by * x


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_many_networks_of_one_class_are_all_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    graphs, compile_by = [], torch.compile

    def record(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", lambda net, **kwargs: compile_by(net, backend=record, **kwargs))
    nets = [compile_network(_Scaled(number), cache=tmp_path) for number in range(6)]
    for side in (2, 3):
        assert [float(net(torch.ones(side)).sum()) for net in nets] == [number * side for number in range(6)]
    assert len(graphs) == 12
    torch._dynamo.reset()
