"""`apples2oranges`: the built-in data set, rendered, with the true translation of every test picture."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from velogan.data.atomic_dirs import locked_temp_dir, move_into_place
from velogan.data.pictures.images import Picture, save_picture
from velogan.data.rendered.fruit import Fruit, Kind, draw_fruit, paint_fruit
from velogan.data.rendered.scenery import Light, background, cast_shadow, draw_light
from velogan.types import Progress

VERSION = 1
"""Rises when any pixel of the set changes, so that kept copies are rendered anew."""

NAME = "apples2oranges"
MARK = f"{NAME}.json"
SUPERSAMPLING = 2

FOLDERS = ("trainA", "trainB", "testA", "testB", "truthA", "truthB", "maskA", "maskB")

Domain = Literal["A", "B"]
Split = Literal["train", "test"]


class Rendered(NamedTuple):
    """A picture, its true counterpart in the other domain, and where the object is in either.

    `image` and `truth` are `(H, W, 3)` uint8; `mask` is `(H, W)` uint8, 255 on the object with stem and leaf.
    Outside the mask `image` and `truth` are equal.
    """

    image: np.ndarray
    truth: np.ndarray
    mask: np.ndarray


class _Scene(NamedTuple):
    canvas: np.ndarray
    light: Light
    bounce: np.ndarray
    fruits: list[Fruit]


def render(split: Split, domain: Domain, index: int, *, image_size: int, seed: int) -> Rendered:
    """Render one picture; a pure function of its arguments. Domain A holds apples, B oranges."""
    kinds: tuple[Kind, Kind] = ("apple", "orange") if domain == "A" else ("orange", "apple")
    scene = _scene(split, domain, index, image_size=image_size, seed=seed)
    image, covered = _paint(scene, kinds[0])
    truth, also_covered = _paint(scene, kinds[1])
    mask = _blocks(np.maximum(covered, also_covered)).max(axis=(1, 3)) > 0
    return Rendered(image, truth, np.where(mask, 255, 0).astype(np.uint8))


def render_folder(
    directory: Path | str,
    *,
    count: int,
    test_count: int,
    image_size: int,
    seed: int,
    test_size: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Render `count` training and `test_count` test pictures a domain as PNG files, in parallel.

    Writes `trainA trainB testA testB`, and for each `testA/x.png` the same scene with the other fruit in
    `truthA/x.png` and the object's mask in `maskA/x.png`; likewise B. Test pictures are `test_size`
    pixels wide if that is given, else `image_size`. A folder that already holds this very set is kept; one
    that holds another such set is replaced. The folder appears complete or not at all. Raises `ValueError` if the
    folder holds anything else.
    """
    directory = Path(directory)
    how = {"image_size": image_size, "test_size": test_size or image_size, "seed": seed}
    made = {"count": count, "test_count": test_count, **how, "version": VERSION}
    if _made_from(directory) == made:
        return directory
    _refuse_foreign(directory)
    try:
        with locked_temp_dir(directory.parent, f".building-{directory.name}-") as fresh:
            for folder in FOLDERS:
                (fresh / folder).mkdir()
            jobs = [("train", domain, index) for domain in ("A", "B") for index in range(count)]
            jobs += [("test", domain, index) for domain in ("A", "B") for index in range(test_count)]
            _run(partial(_write, directory=fresh, **how), jobs, progress)
            (fresh / MARK).write_text(json.dumps(made, indent=2))
            move_into_place(fresh, directory, is_valid=lambda: _made_from(directory) == made)
    except OSError as error:
        text = f"{error.strerror} while rendering apples2oranges: make room, or name another folder"
        raise OSError(error.errno, text, str(directory.parent)) from error
    return directory


def render_truth(directory: Path, names: Mapping[Domain, Sequence[str]], *, into: Path) -> Path | None:
    """Render what training pictures of the set in `directory` would look like with the other fruit.

    Gives a folder within `into`, kept for the next time, with `truthA/x.png` and `maskA/x.png` for each `x.png` among
    `names`; likewise B. None if `directory` holds no set that was rendered by this version.
    """
    made = _made_from(directory)
    if made is None or made.get("version") != VERSION:
        return None
    key = hashlib.sha256(json.dumps([made, sorted((key, *value) for key, value in names.items())]).encode())
    found = into / f"{NAME}-answers-{key.hexdigest()[:16]}"
    if found.is_dir():
        return found
    with locked_temp_dir(into, f".building-{NAME}-answers-") as fresh:
        for letter in names:
            for folder in ("truth", "mask"):
                (fresh / f"{folder}{letter}").mkdir()
            for name, index in _numbered(names[letter]):
                picture = render("train", letter, index, image_size=made["image_size"], seed=made["seed"])
                save_picture(fresh / f"truth{letter}" / name, Picture(picture.truth))
                save_picture(fresh / f"mask{letter}" / name, Picture(picture.mask[..., None]))
        move_into_place(fresh, found, is_valid=found.is_dir)
    return found


def _numbered(names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        if number := re.fullmatch(r"(?:apple|orange)-(\d{5,})\.png", name):
            yield name, int(number[1])


def _made_from(directory: Path) -> dict | None:
    try:
        return json.loads((directory / MARK).read_text())
    except (OSError, ValueError):
        return None


def _refuse_foreign(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"directory={directory} is a file; name a folder that is empty or does not exist")
    found = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    foreign = found if MARK not in found else [name for name in found if name not in (*FOLDERS, MARK)]
    if foreign:
        raise ValueError(
            f"directory={directory} is not empty and holds other things ({', '.join(foreign[:3])}); "
            "name a folder that is empty or does not exist"
        )


def _run(write: Callable[[tuple], None], jobs: list[tuple], progress: Progress | None) -> None:
    workers = min(os.cpu_count() or 1, len(jobs) // 64)
    with ExitStack() as stack:
        if workers > 1:
            # "spawn": the caller may have threads and a device open, which a fork must not inherit.
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            made = pool.map(write, jobs, chunksize=16)
        else:  # starting processes would take longer than the pictures
            made = map(write, jobs)
        for done, _ in enumerate(made, start=1):
            if progress:
                progress(done, len(jobs))


def _write(job: tuple[Split, Domain, int], *, directory: Path, image_size: int, test_size: int, seed: int) -> None:
    split, domain, index = job
    name = f"{'apple' if domain == 'A' else 'orange'}-{index:05d}.png"
    if split == "train":
        scene = _scene(split, domain, index, image_size=image_size, seed=seed)
        picture = _paint(scene, "apple" if domain == "A" else "orange")[0]
        save_picture(directory / f"train{domain}" / name, Picture(picture))
        return
    picture = render(split, domain, index, image_size=test_size, seed=seed)
    for folder, array in zip(("test", "truth", "mask"), picture):
        save_picture(directory / f"{folder}{domain}" / name, Picture(array.reshape(*array.shape[:2], -1)))


def _scene(split: Split, domain: Domain, index: int, *, image_size: int, seed: int) -> _Scene:
    key = [seed, 0 if split == "train" else 1, 0 if domain == "A" else 1, index]
    random = np.random.default_rng(np.random.SeedSequence(key))
    canvas, horizon = background(random, image_size * SUPERSAMPLING)
    light = draw_light(random)
    fruits = _place(random)
    bounce = canvas[:, int(0.8 * canvas.shape[1]) :].mean(axis=(1, 2)).reshape(3, 1, 1)
    for fruit in fruits:
        cast_shadow(canvas, light, x=fruit.x, y=fruit.y, radius=fruit.radius, horizon=horizon)
    return _Scene(canvas, light, bounce, fruits)


def _place(random: np.random.Generator) -> list[Fruit]:
    """Place one fruit, or two beside each other, the nearer one last."""
    if random.random() < 0.85:
        radius = random.uniform(0.25, 0.34)
        places = [(random.uniform(0.4, 0.6), random.uniform(0.52, 0.95 - radius), radius)]
    else:
        places = [
            (centre + random.uniform(-0.03, 0.03), random.uniform(0.52, 0.7), random.uniform(0.2, 0.24))
            for centre in (0.28, 0.72)
        ]
    return [draw_fruit(random, x=x, y=y, radius=radius) for x, y, radius in sorted(places, key=lambda p: p[1] + p[2])]


def _paint(scene: _Scene, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    canvas = scene.canvas.copy()
    covered = np.zeros(canvas.shape[1:], np.float32)
    for fruit in scene.fruits:
        np.maximum(covered, paint_fruit(canvas, fruit, kind, light=scene.light, bounce=scene.bounce), out=covered)
    display = np.sqrt(np.clip(canvas, 0, 1))
    picture = np.stack([_blocks(channel).mean(axis=(1, 3)) for channel in display], axis=-1)
    return np.round(picture * 255).astype(np.uint8), covered


def _blocks(plane: np.ndarray) -> np.ndarray:
    """View `(S, S)` samples as `(H, s, W, s)` blocks, one a pixel."""
    side = plane.shape[0] // SUPERSAMPLING
    return plane.reshape(side, SUPERSAMPLING, side, SUPERSAMPLING)
