"""Processes that can be killed, and a tiny run that is soon over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from velogan.cli import main
from velogan.data.pictures.images import Picture, save_picture
from velogan.store.checkpoint import find_checkpoint


@pytest.fixture
def velogan(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], tuple[int, str]]:
    """Runs a command in this process: exit code and what it said. A traceback is never an answer."""

    def run(argv: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        code = main(argv)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return code, said

    return run


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two domains of four random pictures each, and two for tests."""
    root = tmp_path_factory.mktemp("noise")
    random = np.random.default_rng(0)
    for folder, count in (("trainA", 4), ("trainB", 4), ("testA", 2), ("testB", 2)):
        (root / folder).mkdir()
        for index in range(count):
            save_picture(root / folder / f"{index}.png", Picture(random.integers(0, 256, (40, 40, 3), np.uint8)))
    return root


@pytest.fixture(scope="session")
def flags(data: Path) -> Callable[..., list[str]]:
    """`flags(run, images=6, ...)`: a training that takes a moment, with a checkpoint every two images; more words."""

    def make(run: Path, *more: str, images: int = 6, every: int = 2, data: Path = data) -> list[str]:
        words = f"""train cyclegan --data {data} --images {images} --image-size 32 --seed 3 --out {run} --train.keep 3
            --train.checkpoint-every {every}i --train.log-every 1i --train.samples 0 --train.logger none
            --method.pool-size 3 --discriminator.channels 2 --generator.channels 2 --generator.blocks 1
            --engine.threads 1 --engine.precision fp32 --engine.kernels plain"""
        return [*words.split(), *more]

    return make


@pytest.fixture(scope="session")
def unbroken(
    flags: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory, _shared_cache: None
) -> Callable[..., Path]:
    """`unbroken(images=6, ...)`: the run folder of the same training where nothing went wrong."""
    made: dict[str, Path] = {}

    def train(*more: str, images: int = 6, every: int = 2) -> Path:
        key = repr((more, images, every))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("unbroken") / "run"
            assert main(flags(made[key], *more, images=images, every=every)) == 0
        return made[key]

    return train


@pytest.fixture
def same(unbroken: Callable[..., Path]) -> Callable[..., bool]:
    """`same(run, images=6)`: whether the run ended with the weights of the unbroken one, bit for bit."""
    from velogan.store.checkpoint import digest

    def compare(run: Path, *more: str, images: int = 6, every: int = 2) -> bool:
        return digest(find_checkpoint(run)) == digest(find_checkpoint(unbroken(*more, images=images, every=every)))

    return compare
