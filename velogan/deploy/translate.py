"""Translating picture files: one, or a folder with its tree kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from velogan.data.images import SUFFIXES, read_image, save_image
from velogan.data.sources import list_images
from velogan.deploy.model import Translator

Progress = Callable[[int, int], None]

_AHEAD = 32  # pictures decoded but not translated, or translated but not saved: bounds memory


@dataclass(frozen=True)
class Summary:
    """What became of the pictures: two counts, and the name and reason of each that failed."""

    translated: int
    skipped: int
    failed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Job:
    name: str
    source: Path
    target: Path


def translate(
    model: Translator,
    input: Path,
    output: Path,
    *,
    overwrite: bool = False,
    batch_pixels: int = 16 * 256 * 256,
    progress: Progress | None = None,
) -> Summary:
    """Translate one picture, or every picture below a folder, into `output`; names, tree and sizes are kept.

    `output`: a folder, or for one picture a file whose suffix names the format. A picture that is already
    there is skipped unless `overwrite`; it appears whole or not at all. A picture that fails is named in
    the summary and does not stop the others. Pictures of equal size share a pass of up to `batch_pixels`
    pixels; a larger one goes alone. `progress(done, total)` counts pictures, from the calling thread.
    Raises `ValueError` with the mend where the input is missing or empty, or would be overwritten.
    """
    jobs = _jobs(Path(input), Path(output))
    todo = [job for job in jobs if overwrite or not job.target.exists()]
    skipped = len(jobs) - len(todo)
    failed: list[tuple[str, str]] = []
    saves: deque[tuple[_Job, Future[None]]] = deque()
    done = skipped

    def finish(job: _Job, error: BaseException | None) -> None:
        nonlocal done
        done += 1
        if error is not None:
            failed.append((job.name, str(error) or type(error).__name__))
        if progress is not None:
            progress(done, len(jobs))

    if progress is not None:
        progress(done, len(jobs))
    with ThreadPoolExecutor() as pool:
        decoded = _decode(todo, pool, failed_one=finish)
        for batch in _equal_sizes(decoded, batch_pixels):
            try:
                pictures = _run(model, np.stack([picture for _, picture in batch]))
            except RuntimeError as error:  # out of memory, most likely: smaller pictures may still pass
                for job, _ in batch:
                    finish(job, error)
                continue
            for (job, _), picture in zip(batch, pictures):
                saves.append((job, pool.submit(_save, job.target, picture)))
            while len(saves) > _AHEAD:
                job, save = saves.popleft()
                finish(job, save.exception())
        for job, save in saves:
            finish(job, save.exception())
    return Summary(translated=len(todo) - len(failed), skipped=skipped, failed=tuple(sorted(failed)))


def _jobs(source: Path, target: Path) -> list[_Job]:
    if not source.exists():
        raise ValueError(f"input {source} does not exist: name a picture or a folder of pictures")
    if source.is_file():
        to_file = target.suffix.lower() in SUFFIXES and not target.is_dir()
        target = target if to_file else target / source.name
        if target.resolve() == source.resolve():
            raise ValueError(f"output {target} is the input itself: name another file or folder")
        return [_Job(source.name, source, target)]
    if target.resolve() == source.resolve():
        raise ValueError(f"output {target} is the input folder itself: name another folder")
    if target.is_file():
        raise ValueError(f"output {target} is a file, but the input is a folder: name a folder")
    paths = [(name, source / name) for name in list_images(source)]
    inside = target.resolve()  # earlier translations, where the output lies within the input
    jobs = [_Job(name, path, target / name) for name, path in paths if inside not in path.resolve().parents]
    if not jobs:
        kinds = " ".join(sorted(suffix[1:] for suffix in SUFFIXES))
        raise ValueError(f"input {source} holds no picture ({kinds}): name a folder that does")
    return jobs


def _decode(
    jobs: list[_Job], pool: ThreadPoolExecutor, *, failed_one: Callable[[_Job, BaseException], None]
) -> Iterator[tuple[_Job, np.ndarray]]:
    """Read pictures in threads, a bounded number ahead, in order."""
    waiting: deque[tuple[_Job, Future[np.ndarray]]] = deque()
    for upcoming in [*jobs, *[None] * min(_AHEAD, len(jobs))]:
        if upcoming is not None:
            waiting.append((upcoming, pool.submit(read_image, upcoming.source)))
        if upcoming is None or len(waiting) > _AHEAD:
            job, reading = waiting.popleft()
            error = reading.exception()
            if error is None:
                yield job, reading.result()
            else:
                failed_one(job, error)


def _equal_sizes(
    decoded: Iterator[tuple[_Job, np.ndarray]], batch_pixels: int
) -> Iterator[list[tuple[_Job, np.ndarray]]]:
    groups: dict[tuple[int, ...], list[tuple[_Job, np.ndarray]]] = {}
    for job, picture in decoded:
        group = groups.setdefault(picture.shape, [])
        group.append((job, picture))
        if (len(group) + 1) * picture.shape[0] * picture.shape[1] > batch_pixels:
            yield groups.pop(picture.shape)
        elif sum(map(len, groups.values())) > _AHEAD:
            yield groups.pop(max(groups, key=lambda shape: len(groups[shape])))
    yield from groups.values()


def _run(model: Translator, pictures: np.ndarray) -> np.ndarray:
    """Translate `(B, H, W, 3)` uint8 into the same."""
    images = torch.from_numpy(pictures).to(model.device).permute(0, 3, 1, 2).float() / 127.5 - 1
    levels = ((model(images) + 1) * 127.5).round().clamp(0, 255)
    return levels.byte().permute(0, 2, 3, 1).cpu().numpy()


def _save(target: Path, picture: np.ndarray) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".fresh-{target.name}")  # hidden: no listing takes it for a picture
    try:
        save_image(fresh, picture)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
