from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from velogan.config import Config
from velogan.engine.cudnn import measure_convolutions
from velogan.training import build
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine


@pytest.mark.parametrize(
    ("device", "one_size", "expected"),
    [("cuda", True, True), ("cuda:1", False, False), ("cpu", True, None), ("mps", True, None)],
)
def test_convolutions_are_measured_on_cuda_for_images_of_one_size(
    device: str, one_size: bool, expected: bool | None, monkeypatch: pytest.MonkeyPatch
):
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        measure_convolutions(torch.device(device), one_size=one_size)
        assert torch.backends.cudnn.benchmark is (before if expected is None else expected)


@pytest.mark.parametrize("mode", ["auto", "reference"])
@pytest.mark.parametrize(("preprocess", "one_size"), [("resize_and_crop", True), ("none", False)])
def test_a_step_says_whether_its_images_are_of_one_size(
    mode: str, preprocess: str, one_size: bool, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    told: list[Any] = []
    monkeypatch.setattr(build, "measure_convolutions", lambda device, *, one_size: told.append((device.type, one_size)))
    config = tiny_config(engine={"mode": mode, "device": "cpu"}, data={"preprocess": preprocess})
    build_step(config.model_copy(update={"engine": resolve_engine(config)[0]}), shape=(32, 32))
    assert told == [("cpu", one_size)]
