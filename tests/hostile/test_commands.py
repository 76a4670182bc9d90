"""Every command over the whole corpus: no crash, no hang, bounded memory, and each file named with its reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from velogan.data.pictures.images import read_picture
from velogan.data.sets.sources import list_images

from .conftest import Corpus, Done, make_run

Velogan = Callable[..., Done]


def _check_outcome(corpus: Corpus, *, refused: Mapping[str, str], read: set[str]) -> None:
    """Hold what a command says of the corpus against what is known of it."""
    assert set(refused) | read == set(corpus.expected)
    assert not set(refused) & read
    assert corpus.named("bad") <= set(refused)
    assert corpus.named("good") <= read
    for name, reason in refused.items():
        assert reason.strip(), name
        assert len(reason) < 400, name
        assert reason.isprintable(), name


def _reasons(found: list[dict[str, str]]) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in found}


def _has_no_control_characters(done: Done) -> None:
    text = done.err + "".join(done.out.splitlines(keepends=True)[:-1])
    assert "new\nline" not in text
    assert all(character.isprintable() or character == "\n" for character in text), ascii(text)


def test_the_corpus_is_large_in_number_and_small_on_disk(corpus: Corpus) -> None:
    assert len(corpus.named("bad", "either")) >= 200
    assert sum(path.lstat().st_blocks * 512 for path in corpus.folder.rglob("*")) < 20 * 2**20
    assert set(list_images(corpus.folder)) == set(corpus.expected)  # each once, however its folders go in circles


def test_the_files_that_others_are_made_from_are_whole(makers: dict[str, Any], tmp_path: Path) -> None:
    for name, data in makers["valid"]().items():
        (tmp_path / name).write_bytes(data)
        assert min(read_picture(tmp_path / name).pixels.shape[:2]) >= 20, name


def test_check_names_hostile_files(corpus: Corpus, good: Path, velogan: Velogan) -> None:
    done = velogan("data", "check", corpus.folder, good, "--json")
    assert done.code == 0
    (folder,) = [one for one in done.json["folders"].values() if one["directory"] == str(corpus.folder)]
    refused = _reasons(folder["unreadable"])
    assert folder["pictures"] + len(refused) == len(corpus.expected)
    _check_outcome(corpus, refused=refused, read=set(corpus.expected) - set(refused))
    _has_no_control_characters(done)


def test_training_skips_hostile_files(corpus: Corpus, good: Path, velogan: Velogan, tmp_path: Path) -> None:
    flags = """--images 2 --image-size 32 --json --train.samples 1 --train.logger none --discriminator.channels 4
        --generator.channels 4 --generator.blocks 1 --data.channels-a 3 --data.channels-b 3
        --data.range-a 0 255 --data.range-b 0 255 --data.validation 4 --engine.threads 1 --engine.precision fp32
        --engine.kernels plain --data.workers 4"""
    cache = ("--data.cache-dir", tmp_path / "cache")
    done = velogan(
        "train", "cyclegan", "--data", corpus.folder, good, "--out", tmp_path / "run", *cache, *flags.split()
    )
    assert done.code == 0, done.err
    assert done.json["finished"]
    refused: dict[str, str] = {}
    read: set[str] = set()
    for file in (tmp_path / "cache" / "prepared").glob("*/index.json"):
        index = json.loads(file.read_text())
        if not set(index["names"]) <= set(os.listdir(good)):
            refused |= dict(index["skipped"])
            read |= set(index["names"])
    _check_outcome(corpus, refused=refused, read=read)
    _has_no_control_characters(done)


def test_translation_names_hostile_files(corpus: Corpus, velogan: Velogan, run: Path, tmp_path: Path) -> None:
    done = velogan("translate", run, corpus.folder, tmp_path / "made", "--device", "cpu", "--json")
    assert done.code == 1
    names = {name if name.isprintable() else ascii(name)[1:-1]: name for name in corpus.expected}
    refused = {names[one["name"]]: one["reason"] for one in done.json["failed"]}
    assert done.json["translated"] + len(refused) == len(corpus.expected)
    _check_outcome(corpus, refused=refused, read=set(corpus.expected) - set(refused))
    made = set(list_images(tmp_path / "made"))
    assert corpus.named("good") <= made
    assert len(made) == done.json["translated"]
    assert not [name for name in os.listdir(tmp_path / "made") if name.startswith(".")]
    _has_no_control_characters(done)


def test_evaluation_names_hostile_files(corpus: Corpus, good: Path, velogan: Velogan, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, folder in {"trainA": good, "trainB": good, "testA": corpus.folder, "testB": good}.items():
        (data / name).symlink_to(folder, target_is_directory=True)
    done = velogan("evaluate", make_run(tmp_path / "run", data), "--checkpoint", "last", "--json")
    assert done.code == 0, done.err
    told = done.json["protocol"]["data"]["a"]
    refused = _reasons(told["unreadable"])
    assert told["images"] + len(refused) == len(corpus.expected)
    _check_outcome(corpus, refused=refused, read=set(corpus.expected) - set(refused))
    _has_no_control_characters(done)


def test_comparison_names_hostile_files(corpus: Corpus, good: Path, velogan: Velogan) -> None:
    done = velogan("evaluate", corpus.folder, "--against", good, "--json")
    assert done.code == 0, done.err
    refused = {
        os.path.relpath(one["name"], corpus.folder): one["reason"] for one in done.json["protocol"]["skipped"]
    }  # fmt: skip
    assert done.json["protocol"]["images"]["folder"] + len(refused) == len(corpus.expected)
    _check_outcome(corpus, refused=refused, read=set(corpus.expected) - set(refused))
    _has_no_control_characters(done)


def test_training_reads_few_large_pictures_at_a_time(
    makers: dict[str, Any], good: Path, velogan: Velogan, tmp_path: Path
) -> None:
    """Each of five decodes to 183 MiB: memory holds one for each thread, and few results."""
    side, folder = 8000, tmp_path / "large"
    folder.mkdir()
    rows = side * (3 * side + 1)  # each row begins with the number of its filter
    packed = makers["zlib_zeros"](-(-rows // 2**20) << 20)
    for index in range(5):
        (folder / f"{index}.png").write_bytes(makers["png"](side, side, packed))
    flags = """--images 1 --image-size 32 --json --train.samples 0 --train.logger none --discriminator.channels 4
        --generator.channels 4 --generator.blocks 1 --engine.threads 1 --engine.precision fp32
        --engine.kernels plain --data.workers 2 --data.validation 0"""
    argv = ["train", "cyclegan", "--data", folder, good, "--out", tmp_path / "run", *flags.split()]
    done = velogan(*argv, max_mb=1300)
    assert done.code == 0, done.err
    assert "cannot be read" not in done.err
