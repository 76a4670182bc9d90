"""Two workers under Ray Data, one of which is killed; the same again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from velogan.engine.ray_session import ray_session
from velogan.scale.translate import MAX_PART_IMAGES, LoadTranslator, translate_at_scale
from velogan.translate.model import Translator
from velogan.translate.options import TranslateOptions
from velogan.translate.summary import Summary

pytestmark = pytest.mark.filterwarnings("ignore:::ray")
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install 'velogan[scale]'")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray for all tests of this file: its start takes seconds. Its workers find the package."""
    root = str(Path(__file__).resolve().parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
        with ray_session(None):
            yield


def loader(die_once: Path | None) -> LoadTranslator:
    """Loads a network of negatives; the first worker that uses it dies, where `die_once` is a file to be made."""

    class Negative(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if die_once is not None and not die_once.exists():
                die_once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return -x

    return lambda gpus: Translator(Negative(), multiple=4, device=torch.device("cpu"))


def test_a_killed_worker_loses_nothing_and_the_same_again_does_nothing(
    ray: None, tmp_path: Path, picture: Callable[..., bytes]
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    names = [f"{index % 2}/{index}.png" for index in range(20)]
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(index))
    (folder / "bad.png").write_bytes(b"no picture")
    counts: list[int] = []

    def act(die_once: Path | None) -> Summary:
        options = TranslateOptions()
        done, _ = translate_at_scale(loader(die_once), folder, out, workers=2, options=options, progress=counts.append)
        return done

    first = act(tmp_path / "died")
    assert (tmp_path / "died").exists()
    bad = (("bad.png", "not a picture that can be read"),)
    assert (first.translated, first.skipped, first.failed) == (20, 0, bad)
    assert counts[-1] == 21
    made = {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert set(made) == {*names}
    second = act(None)
    assert (second.translated, second.skipped, second.failed) == (0, 20, bad)
    assert all((out / name).stat().st_mtime_ns == when for name, when in made.items())


def test_what_kills_its_workers_is_named_and_the_other_parts_are_done(
    ray: None, tmp_path: Path, picture: Callable[..., bytes]
) -> None:
    class Deadly(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] == 16:
                time.sleep(1)  # so that the other part waits in the same worker
                os.kill(os.getpid(), signal.SIGKILL)
            return -x

    (tmp_path / "in").mkdir()
    good = [f"{number}.png" for number in range(MAX_PART_IMAGES + 20)]  # more than one part
    for name in good:
        (tmp_path / "in" / name).write_bytes(picture(0))
    (tmp_path / "in/deadly.png").write_bytes(picture(0, size=16))
    load: LoadTranslator = lambda gpus: Translator(Deadly(), multiple=4, device=torch.device("cpu"))  # noqa: E731
    total, _ = translate_at_scale(load, tmp_path / "in", tmp_path / "out", workers=1, options=TranslateOptions())
    failed = dict(total.failed)
    assert "its worker was lost repeatedly" in failed["deadly.png"]
    assert total.translated >= 20
    assert {name for name in good if (tmp_path / "out" / name).is_file()} == {*good} - {*failed}
