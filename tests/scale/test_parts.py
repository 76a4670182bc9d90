"""What a worker does, without Ray: pictures in folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from velogan.cli import main
from velogan.data.pictures.images import decode
from velogan.data.sets.sources import list_images
from velogan.scale import parts
from velogan.scale.parts import Input, find_input
from velogan.scale.translate import Total, translate_part
from velogan.scale.work import Done, Options
from velogan.translate.model import Translator


class Negative(nn.Module):
    """Turns every picture into its negative."""

    def forward(self, x: Tensor) -> Tensor:
        return -x


def translate(found: Input, *, model: nn.Module | None = None, **options: object) -> Done:
    translator = Translator(model or Negative(), multiple=4, device=torch.device("cpu"))
    done = Done()
    for part in found.parts():
        done.add(translate_part(translator, found, part, options=Options(**options)))  # pyright: ignore[reportArgumentType]
    return done


def negative(made: bytes, of: bytes) -> bool:
    return np.array_equal(decode(made).pixels, 255 - decode(of).pixels)


def written(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_pictures_are_found_in_parts_of_bounded_size(
    tmp_path: Path, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(5):
        put(tmp_path / f"in/deep/{index}.png", picture(index))
    put(tmp_path / "in/large.png", bytes(10_000))
    put(tmp_path / "in/.hidden.png", b"")
    put(tmp_path / "in/.Trash-1000/files/0.png", b"")
    put(tmp_path / "in/notes.txt", b"")
    put(tmp_path / "in/out/deep/0.png", b"earlier")
    (tmp_path / "in/deep/again").symlink_to(tmp_path / "in")
    monkeypatch.setattr(parts, "WINDOW", 2)
    monkeypatch.setattr(parts, "WINDOW_BYTES", 5_000)
    found = [sorted(part) for part in find_input(tmp_path / "in", tmp_path / "in/out").parts()]
    names = sorted(name for part in found for name in part)
    assert names == [*(f"deep/{index}.png" for index in range(5)), "large.png"]
    assert max(map(len, found)) == 2
    assert ["large.png"] in found


def test_wrong_inputs_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "in/a.png", b"\x89PNG\r\n\x1a\n")
    (tmp_path / "empty").mkdir()
    for given, output, said in [
        ("empty", "out", "holds no picture"),
        ("none", "out", "does not exist: name a folder"),
        ("in/a.png", "out", "leave it out here"),
        ("in", "in", "is the input folder itself"),
        ("in", "in/a.png", "is a file"),
    ]:
        with pytest.raises(ValueError, match=said):
            find_input(tmp_path / given, tmp_path / output)


def test_pictures_of_other_parts_do_not_take_the_same_name(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    put(tmp_path / "in/a.png", picture(1))
    put(tmp_path / "in/a.bmp", picture(2, ".bmp"))
    put(tmp_path / "in/b.bmp", picture(3, ".bmp"))
    done = translate(find_input(tmp_path / "in", tmp_path / "out"), format="png")
    assert written(tmp_path / "out") == ["a.png", "b.png"]
    assert negative((tmp_path / "out/a.png").read_bytes(), picture(1))
    [(name, reason)] = done.failed
    assert name == "a.bmp"
    assert "a.png would become" in reason


def test_so_where_suffixes_are_in_large_letters_or_never_written(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    for name in ("a.JPG", "a.TIF", "b.bmp", "b.Gif", "c.gif", "c.jfif"):
        put(tmp_path / "in" / name, picture(1))
    found = find_input(tmp_path / "in", tmp_path / "out")
    assert translate(found, format="png").translated == 0
    done = translate(found)
    assert written(tmp_path / "out") == ["a.JPG", "a.TIF", "b.bmp", "b.png"]
    assert sorted(name for name, _ in done.failed) == ["c.gif", "c.jfif"]


def test_what_a_killed_worker_left_of_a_picture_is_gone_afterwards(
    tmp_path: Path, picture: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in/a.png", picture(1))
    found = find_input(tmp_path / "in", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        [(name, reason)] = translate(found).failed
        assert (name, "cannot be written (killed)" in reason) == ("a.png", True)
    assert [name.startswith(".fresh-") for name in written(tmp_path / "out")] == [True]
    assert translate(found).translated == 1
    assert written(tmp_path / "out") == ["a.png"]


def test_workers_take_the_files_that_one_process_takes_and_count_the_others(
    tmp_path: Path,
    picture: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a.png", "b.jfif", "plain", "c.heic"):
        put(tmp_path / "in" / name, picture(0))
    put(tmp_path / "in/a.png.doubt.png", picture(0))
    put(tmp_path / "in/notes.txt", b"no picture")
    put(tmp_path / "in/scan.dcm", bytes(128) + b"DICM")
    assert sorted(find_input(tmp_path / "in", tmp_path / "out").names()) == list(list_images(tmp_path / "in"))
    total = Total(seconds=1, animated=2, animation=("x.gif", 3))
    monkeypatch.setattr("velogan.scale.translate.translate_at_scale", lambda *_, **__: total)
    assert main(["translate", "apples2oranges", str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "2"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "no pictures that are read: 1 .txt, 1 .dcm" in said
    assert "x.gif is an animation: the first of its 3 pictures was translated (so of 1 more)" in said


def test_workers_count_animations(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    frames = [Image.new("RGB", (16, 12), (level, 90, 200)) for level in (0, 80, 160)]
    put(tmp_path / "in" / "plain.png", picture(0))
    for name in ("a.gif", "b.gif"):
        frames[0].save(tmp_path / "in" / name, save_all=True, append_images=frames[1:])
    done = translate(find_input(tmp_path / "in", tmp_path / "out"), format="png")
    assert (done.translated, done.animated, done.animation) == (3, 2, ("a.gif", 3))
