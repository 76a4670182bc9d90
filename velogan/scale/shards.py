"""Translating the pictures of a tar file into another: everything else in it is copied, in its place."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

from velogan.data.pictures.picture import MAX_BYTES
from velogan.data.sets.tars import damage_told, forget, is_picture, members
from velogan.scale.work import WINDOW, WINDOW_BYTES, Done, Options, Packed, within
from velogan.translate.files import translate_jobs
from velogan.translate.model import Translator

Member = tuple[tarfile.TarInfo, bytes]


def translate_shard(model: Translator, source: Path, target: Path, *, name: str, options: Options) -> Done:
    """Translate the pictures of the tar file `source`, called `name`, into the file `target`, in their order.

    A picture that fails is left out and named. Raises `ValueError` where the file is damaged.
    """
    done = Done()
    with damage_told(), open(source, "rb") as file, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        for window in _windows(file, out, name, done):
            _translate(model, window, out, target.parent, name=name, options=options, done=done)
    return done


def _windows(source: IO[bytes], out: tarfile.TarFile, name: str, done: Done) -> Iterator[list[Member]]:
    """The members in runs of bounded size; large ones that are no pictures are copied at once."""
    window: list[Member] = []
    size = 0
    for tar, member in members(source):
        if is_picture(member) and member.size > MAX_BYTES:
            done.failed.append((within(name, member.name), f"a file of {member.size >> 20} MiB is too large"))
            continue
        if window and (len(window) >= WINDOW or size + member.size > WINDOW_BYTES):
            yield window
            window, size = [], 0
        file = tar.extractfile(member) if member.isreg() else None
        if file is not None and member.size > WINDOW_BYTES and not is_picture(member):
            out.addfile(member, file)
            forget(out)
            continue
        data = file.read() if file is not None else b""
        if len(data) < member.size and file is not None:
            raise tarfile.ReadError("unexpected end of data")
        window.append((member, data))
        size += len(data)
    if window:
        yield window


def _translate(
    model: Translator,
    window: list[Member],
    out: tarfile.TarFile,
    scratch: Path,
    *,
    name: str,
    options: Options,
    done: Done,
) -> None:
    results: dict[int, tuple[str, bytes]] = {}
    pictures = [number for number, (member, _) in enumerate(window) if is_picture(member)]
    targets = {number: _target(window[number][0], options.suffix) for number in pictures}
    often = Counter([*targets.values(), *(member.name for member, _ in window if not is_picture(member))])
    jobs: list[Packed] = []
    for number in pictures:
        member, data = window[number]
        called, target = within(name, member.name), targets[number]
        if often[target] > 1 and target != member.name:
            done.failed.append((called, f"another would become {target} too: rename one, or leave the format out"))
        else:
            target = Path(target)
            jobs.append(Packed(name=called, source=data, target=target, folder=scratch, number=number, results=results))
    done.add(translate_jobs(model, jobs, options.settings(model), threads=options.threads))
    for number, (member, data) in enumerate(window):
        if number in targets:
            if number not in results:
                continue
            suffix, data = results[number]
            member.name = _target(member, suffix)
            member.size = len(data)
            member.pax_headers = {key: text for key, text in member.pax_headers.items() if key not in ("path", "size")}
        out.addfile(member, BytesIO(data) if member.isreg() else None)
        forget(out)


def _target(member: tarfile.TarInfo, suffix: str | None) -> str:
    own = PurePosixPath(member.name).suffix
    return member.name if suffix is None or suffix == own else member.name.removesuffix(own) + suffix
