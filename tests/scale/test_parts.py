"""What a worker does, without Ray: pictures in folders, in shards and in tables."""

from __future__ import annotations

import tarfile
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
from velogan.scale import parts, shards, work
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


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one)) is not None}


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
    put(tmp_path / "in/some.tar", b"")
    put(tmp_path / "in/.hidden.png", b"")
    put(tmp_path / "in/.Trash-1000/files/0.png", b"")
    put(tmp_path / "in/notes.txt", b"")
    put(tmp_path / "in/out/deep/0.png", b"earlier")
    (tmp_path / "in/deep/again").symlink_to(tmp_path / "in")
    monkeypatch.setattr(parts, "WINDOW", 2)
    monkeypatch.setattr(parts, "WINDOW_BYTES", 5_000)
    found = [sorted(part) for part in find_input(tmp_path / "in", tmp_path / "in/out").parts()]
    names = sorted(name for part in found for name in part)
    assert names == [*(f"deep/{index}.png" for index in range(5)), "large.png", "some.tar"]
    assert max(map(len, found)) == 2
    assert ["large.png"] in found
    assert ["some.tar"] in found


def test_patterns_name_files_and_wrong_inputs_say_the_mend(tmp_path: Path) -> None:
    for name in ("a/1.tar", "b/2.tar", "b/3.tar", "b/4.png"):
        put(tmp_path / "in" / name, b"")
    found = find_input(tmp_path / "in/*/[12].tar", tmp_path / "out")
    assert sorted(found.names()) == ["a/1.tar", "b/2.tar"]
    assert list(find_input(tmp_path / "in/b/3.tar", tmp_path / "out").names()) == ["3.tar"]
    for given, output, said in [
        ("in/*.tar", "out", "holds no picture"),
        ("none", "out", "does not exist: name a folder"),
        ("in/b/4.png", "out", "leave it out here"),
        ("in", "in", "is the input folder itself"),
        ("in/b/*.tar", "in/b", "is the input folder itself"),
        ("in", "in/b/4.png", "is a file"),
    ]:
        with pytest.raises(ValueError, match=said):
            find_input(tmp_path / given, tmp_path / output)


def test_a_pattern_does_not_name_what_was_written(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.png", "translated/a.png", "translated/deep/b.png"):
        put(tmp_path / "in" / name, b"")
    (tmp_path / "in/again").symlink_to(tmp_path / "in/translated")
    found = find_input(tmp_path / "in/**/*.png", tmp_path / "in/translated")
    assert sorted(found.names()) == ["a.png", "deep/b.png"]
    assert list(find_input(tmp_path / "in/deep/*.png", tmp_path / "in").names()) == ["b.png"]


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


def test_a_shard_keeps_its_order_and_what_is_no_picture(
    tmp_path: Path,
    picture: Callable[..., bytes],
    shard: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {}
    for index in range(5):
        given[f"{index}.png"] = picture(index, size=8 + 4 * (index % 2))
        given[f"{index}.json"] = b'{"label": 1}'
    given["2.png"] = b"no picture"
    given["long.bin"] = bytes(3000)
    shard(tmp_path / "in/deep/00.tar", given)
    for module in (shards, work):
        monkeypatch.setattr(module, "WINDOW", 3)
        monkeypatch.setattr(module, "WINDOW_BYTES", 2000)
    found = find_input(tmp_path / "in", tmp_path / "out")
    put(tmp_path / "out/deep/.00.tar.123", b"what a killed worker left")
    done = translate(found)
    assert (done.translated, done.failed) == (4, [("deep/00.tar/2.png", "not a picture that can be read")])
    made = members(tmp_path / "out/deep/00.tar")
    assert list(made) == [name for name in given if name != "2.png"]
    assert all(negative(made[f"{index}.png"], given[f"{index}.png"]) for index in (0, 1, 3, 4))
    assert all(made[name] == given[name] for name in made if not name.endswith(".png"))
    assert written(tmp_path / "out") == ["deep/.00.tar-done.json", "deep/00.tar"]

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("it is done already")

    again = translate(found, model=Fails())
    assert (again.translated, again.skipped, again.failed) == (0, 4, done.failed)


def test_pictures_of_a_shard_take_a_format(
    tmp_path: Path, picture: Callable[..., bytes], shard: Callable[..., Path]
) -> None:
    long = "x" * 120  # a name that needs a header of its own
    shard(tmp_path / "in/0.tar", {f"{long}.bmp": picture(1, ".bmp"), "b.bmp": picture(2, ".bmp"), "b.png": picture(3)})
    done = translate(find_input(tmp_path / "in/*.tar", tmp_path / "out"), format="png")
    made = members(tmp_path / "out/0.tar")
    assert list(made) == [f"{long}.png", "b.png"]
    assert negative(made["b.png"], picture(3))
    assert done.failed == [("0.tar/b.bmp", "another would become b.png too: rename one, or leave the format out")]


@pytest.mark.parametrize("damage", ["cut", "header"])
def test_a_damaged_shard_is_named_and_nothing_is_written(
    damage: str, tmp_path: Path, picture: Callable[..., bytes], shard: Callable[..., Path]
) -> None:
    path = shard(tmp_path / "in/0.tar", {f"{index}.png": picture(index, size=32) for index in range(4)})
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[6000:]
    else:
        start = data.index(b"2.png")
        data[start : start + 512] = b"?" * 512
    path.write_bytes(data)
    done = translate(find_input(path, tmp_path / "out"))
    [(name, reason)] = done.failed
    assert (name, done.translated) == ("0.tar", 0)
    assert reason.startswith("damaged shard: ")
    assert written(tmp_path / "out") == []


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
