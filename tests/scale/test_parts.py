"""What a worker does, without Ray: pictures in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from velogan.cli import main
from velogan.data.pictures.images import decode
from velogan.scale.translate import LoadTranslator, PartitionedWork, translate_at_scale, translate_part
from velogan.translate.jobs import find_picture_names
from velogan.translate.options import TranslateOptions
from velogan.translate.summary import Summary

from ..models import Negative, in_memory


def translate(folder: Path, *, format: str | None = None) -> Summary:
    options, names = (
        TranslateOptions(format=format),
        find_picture_names(folder / "in", folder / "out", suffix=format and f".{format}"),
    )
    translator = in_memory(Negative())
    source, done = PartitionedWork(folder / "in", folder / "out", names, part_size=2), Summary()
    for part in source.parts():
        done = done.merge(translate_part(translator, source, part, options=options))
    return done


def negative(made: bytes, of: bytes) -> bool:
    return np.array_equal(decode(made).pixels, 255 - decode(of).pixels)


def written(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_divides_names_into_parts() -> None:
    source = PartitionedWork(Path("in"), Path("out"), ["a", "b", "c", "d", "e"], part_size=2)
    assert [list(part) for part in source.parts()] == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        ("empty", "out", "contains no pictures"),
        ("none", "out", "does not exist: name a folder"),
        ("in/a.png", "out", "remove --workers"),
        ("in", "in", "is the input folder itself"),
        ("in", "in/a.png", "is a file"),
    ],
)
def test_rejects_wrong_inputs(source: str, output: str, message: str, tmp_path: Path) -> None:
    put(tmp_path / "in/a.png", b"\x89PNG\r\n\x1a\n")
    (tmp_path / "empty").mkdir()
    load: LoadTranslator = lambda gpus: pytest.fail("started")  # noqa: E731
    with pytest.raises(ValueError, match=message):
        translate_at_scale(load, tmp_path / source, tmp_path / output, workers=2, options=TranslateOptions())


def test_reports_pictures_of_other_parts_that_would_get_one_name(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    """A format that is never written becomes another one, after the parts were made."""
    for name in ("a.JPG", "a.TIF", "b.bmp", "b.Gif", "c.gif", "c.jfif"):
        put(tmp_path / "in" / name, picture(1))
    done = translate(tmp_path)
    assert written(tmp_path / "out") == ["a.JPG", "a.TIF", "b.bmp", "b.png"]
    assert sorted(name for name, _ in done.failed) == ["c.gif", "c.jfif"]


def test_removes_what_a_killed_worker_left(
    tmp_path: Path, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in/a.png", picture(1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        [(name, reason)] = translate(tmp_path).failed
        assert (name, "cannot be written (killed)" in reason) == ("a.png", True)
    assert [name.startswith(".fresh-") for name in written(tmp_path / "out")] == [True]
    assert translate(tmp_path).translated == 1
    assert written(tmp_path / "out") == ["a.png"]


def test_reports_files_that_workers_ignore(
    tmp_path: Path,
    picture: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path / "in/a.png", picture(0))
    put(tmp_path / "in/notes.txt", b"no picture")
    put(tmp_path / "in/scan.dcm", bytes(128) + b"DICM")
    total = Summary(seconds=1, animated=(("x.gif", 3), ("y.gif", 2)))
    monkeypatch.setattr("velogan.scale.translate.translate_at_scale", lambda *_, **__: (total, 1.0))
    assert main(["translate", "apples2oranges", str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "2"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "1 .txt, 1 .dcm" in said
    assert "x.gif is an animation: only the first of its 3 frames was translated" in said
