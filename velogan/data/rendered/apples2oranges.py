"""`apples2oranges`: the built-in, rendered data set, with the true translation of every test image."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
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
from velogan.data.rendered.scenery import Light, cast_shadow, draw_light, paint_background
from velogan.types import Progress

VERSION = 1
"""Incremented if any pixel of the set changes, so that cached copies are rendered again."""

NAME = "apples2oranges"
MANIFEST = f"{NAME}.json"
SUPERSAMPLING = 2

FOLDERS = ("trainA", "trainB", "testA", "testB", "truthA", "truthB", "maskA", "maskB")

Domain = Literal["A", "B"]
Split = Literal["train", "test"]


class RenderedScene(NamedTuple):
    """An image and its true translation `(H, W, 3)`, and a mask `(H, W)`: 255 on the fruits, 0 elsewhere; all uint8."""

    image: np.ndarray
    truth: np.ndarray
    mask: np.ndarray


class _Scene(NamedTuple):
    canvas: np.ndarray
    light: Light
    bounce: np.ndarray
    fruits: list[Fruit]


def render(split: Split, domain: Domain, index: int, *, image_size: int, seed: int) -> RenderedScene:
    """Render one image with its truth and mask, always the same for equal arguments. Domain A has apples, B oranges."""
    kinds: tuple[Kind, Kind] = ("apple", "orange") if domain == "A" else ("orange", "apple")
    scene = _draw_scene(split, domain, index, image_size=image_size, seed=seed)
    image, covered = _paint(scene, kinds[0])
    truth, also_covered = _paint(scene, kinds[1])
    mask = _view_blocks(np.maximum(covered, also_covered)).max(axis=(1, 3)) > 0
    return RenderedScene(image, truth, np.where(mask, 255, 0).astype(np.uint8))


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
    """Render `count` training and `test_count` test images of each domain as PNG files, in parallel.

    Writes `trainA trainB testA testB`, and for each `testA/x.png` the same scene with the other fruit in `truthA/x.png`
    and the mask of the fruit in `maskA/x.png`; likewise for B. `test_size` is `image_size` by default. A folder that
    holds this set is reused, a set with other settings replaced. The folder appears complete or not at all. Raises
    ValueError if it holds other files.
    """
    directory = Path(directory)
    sizes = {"image_size": image_size, "test_size": test_size or image_size, "seed": seed}
    manifest = {"count": count, "test_count": test_count, **sizes, "version": VERSION}
    if _read_manifest(directory) == manifest:
        return directory
    _reject_other_files(directory)
    try:
        with locked_temp_dir(directory.parent, f".building-{directory.name}-") as temp_dir:
            for folder in FOLDERS:
                (temp_dir / folder).mkdir()
            jobs = [("train", domain, index) for domain in ("A", "B") for index in range(count)]
            jobs += [("test", domain, index) for domain in ("A", "B") for index in range(test_count)]
            _render_all(partial(_save_scene, directory=temp_dir, **sizes), jobs, progress)
            (temp_dir / MANIFEST).write_text(json.dumps(manifest, indent=2))
            move_into_place(temp_dir, directory, is_valid=lambda: _read_manifest(directory) == manifest)
    except OSError as error:
        text = f"{error.strerror} while rendering apples2oranges: free some space, or name another folder"
        raise OSError(error.errno, text, str(directory.parent)) from error
    return directory


def render_truth(directory: Path, names: Mapping[Domain, Sequence[str]], *, into: Path) -> Path | None:
    """Render the true translations of the training images `names`, by domain, of the set in `directory`.

    Returns a folder in `into`, reused by later calls, with `truthA/x.png` and `maskA/x.png` for each `x.png` of A;
    likewise for B. Returns None if `directory` holds no set that was rendered by this version.
    """
    manifest = _read_manifest(directory)
    if manifest is None or manifest.get("version") != VERSION:
        return None
    key = hashlib.sha256(json.dumps([manifest, sorted((key, *value) for key, value in names.items())]).encode())
    folder = into / f"{NAME}-answers-{key.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    with locked_temp_dir(into, f".building-{NAME}-answers-") as temp_dir:
        for domain in names:
            for part in ("truth", "mask"):
                (temp_dir / f"{part}{domain}").mkdir()
            for name in names[domain]:
                if number := re.fullmatch(r"(?:apple|orange)-(\d{5,})\.png", name):
                    size, seed = manifest["image_size"], manifest["seed"]
                    scene = render("train", domain, int(number[1]), image_size=size, seed=seed)
                    save_picture(temp_dir / f"truth{domain}" / name, Picture(scene.truth))
                    save_picture(temp_dir / f"mask{domain}" / name, Picture(scene.mask[..., None]))
        move_into_place(temp_dir, folder, is_valid=folder.is_dir)
    return folder


def _read_manifest(directory: Path) -> dict | None:
    try:
        return json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        return None


def _reject_other_files(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"directory={directory} is a file; name a folder that is empty or does not exist")
    names = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    others = names if MANIFEST not in names else [name for name in names if name not in (*FOLDERS, MANIFEST)]
    if others:
        raise ValueError(
            f"directory={directory} is not empty and holds other things ({', '.join(others[:3])}); "
            "name a folder that is empty or does not exist"
        )


def _render_all(save_scene: Callable[[tuple], None], jobs: list[tuple], progress: Progress | None) -> None:
    workers = min(os.cpu_count() or 1, len(jobs) // 64)
    with ExitStack() as stack:
        results = map(save_scene, jobs)
        if workers > 1:  # else starting processes would take longer than rendering
            # "spawn": the caller may have threads and a device open, which a fork must not inherit.
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            results = pool.map(save_scene, jobs, chunksize=16)
        for done, _ in enumerate(results, start=1):
            if progress:
                progress(done, len(jobs))


def _save_scene(job: tuple[Split, Domain, int], *, directory: Path, image_size: int, test_size: int, seed: int) -> None:
    split, domain, index = job
    fruit: Kind = "apple" if domain == "A" else "orange"
    if split == "train":
        images = (_paint(_draw_scene(split, domain, index, image_size=image_size, seed=seed), fruit)[0],)
    else:
        images = render(split, domain, index, image_size=test_size, seed=seed)
    for folder, image in zip((split, "truth", "mask"), images):
        picture = Picture(image.reshape(*image.shape[:2], -1))
        save_picture(directory / f"{folder}{domain}" / f"{fruit}-{index:05d}.png", picture)


def _draw_scene(split: Split, domain: Domain, index: int, *, image_size: int, seed: int) -> _Scene:
    key = [seed, 0 if split == "train" else 1, 0 if domain == "A" else 1, index]
    random = np.random.default_rng(np.random.SeedSequence(key))
    canvas, horizon = paint_background(random, image_size * SUPERSAMPLING)
    light = draw_light(random)
    fruits = _draw_fruits(random)
    bounce = canvas[:, int(0.8 * canvas.shape[1]) :].mean(axis=(1, 2)).reshape(3, 1, 1)
    for fruit in fruits:
        cast_shadow(canvas, light, x=fruit.x, y=fruit.y, radius=fruit.radius, horizon=horizon)
    return _Scene(canvas, light, bounce, fruits)


def _draw_fruits(random: np.random.Generator) -> list[Fruit]:
    """Draw one fruit, or two side by side, the nearer one last."""
    if random.random() < 0.85:
        radius = random.uniform(0.25, 0.34)
        places = [(random.uniform(0.4, 0.6), random.uniform(0.52, 0.95 - radius), radius)]
    else:
        places = [
            (centre + random.uniform(-0.03, 0.03), random.uniform(0.52, 0.7), random.uniform(0.2, 0.24))
            for centre in (0.28, 0.72)
        ]
    return [
        draw_fruit(random, x=x, y=y, radius=radius)
        for x, y, radius in sorted(places, key=lambda place: place[1] + place[2])
    ]


def _paint(scene: _Scene, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    canvas = scene.canvas.copy()
    covered = np.zeros(canvas.shape[1:], np.float32)
    for fruit in scene.fruits:
        np.maximum(covered, paint_fruit(canvas, fruit, kind, light=scene.light, bounce=scene.bounce), out=covered)
    display = np.sqrt(np.clip(canvas, 0, 1))
    image = np.stack([_view_blocks(channel).mean(axis=(1, 3)) for channel in display], axis=-1)
    return np.round(image * 255).astype(np.uint8), covered


def _view_blocks(plane: np.ndarray) -> np.ndarray:
    """View `(S, S)` samples as `(H, s, W, s)`, a block of `s` x `s` samples for each pixel."""
    side = plane.shape[0] // SUPERSAMPLING
    return plane.reshape(side, SUPERSAMPLING, side, SUPERSAMPLING)
