"""`velogan translate`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from velogan.cli.flags import FP32, Checkpoint, Flags, Json, Outcome, Weights, folder_of
from velogan.files import counted

if TYPE_CHECKING:
    from velogan.observe.progress import Display
    from velogan.translate.files import Summary
    from velogan.translate.jobs import Job
    from velogan.translate.maps import MapResult
    from velogan.translate.model import Translator
    from velogan.translate.uncertainty import UncertaintyEstimator


_SHOWN = 5  # files that failed, by name


@dataclass(kw_only=True)
class Translate(Flags):
    """Flags of `velogan translate`.

    velogan translate runs/zebras photos translated

    velogan translate apples2oranges apple.png orange.png

    velogan translate runs/zebras zebra.jpg horse.jpg --direction b2a

    velogan translate runs/zebras photos translated --uncertainty

    velogan translate runs/zebras film.mp4 zebras.mp4 --smooth 0.8

    velogan translate runs/zebras photos translated --masks masks

    velogan translate runs/zebras photos translated --workers 8
    """

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(
            metavar="RUN|FILE",
            help="A run folder, a .safetensors or .pth file, hf://OWNER/NAME, or apples2oranges, which comes "
            "with velogan.",
        ),
    ]
    input: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(
            metavar="INPUT",
            help="An image, a film, a DICOM or NIfTI file, or a folder.",
        ),
    ]
    output: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(
            metavar="OUTPUT",
            help="The image or folder to write. Of one input, a name with letters behind its last dot is a file's, "
            "unless there is such a folder; .v2 and .2026 are folders'.",
        ),
    ]
    direction: Annotated[
        Literal["a2b", "b2a"] | None,
        tyro.conf.arg(
            help="From domain A to B, or from B to A. Default: a2b; the direction of a weights file.", metavar="a2b|b2a"
        ),
    ] = None
    weights: Weights = None
    checkpoint: Checkpoint = None
    overwrite: Annotated[bool, tyro.conf.arg(help="Replace files that exist already; else they are left.")] = False
    format: Annotated[
        Literal["png", "jpg", "webp", "bmp", "tiff", "npy"] | None,
        tyro.conf.arg(
            help="Format of what is written. Default: each picture's own.", metavar="png|jpg|webp|bmp|tiff|npy"
        ),
    ] = None
    tile: Annotated[
        int | None,
        tyro.conf.arg(
            help="Side, in pixels, of the tiles that larger pictures are translated in; 0: never in tiles. "
            "Default: 768, for pictures of more than two million pixels.",
            metavar="PIXELS",
        ),
    ] = None
    smooth: Annotated[
        float,
        tyro.conf.arg(
            help="Of a film: the share, from 0 to less than 1, of what was shown before in each frame, where the input "
            "stands still. 0.8 flickers less.",
            metavar="SHARE",
        ),
    ] = 0.0
    uncertainty: Annotated[
        bool,
        tyro.conf.arg(
            help="Also write an uncertainty map NAME.uncertainty.png for each result. RUN must be a run folder."
        ),
    ] = False
    masks: Annotated[
        Path | None,
        tyro.conf.arg(
            help="A mask for each picture, under its name: what is black there stays as it was, pixel for pixel; grey "
            "mixes. Of one picture, the mask itself. Write PNG: JPEG changes all pixels.",
            metavar="DIR|FILE",
        ),
    ] = None
    masks_keep: Annotated[
        Literal["outside", "inside"],
        tyro.conf.arg(help="What masks keep: outside, what is black; inside, what is white.", metavar="outside|inside"),
    ] = "outside"
    pages: Annotated[
        Literal["channels", "slices"] | None,
        tyro.conf.arg(
            help="What several pages of a TIFF are: channels of one picture, where it does not say; or slices, each of "
            "which is translated alone. Default: as in training, else what the file says.",
            metavar="channels|slices",
        ),
    ] = None
    fp32: Annotated[bool, tyro.conf.arg(help=FP32)] = False
    device: Annotated[str, tyro.conf.arg(help="Where to compute: auto, cpu, cuda or mps.")] = "auto"
    workers: Annotated[
        int | None,
        tyro.conf.arg(
            help="Translate the pictures of a folder by N processes under Ray; needs the extra `scale`. "
            "Default: in this process.",
            metavar="N",
        ),
    ] = None
    address: Annotated[
        str | None,
        tyro.conf.arg(help="With --workers: a Ray that runs already: auto or HOST:PORT. Default: one of our own."),
    ] = None
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("output", folder_of(self.output))]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.sources import left_out
        from velogan.engine.memory import peak_memory_mb
        from velogan.observe.progress import Display
        from velogan.translate.files import translate
        from velogan.translate.maps import write_maps

        if self.workers is not None:
            kept = {"--masks": self.masks, "--masks-keep": self.masks_keep != "outside"}
            for flag, asked in {"--uncertainty": self.uncertainty, "--smooth": self.smooth, **kept}.items():
                if asked:
                    raise ValueError(
                        f"{flag} is for one process, but --workers is {self.workers}: leave one of them out"
                    )
            return _translate_at_scale(self, self.workers)
        if self.address is not None:
            raise ValueError(f"--address {self.address} is for many processes: add --workers N, or leave it out")
        model = _translator(self)
        estimator, jobs = _prepare_uncertainty(self, model) if self.uncertainty else (None, [])
        with Display() as display:
            for line in _taken(self, model):
                display.say(line)
            done = translate(
                model,
                self.input,
                self.output,
                overwrite=self.overwrite,
                format=self.format,
                tile=self.tile,
                smooth=self.smooth,
                masks=self.masks,
                masks_keep=self.masks_keep,
                progress=display.task("translating"),
            )
            output = self.output
            if done.renamed and output.suffix and not output.is_dir():  # one picture, in another format than asked for
                output = output.with_suffix(done.renamed[0][1])
            _tell_translated(display, done, output)
            for line in filter(None, (left_out(self.input, scans=True), *done.masked, _animated(done))):
                display.say(line)
            if estimator is None:
                return _translated(done, peak_memory_mb())
            how: Any = {"overwrite": self.overwrite, "tile": self.tile, "progress": display.task("uncertainty maps")}
            maps = write_maps(estimator, jobs, without=[name for name, _ in done.failed], **how)
            for one in maps:
                if one.reason:
                    display.say(f"{one.name}: no uncertainty map: {one.reason}")
            result, code = _translated(done, peak_memory_mb())
        return {**result, "uncertainty": [_uncertainty(one) for one in maps]}, 1 if any(
            one.reason for one in maps
        ) else code


def _prepare_uncertainty(asked: Translate, model: Translator) -> tuple[UncertaintyEstimator, list[tuple[Job, Path]]]:
    """What makes uncertainty maps, and of which pictures. What cannot be is said before anything is written."""
    from velogan.evaluation.uncertainty import uncertainty_estimator
    from velogan.translate.maps import find_map_jobs

    if model.input.pages == "slices":
        raise ValueError("--uncertainty is for pictures, and pages of a TIFF are slices here: leave --uncertainty out")
    return uncertainty_estimator(model), find_map_jobs(asked.input, asked.output, format=asked.format)


def _taken(asked: Translate, model: Translator) -> list[str]:
    """Which checkpoint of a run nobody chose, in a line."""
    from velogan.store.checkpoint import list_checkpoints, taken

    if asked.checkpoint is not None or model.file is None or not list_checkpoints(asked.model):
        return []
    which = taken(asked.model)
    why = ", since by held-out pictures the last one is much worse" if which == "best" else ""
    return [f"by the {which} checkpoint, of {counted(int(model.file.parent.name), 'image')}{why}"]


def _uncertainty(made: MapResult) -> dict[str, Any]:
    if made.uncertainty is None:
        return {"name": made.name, "reason": made.reason}
    return {"name": made.name, "map": str(made.file), **made.uncertainty.summary}


def _translate_at_scale(asked: Translate, workers: int) -> Outcome:
    from velogan.data.sets.sources import left_out
    from velogan.interchange.hub import local
    from velogan.observe.progress import Display
    from velogan.scale.translate import Options, translate_at_scale

    model = _translator(dataclasses.replace(asked, fp32=True))  # what is wrong with it, it says at once
    if model.input.pages == "slices":
        raise ValueError(
            f"--workers {workers} take pictures, and pages of a TIFF are slices here: leave --workers out, or say "
            "--pages channels"
        )
    with Display() as display:
        done, peak_mb = translate_at_scale(
            partial(_translator_of_worker, dataclasses.replace(asked, model=local(asked.model).absolute())),
            asked.input,
            asked.output,
            workers=workers,
            options=Options(asked.format, asked.tile, asked.overwrite),
            gpus=asked.device != "cpu" and (model.device.type == "cuda" or asked.address is not None),
            address=asked.address,
            progress=display.count("translating"),
        )
        _tell_translated(display, done, asked.output)
        for line in filter(None, (left_out(asked.input, scans=False), _animated(done))):
            display.say(line)
    result, code = _translated(done, peak_mb)
    return {**result, "workers": workers}, code


def _translator(asked: Translate) -> Translator:
    from velogan.engine.device import resolve_device
    from velogan.interchange.hub import local
    from velogan.translate.model import load_translator

    return load_translator(
        local(asked.model),
        direction=asked.direction,
        weights=asked.weights,
        checkpoint=asked.checkpoint,
        device=resolve_device(asked.device),
        fast=not asked.fp32,
    ).with_pages(asked.pages)


def _translator_of_worker(asked: Translate, gpus: int) -> Translator:
    return _translator(asked if gpus else dataclasses.replace(asked, device="cpu"))


def _tell_translated(display: Display, done: Summary, output: Path) -> None:
    for name, reason in done.failed[:_SHOWN]:
        display.say(f"{name}: {reason}")
    if len(done.failed) > _SHOWN:
        display.say(f"and {len(done.failed) - _SHOWN} more that failed; --json names them all")
    for name, suffix in done.renamed[:1]:
        more = f" and {len(done.renamed) - 1} more" if len(done.renamed) > 1 else ""
        display.say(f"{name}{more} saved in a format that can hold the result: {suffix}")
    counts = f"{done.translated} translated, {done.skipped} there already, {len(done.failed)} failed"
    display.say(f"{counts}: {'in ' if output.is_dir() else ''}{output}")


def _animated(done: Summary) -> str:
    """Return a line on animations, of which one picture was translated; empty if there are none."""
    if not done.animated:
        return ""
    name, pictures = done.animated[0]
    more = f" (so of {len(done.animated) - 1:,} more)" if len(done.animated) > 1 else ""
    return f"{name} is an animation: the first of its {pictures} pictures was translated{more}"


def _translated(done: Summary, peak_mb: float) -> Outcome:
    frames, renamed = done.frames, done.renamed
    result = {
        "translated": done.translated,
        "skipped": done.skipped,
        "failed": [{"name": name, "reason": reason} for name, reason in done.failed],
        **({"renamed": [{"name": name, "suffix": suffix} for name, suffix in renamed]} if renamed else {}),
        "tiled": done.tiled,
        **({"frames": frames} if frames else {}),
        "images_per_s": round((frames or done.translated) / done.seconds, 3),
        "peak_memory_mb": round(peak_mb, 1),
    }
    return result, 1 if done.failed else 0
