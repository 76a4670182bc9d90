"""Fixtures of all rooms: tiny runs on rendered pictures, the cache they share, disks, and what a machine may lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.config import Config
from velogan.data.pictures.images import Picture, save_picture
from velogan.kernels.native import load_kernels
from velogan.kernels.norms import NormKernels
from velogan.training import engine_settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton: its kernels then run on CPU tensors

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
        patch.setattr(engine_settings, "measure_training_speedup", lambda _layer, _gemm: 2.0)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def kernels(_shared_cache: None) -> NormKernels:
    """The native kernels, built once a session."""
    loaded = load_kernels(Path(os.environ["VELOGAN_CACHE"]) / "kernels")
    if loaded is None:
        pytest.skip("there is no g++ to build the native kernels")
    return loaded


@pytest.fixture
def shared_data() -> Path:
    """The folder of real images; for tests marked `shared`."""
    return SHARED


@pytest.fixture
def tiny_config() -> Callable[..., Config]:
    """A run of a few 32-pixel rendered images through networks of a few channels; sections change its fields."""

    def make(**sections: Any) -> Config:
        tiny = Config().change(
            train={"length": "6 images", "samples": 0, "logger": "none"},
            data={"crop_size": 32, "render_count": 4, "render_test": 2},
            generator={"channels": 4, "blocks": 1},
            discriminator={"channels": 4},
            engine={"threads": 1},
        )
        return tiny.change(**sections)

    return make


@pytest.fixture
def annotated(tmp_path: Path) -> dict[str, Any]:
    """The section `data` of four pictures a domain: masks and label maps of three of A, no two alike."""
    folder, random = tmp_path / "annotated", np.random.default_rng(0)
    for index in range(4):
        mask = np.zeros((36, 36, 1), np.uint8)
        mask[: 9 * index] = 255
        labels = (np.arange(36) // 12).astype(np.uint8).repeat(36).reshape(36, 36, 1)
        labels[:, : 6 * index] = 255  # no class
        pictures = {name: random.integers(0, 256, (36, 36, 3), np.uint8) for name in ("trainA", "trainB")}
        for name, pixels in (pictures | ({"masks": mask, "labels": labels} if index else {})).items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            save_picture(folder / name / f"{index}.png", Picture(pixels))
    annotations = {"masks_a": f"{folder}/masks", "labels_a": f"{folder}/labels"}
    return {"path": (str(folder),), **annotations}


@pytest.fixture
def volumes(tmp_path: Path) -> dict[str, Any]:
    """The section `data` of two NIfTI volumes of two slices a domain, whose slices are seen with their neighbours."""
    nibabel = pytest.importorskip("nibabel", reason="the extra medical is not installed")
    random = np.random.default_rng(0)
    for letter in "AB":
        (tmp_path / f"volumes/train{letter}").mkdir(parents=True)
        for index in range(2):
            values = random.integers(0, 1000, (36, 36, 2)).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / f"volumes/train{letter}/{index}.nii")
    return {"path": (str(tmp_path / "volumes"),), "context_slices": 1}


@dataclass
class Disk:
    """A small disk of its own, seen by the way through a process that lives in its name space."""

    path: Path
    shell: subprocess.Popen[str]

    def run(self, command: str) -> str:
        """Runs a shell command there; the last line of what it prints, else how it ended."""
        assert self.shell.stdin
        assert self.shell.stdout
        self.shell.stdin.write(f"{command} >/dev/null; echo $?\n")
        self.shell.stdin.flush()
        return self.shell.stdout.readline().strip()

    def fill(self, leave: int = 0) -> None:
        """Leaves room for so many bytes."""
        self.free()
        facts = os.statvfs(self.path)
        with open(self.path / "ballast", "wb", buffering=0) as file:
            if facts.f_bavail * facts.f_frsize > leave:
                os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - leave)

    def free(self) -> None:
        """Takes the ballast away."""
        (self.path / "ballast").unlink(missing_ok=True)

    def remount(self, mode: str) -> None:
        """Makes it read-only, `ro`, or writable, `rw`."""
        assert self.run(f"mount -o remount,{mode} tmpfs {self.mount}") == "0"

    @property
    def mount(self) -> str:
        return "/" + str(self.path).split("/root/", 1)[1]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of 4 MiB. It is gone with the process that holds it, whatever becomes of the tests."""
    mount = tmp_path / "disk"
    mount.mkdir()
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        try:
            shell = subprocess.Popen(
                [*unshare, "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except FileNotFoundError:
            break
        small_disk = Disk(Path(f"/proc/{shell.pid}/root{mount}"), shell)
        try:
            mounted = small_disk.run(f"mount -t tmpfs -o size=4m tmpfs {mount}") == "0"
        except BrokenPipeError:
            mounted = False
        if mounted:
            yield small_disk
        shell.kill()
        shell.communicate()
        if mounted:
            return
    pytest.skip("a disk of one's own needs root or user name spaces (unshare -rm), and here is neither")


class _Again:
    """A recorder for any device: it replays by running the work again into the first tensors."""

    def __init__(self) -> None:
        self.recordings = 0

    def __call__(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
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
def zygote(_shared_cache: None) -> Iterator[Callable[[dict], Any]]:
    """Asks a process that has imported everything to fork (tests/zygote.py)."""
    file = Path(__file__).with_name("zygote.py")
    process = subprocess.Popen([sys.executable, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(question: dict) -> Any:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.communicate()


@dataclass(frozen=True)
class Process:
    """A velogan command in a process of its own."""

    pid: int
    folder: Path
    ask: Callable[[dict], Any]

    def wait(self) -> tuple[int, str]:
        """Return the exit code (below zero: the signal that ended it) and its standard error."""
        return self.ask({"wait": self.pid}), (self.folder / "log").read_text()

    def result(self) -> dict[str, Any]:
        """Return the JSON that it printed; it must end with exit code 0."""
        code, log = self.wait()
        assert code == 0, log
        return json.loads((self.folder / "out").read_text().splitlines()[-1])


@pytest.fixture
def start(zygote: Callable[[dict], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Process]:
    """`start(argv, plain=False, code="")` starts a command; `plain`: without root's rights over files."""

    def start_command(argv: list[str], *, plain: bool = False, code: str = "") -> Process:
        folder = tmp_path_factory.mktemp("process")
        files = {"said": str(folder / "log"), "out": str(folder / "out")}
        return Process(zygote({"argv": argv, "plain": plain, "code": code, **files}), folder, zygote)

    return start_command
