"""Fixtures of all rooms: tiny runs on rendered pictures, the cache they share, and what a machine may lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan import decide
from velogan.config import Config
from velogan.kernels.native import NormKernels, load_kernels

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs real images or an accelerator where there are none."""
    lacks = {
        "shared": None if SHARED.is_dir() else f"the real images are not at {SHARED}",
        "gpu": None if torch.cuda.is_available() else "there is no CUDA device",
    }
    for item in items:
        for marker, reason in lacks.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one cache for all workers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VELOGAN_CACHE", str(base / "velogan-cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_measurement() -> Iterator[None]:
    """Equal runs choose equal kernels, however busy the machine is when each begins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decide, "training_gain", lambda _layer, _gemm: 2.0)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def kernels(_shared_cache: None) -> NormKernels:
    """The native kernels, built once a session."""
    made = load_kernels(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if made is None:
        pytest.skip("there is no g++ to build the native kernels")
    return made


@pytest.fixture
def shared_data() -> Path:
    """The folder of real images; for tests marked `shared`."""
    return SHARED


@pytest.fixture
def tiny_config() -> Callable[..., Config]:
    """A run of a few 32-pixel rendered images through networks of a few channels; sections change its fields."""

    def make(**sections: Any) -> Config:
        tiny = Config().change(
            train={"length": "6 images", "samples": 0, "tensorboard": False},
            data={"crop_size": 32, "render_count": 4, "render_test": 2},
            generator={"channels": 4, "blocks": 1},
            discriminator={"channels": 4},
            engine={"threads": 1},
        )
        return tiny.change(**sections)

    return make


class _Again:
    """A recorder for any device: it replays by running the work again into the first tensors."""

    def __init__(self) -> None:
        self.recordings = 0

    def record(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        self.recordings += 1
        losses = [work() for _ in range(3)][-1]

        def replay() -> None:
            for name, value in work().items():
                losses[name].copy_(value)

        return losses, replay


@pytest.fixture
def recorder() -> _Again:
    """Stands for what captures a step on a GPU."""
    return _Again()


@pytest.fixture(scope="session")
def zygote(_shared_cache: None) -> Iterator[Callable[[dict], int]]:
    """Asks a process that has imported everything to fork (tests/zygote.py)."""
    file = Path(__file__).with_name("zygote.py")
    process = subprocess.Popen([sys.executable, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(question: dict) -> int:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield ask
    process.communicate()


@pytest.fixture
def squeezenet_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SqueezeNet weights of the right names and shapes, at random."""
    generator, inputs = np.random.default_rng(0), 96
    shapes: dict[str, tuple[int, ...]] = {"conv1": (96, 3, 7, 7), "conv_final": (1000, 512, 1, 1)}
    for fire, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        shapes[f"fire{fire}.squeeze"] = (squeeze, inputs, 1, 1)
        shapes[f"fire{fire}.expand1x1"] = (4 * squeeze, squeeze, 1, 1)
        shapes[f"fire{fire}.expand3x3"] = (4 * squeeze, squeeze, 3, 3)
        inputs = 8 * squeeze
    arrays: dict[str, Any] = {}
    for name, shape in shapes.items():
        scale = (2 / np.prod(shape[1:])) ** 0.5
        arrays[f"{name}.weight"] = (generator.standard_normal(shape) * scale).astype(np.float32)
        arrays[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    file = tmp_path_factory.mktemp("weights") / "squeezenet.npz"
    np.savez(file, **arrays)
    return file
