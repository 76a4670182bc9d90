"""A server in a thread over a network that tests can block, and a folder that must stay empty."""

from __future__ import annotations

import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

pytest.importorskip("fastapi", reason="the extra serve is not installed")

import uvicorn

from velogan.serve.app import build_app
from velogan.serve.server import open_socket
from velogan.serve.service import Limits, TranslationService
from velogan.translate.model import Translator
from velogan.translate.uncertainty import UncertaintyEstimator
from velogan.types import GENERATOR_FILES, Direction

HEADERS: dict[Direction, dict[str, Any]] = {
    direction: {"role": role, "data": {"a": "day", "b": "night"}} for direction, role in GENERATOR_FILES.items()
}


class Negative(nn.Module):
    """Inverts pictures once `may_run` is set; fails for white ones."""

    def __init__(self) -> None:
        super().__init__()
        self.may_run, self.started, self.batches = threading.Event(), threading.Event(), []
        self.may_run.set()

    def __deepcopy__(self, memo: Any) -> Negative:
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.started.set()
        self.batches.append(len(x))
        assert self.may_run.wait(30)
        if (x == 1).all(dim=(1, 2, 3)).any():
            raise RuntimeError("it burns")
        return -x


@dataclass
class Served:
    """A running server."""

    url: str
    net: Negative
    service: TranslationService
    client: httpx.Client
    stop: Callable[[], None]

    def translate(self, data: bytes, name: str = "one.png", **fields: str) -> httpx.Response:
        """Upload a picture."""
        return self.client.post("/api/translate", files={"picture": (name, data)}, data=fields)

    def wait_for_requests(self, number: int) -> None:
        """Return once the server has `number` unfinished requests."""
        until(lambda: self.service.waiting == number)


def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not within 10 s")


def png(*, size: tuple[int, int] = (20, 12), seed: int = 0, value: int | None = None) -> bytes:
    """A PNG file of noise, or of one value."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels if value is None else np.full_like(pixels, value)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, still empty after the test: uploads stay in memory."""
    folder = tmp_path / "temporary"
    folder.mkdir()

    def fail(self: Any) -> None:
        raise AssertionError("an upload was written to disk")

    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", fail)
    yield folder
    assert not list(folder.iterdir())


@contextmanager
def served(
    *,
    directions: tuple[Direction, ...] = ("a2b", "b2a"),
    with_uncertainty: tuple[Direction, ...] = (),
    token: str | None = None,
    tile: int | None = None,
    **limits: Any,
) -> Iterator[Served]:
    """Serve until the end of the block. In `with_uncertainty` directions the left half of an image is not restored."""
    net = Negative()
    cpu = torch.device("cpu")
    models: dict[Direction, Translator] = {
        direction: Translator(net, 4, cpu, header=HEADERS[direction]) for direction in directions
    }
    estimators: dict[Direction, UncertaintyEstimator] = {
        direction: UncertaintyEstimator(models[direction], _reverse) for direction in with_uncertainty
    }
    service = TranslationService(models, name="nights", limits=Limits(**limits), tile=tile, estimators=estimators)
    config = uvicorn.Config(build_app(service, token=token), log_level="warning", timeout_graceful_shutdown=20)
    server = uvicorn.Server(config)
    net.batches.clear()
    net.started.clear()
    with open_socket("127.0.0.1", 0) as listening, ExitStack() as stack:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})

        def stop() -> None:
            server.should_exit = True

        def end() -> None:
            net.may_run.set()
            stop()
            thread.join(20)
            assert not thread.is_alive()

        thread.start()
        stack.callback(end)
        until(lambda: server.started)
        client = stack.enter_context(httpx.Client(base_url=url, timeout=30, trust_env=False, verify=False))
        yield Served(url, net, service, client, stop)


def _reverse(images: Tensor, results: Tensor) -> Tensor:
    left = torch.arange(images.shape[-1]) < images.shape[-1] // 2
    return images + 2.0 * left


@pytest.fixture
def server() -> Iterator[Served]:
    """A server with small limits, in both directions."""
    with served(upload_bytes=50_000, pixels=10_000, seconds=20, waiting=8) as result:
        yield result


@dataclass
class Upload(threading.Thread):
    """An upload in a thread."""

    served: Served
    data: bytes
    fields: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self.served.url, timeout=30, trust_env=False, verify=False) as client:
            self.response = client.post("/api/translate", files={"picture": ("x.png", self.data)}, data=self.fields)

    def answer(self) -> httpx.Response:
        self.join(30)
        return self.response

    __hash__ = threading.Thread.__hash__
