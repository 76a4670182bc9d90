"""Every kind of picture through training and translation, at its own depth."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from velogan.cli import main
from velogan.config import read_config
from velogan.data.pictures.images import Picture, read_picture, save_picture
from velogan.store.checkpoint import find_checkpoint, load_weights
from velogan.translate.files import translate
from velogan.translate.model import Direction, load_translator

TINY = shlex.split(
    "--image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2 --discriminator.layers 1 "
    "--discriminator.network n_layers --images 4 --data.validation 0 --train.samples 2 --train.logger none "
    "--data.workers 1 --method.source-as-fake-fraction 0.3"
)

KINDS = {
    "grey": (".png", Picture(np.arange(1024, dtype=np.uint16).reshape(32, 32, 1).astype(np.uint8))),
    "rgb": (".png", Picture(np.arange(3072, dtype=np.uint16).reshape(32, 32, 3).astype(np.uint8))),
    "rgba": (
        ".png",
        Picture(
            np.arange(3072, dtype=np.uint16).reshape(32, 32, 3).astype(np.uint8),
            alpha=np.arange(1024).reshape(32, 32).astype(np.uint8),
        ),
    ),
    "grey16": (".png", Picture((np.arange(1024, dtype=np.uint16) * 64).reshape(32, 32, 1))),
    "rgb16": (".tiff", Picture((np.arange(3072, dtype=np.uint16) * 21).reshape(32, 32, 3))),
    "five": (".npy", Picture(np.arange(5120, dtype=np.uint16).reshape(32, 32, 5))),
    "ct": (".npy", Picture(np.linspace(-1024, 3071, 1024, dtype=np.float32).reshape(32, 32, 1))),
}
RANGES = {"ct": (-1000.0, 1000.0)}


def write(folder: Path, kind: str, count: int = 3) -> Path:
    suffix, picture = KINDS[kind]
    folder.mkdir()
    for index in range(count):
        turned = picture.pixels if index == 0 else np.ascontiguousarray(picture.pixels[::-1])
        save_picture(folder / f"{index}{suffix}", Picture(turned, picture.alpha))
    return folder


def flags_for(letter: str, kind: str) -> list[str]:
    return [f"--data.range-{letter}", *map(str, RANGES[kind])] if kind in RANGES else []


@pytest.mark.parametrize(
    ("a", "b"), [("grey16", "rgb"), ("ct", "grey"), ("five", "ct"), ("rgba", "rgb16"), ("rgb16", "rgb16")]
)
def test_trains_and_translates_at_the_depth_of_pictures(
    a: str, b: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(write(tmp_path / "a", a)), str(write(tmp_path / "b", b))]
    run = tmp_path / "run"
    ranges = [*flags_for("a", a), *flags_for("b", b)]
    assert main(["train", "cyclegan", "--data", *folders, "--out", str(run), *TINY, *ranges]) == 0
    messages = capsys.readouterr().err
    channels = {kind: KINDS[kind][1].pixels.shape[2] for kind in (a, b)}
    for name in ("identity loss", "source images as fakes"):
        assert (f"{name}: off" in messages) == (channels[a] != channels[b])

    config = read_config(run)
    assert (config.data.channels_a, config.data.channels_b) == (channels[a], channels[b])
    header, _ = load_weights(find_checkpoint(run) / "G_A.safetensors")
    for end, kind in (("input", a), ("output", b)):
        expected = {"channels": channels[kind], "dtype": str(KINDS[kind][1].pixels.dtype)}
        assert {key: header[end][key] for key in expected} == expected
        assert header[end]["range"] == (list(RANGES[kind]) if kind in RANGES else None)

    directions: list[tuple[Direction, str, str, str]] = [("a2b", a, b, folders[0]), ("b2a", b, a, folders[1])]
    for direction, source, target, folder in directions:
        out = tmp_path / direction
        done = translate(load_translator(run, direction=direction), Path(folder), out)
        assert (done.translated, done.failed) == (3, ())
        first = read_picture(next(out.glob("0.*")))
        inputs = KINDS[source][1]
        assert first.pixels.shape == (32, 32, channels[target])
        if target in RANGES:
            assert first.pixels.dtype == np.float32
            low, high = RANGES[target]
            assert first.pixels.min() >= low
            assert first.pixels.max() <= high
        elif source in RANGES:
            assert first.pixels.dtype == KINDS[target][1].pixels.dtype
        else:
            assert first.pixels.dtype == inputs.pixels.dtype
        if inputs.alpha is not None:
            assert first.alpha is not None
            assert np.array_equal(first.alpha, inputs.alpha)

    # the same command goes on, although the channels were not named in it
    assert (
        main(["train", "cyclegan", "--data", *folders, "--out", str(run), *TINY, *ranges, "--images", "5", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["images_seen"] == 5
