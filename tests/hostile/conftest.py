"""The corpus, and commands as real processes whose time and memory are watched."""

from __future__ import annotations

import json
import os
import runpy
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from velogan.config import Config, to_yaml
from velogan.data.pictures.images import Picture, save_picture
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.store.checkpoint import save_checkpoint

MOST_MEMORY_MB = 2048
MOST_SECONDS = 120
MAKERS = runpy.run_path(str(Path(__file__).with_name("corpus.py")))


@dataclass(frozen=True)
class Corpus:
    """Hostile files in one folder, and by name "bad", "either" or "good": see `corpus.py`."""

    folder: Path
    expected: dict[str, str]

    def named(self, *kinds: str) -> set[str]:
        return {name for name, kind in self.expected.items() if kind in kinds}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    peak_mb: float

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture(scope="session")
def makers() -> dict[str, Any]:
    """The functions of `corpus.py`."""
    return MAKERS


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("hostile") / "corpus"
    return Corpus(folder, MAKERS["make_corpus"](folder))


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three pictures that nothing is wrong with."""
    folder = tmp_path_factory.mktemp("good")
    for index in range(3):
        pixels = np.random.default_rng(index).integers(0, 256, (40, 40, 3), np.uint8)
        save_picture(folder / f"{index}.png", Picture(pixels))
    return folder


@pytest.fixture
def velogan(zygote: Callable[[dict], Any], tmp_path: Path) -> Callable[..., Done]:
    """Run `velogan ...`: it must end by itself, without a traceback, and keep to the memory that it may take."""

    def run(*words: str | Path, max_mb: float = MOST_MEMORY_MB) -> Done:
        argv, said = [str(word) for word in words], {"said": str(tmp_path / "err"), "out": str(tmp_path / "out")}
        pid = zygote({"argv": argv, "env": {"COLUMNS": "999"}, "cwd": str(tmp_path), **said})
        timer = threading.Timer(MOST_SECONDS, os.kill, (pid, signal.SIGKILL))
        timer.start()
        code, peak = zygote({"wait": pid, "peak": True})
        timer.cancel()
        texts = [(tmp_path / name).read_text(encoding="utf-8", errors="strict") for name in ("out", "err")]
        done = Done(code, texts[0], texts[1], peak)
        assert done.code in (0, 1, 2), f"velogan {words[0]} ended with {done.code}: {done.err[-2000:]}"
        assert "Traceback" not in done.err, done.err[-3000:]
        print(f"velogan {words[0]}: at most {peak:.0f} MB")
        assert peak < max_mb
        assert not list(tmp_path.rglob("pwned")), "something in a file was run"
        return done

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with untrained generators of two channels and two blocks."""
    return make_run(tmp_path / "run")


def make_run(folder: Path, *paths: Path) -> Path:
    shape = GeneratorConfig.model_validate({"blocks": 1, "channels": 2})
    networks: dict[str, nn.Module] = {name: build_generator(shape) for name in ("G_A", "G_B")}
    header = {"network": "generator", "config": shape.model_dump(), "in_channels": 3, "out_channels": 3}
    headers = {name: {"role": name, **header, "images_seen": 40} for name in networks}
    for images in (40, 80):
        save_checkpoint(folder, images=images, networks=networks, headers=headers, state={"a": 1}, clock={})
    data = {
        "crop_size": 32,
        "channels_a": 3,
        "channels_b": 3,
        "range_a": (0, 255),
        "range_b": (0, 255),
        "path": [str(path) for path in paths] or ["x"],
    }
    (folder / "config.yaml").write_text(to_yaml(Config().change(data=data, generator={"blocks": 1, "channels": 2})))
    return folder
