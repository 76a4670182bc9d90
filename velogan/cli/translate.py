"""`velogan translate`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from velogan.cli.flags import DEVICE, FP32, Checkpoint, Flags, Json, Model, Outcome, Weights, output_folder
from velogan.files import join_first

if TYPE_CHECKING:
    from velogan.observe.progress import Display
    from velogan.translate.files import Summary
    from velogan.translate.jobs import Job
    from velogan.translate.maps import MapResult
    from velogan.translate.model import Translator
    from velogan.translate.uncertainty import UncertaintyEstimator


_MAX_FAILURES = 5  # failed files that are printed by name


@dataclass(kw_only=True)
class Translate(Flags):
    """Flags of `velogan translate`.

    velogan translate runs/zebras photos translated
    velogan translate apples2oranges apple.png orange.png
    velogan translate runs/zebras zebra.jpg horse.jpg --direction b2a
    velogan translate runs/zebras photos translated --uncertainty
    velogan translate runs/zebras video.mp4 zebras.mp4 --smooth 0.8
    """

    HELP_FLAGS = "model input output direction checkpoint overwrite format tile smooth uncertainty workers json"

    model: Model
    input: Annotated[
        Positional[Path], arg(metavar="INPUT", help="A picture, a video, a DICOM or NIfTI file, or a folder of these.")
    ]
    output: Annotated[
        Positional[Path],
        arg(
            metavar="OUTPUT",
            help="The file or folder to write. For a single input, out.png is a file; out or out.v2 is a folder.",
        ),
    ]
    direction: Annotated[
        Literal["a2b", "b2a"] | None,
        arg(help="Translate from domain A to B or from B to A. Default: a2b, or the direction of a weights file."),
    ] = None
    weights: Weights = None
    checkpoint: Checkpoint = None
    overwrite: Annotated[bool, arg(help="Replace existing files instead of skipping them.")] = False
    format: Annotated[
        Literal["png", "jpg", "webp", "bmp", "tiff", "npy"] | None,
        arg(help="File format of the results. Default: that of each input."),
    ] = None
    tile: Annotated[
        int | None,
        arg(
            help="Height and width of the tiles into which large images are cut; 0: no tiles. Default: 768 above two "
            "million pixels. Use less if memory runs out.",
            metavar="PIXELS",
        ),
    ] = None
    smooth: Annotated[
        float,
        arg(
            help="For videos: weight, from 0 to below 1, of the previous frame where the input does not move. Default: "
            "0; 0.8 reduces flicker.",
            metavar="WEIGHT",
        ),
    ] = 0.0
    uncertainty: Annotated[
        bool, arg(help="Also write an uncertainty map NAME.uncertainty.png for each result. RUN must be a run folder.")
    ] = False
    pages: Annotated[
        Literal["channels", "slices"] | None,
        arg(
            help="Meaning of several pages of a TIFF: channels of one image, or slices that are translated one by one. "
            "Default: as in training, or what the file declares."
        ),
    ] = None
    fp32: Annotated[bool, arg(help=FP32)] = False
    device: Annotated[str, DEVICE] = "auto"
    workers: Annotated[
        int | None,
        arg(
            help="Number of Ray processes that translate the pictures of a folder (extra `scale`). Default: no Ray, "
            "one process."
        ),
    ] = None
    address: Annotated[
        str | None,
        arg(help="With --workers: running Ray cluster, auto or HOST:PORT. Default: start Ray on this machine."),
    ] = None
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("output", output_folder(self.output))]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.data.sets.sources import describe_skipped_files
        from velogan.engine.memory import peak_memory_mb
        from velogan.observe.progress import Display
        from velogan.translate.files import translate
        from velogan.translate.maps import write_maps
        from velogan.translate.model import describe_default_checkpoint
        from velogan.translate.options import TranslateOptions

        if self.workers is not None:
            unsupported = {"--uncertainty": self.uncertainty, "--smooth": self.smooth}
            for flag, is_set in unsupported.items():
                if is_set:
                    raise ValueError(f"{flag} cannot be combined with --workers {self.workers}: remove one of them")
            return _translate_at_scale(self, self.workers)
        if self.address is not None:
            raise ValueError(f"--address {self.address} has no effect without --workers: add --workers N or remove it")
        model = _load_translator(self)
        estimator, jobs = _prepare_uncertainty(self, model) if self.uncertainty else (None, [])
        with Display() as display:
            for line in describe_default_checkpoint(self.model, model) if self.checkpoint is None else []:
                display.print_line(line)
            summary = translate(
                model,
                self.input,
                self.output,
                TranslateOptions(overwrite=self.overwrite, format=self.format, tile=self.tile, smooth=self.smooth),
                progress=display.task("translating"),
            )
            output = self.output
            if summary.renamed and output.suffix and not output.is_dir():  # the requested format could not be written
                output = output.with_suffix(summary.renamed[0][1])
            _print_summary(display, summary, output)
            for line in filter(None, (describe_skipped_files(self.input, no_scans=True), _describe_animated(summary))):
                display.print_line(line)
            result, code = _make_outcome(summary, peak_memory_mb())
            if estimator is None:
                return result, code
            options: Any = {"overwrite": self.overwrite, "tile": self.tile}
            failed = [name for name, _ in summary.failed]
            maps = write_maps(estimator, jobs, excluded=failed, progress=display.task("uncertainty maps"), **options)
            for uncertainty_map in maps:
                if uncertainty_map.reason:
                    display.print_line(f"{uncertainty_map.name}: no uncertainty map: {uncertainty_map.reason}")
                    code = 1
        return {**result, "uncertainty": [_map_record(uncertainty_map) for uncertainty_map in maps]}, code


def _prepare_uncertainty(command: Translate, model: Translator) -> tuple[UncertaintyEstimator, list[tuple[Job, Path]]]:
    """Return the estimator and the pictures with their map files. Raises ValueError if maps are not possible."""
    from velogan.evaluation.uncertainty import uncertainty_estimator
    from velogan.translate.maps import find_map_jobs

    if model.input.pages == "slices":
        raise ValueError("--uncertainty is not supported for TIFF pages that are slices: remove --uncertainty")
    return uncertainty_estimator(model), find_map_jobs(command.input, command.output, format=command.format)


def _map_record(uncertainty_map: MapResult) -> dict[str, Any]:
    if uncertainty_map.uncertainty is None:
        return {"name": uncertainty_map.name, "reason": uncertainty_map.reason}
    return {"name": uncertainty_map.name, "map": str(uncertainty_map.file), **uncertainty_map.uncertainty.summary}


def _translate_at_scale(command: Translate, workers: int) -> Outcome:
    from velogan.data.sets.sources import describe_skipped_files
    from velogan.interchange.hub import resolve_model_path
    from velogan.observe.progress import Display
    from velogan.scale.translate import translate_at_scale
    from velogan.translate.options import TranslateOptions

    model = _load_translator(dataclasses.replace(command, fp32=True))  # reports errors before workers start
    if model.input.pages == "slices":
        raise ValueError(
            f"--workers {workers} is not supported for TIFF pages that are slices: remove --workers, or add "
            "--pages channels"
        )
    with Display() as display:
        worker_command = dataclasses.replace(command, model=resolve_model_path(command.model).absolute())
        summary, peak_mb = translate_at_scale(
            partial(_load_in_worker, worker_command),
            command.input,
            command.output,
            workers=workers,
            options=TranslateOptions(format=command.format, tile=command.tile, overwrite=command.overwrite),
            uses_gpus=command.device != "cpu" and (model.device.type == "cuda" or command.address is not None),
            address=command.address,
            progress=display.count("translating"),
        )
        _print_summary(display, summary, command.output)
        for line in filter(None, (describe_skipped_files(command.input, no_scans=False), _describe_animated(summary))):
            display.print_line(line)
    result, code = _make_outcome(summary, peak_mb)
    return {**result, "workers": workers}, code


def _load_translator(command: Translate) -> Translator:
    from velogan.engine.device import resolve_device
    from velogan.interchange.hub import resolve_model_path
    from velogan.translate.model import load_translator

    if not (command.model / "config.yaml").exists() and (command.input / "config.yaml").exists():
        raise ValueError(f"{command.model} is not a run, but {command.input} is: write translate RUN INPUT OUTPUT")
    return load_translator(
        resolve_model_path(command.model),
        direction=command.direction,
        weights=command.weights,
        checkpoint=command.checkpoint,
        device=resolve_device(command.device),
        fast=not command.fp32,
    ).with_pages(command.pages)


def _load_in_worker(command: Translate, gpus: int) -> Translator:
    return _load_translator(command if gpus else dataclasses.replace(command, device="cpu"))


def _print_summary(display: Display, summary: Summary, output: Path) -> None:
    for name, reason in summary.failed[:_MAX_FAILURES]:
        display.print_line(f"{name}: {reason}")
    if len(summary.failed) > _MAX_FAILURES:
        display.print_line(f"and {len(summary.failed) - _MAX_FAILURES} more that failed; --json lists them all")
    for _, suffix in summary.renamed[:1]:
        names = join_first([name for name, _ in summary.renamed], 1)
        display.print_line(f"{names} saved as {suffix}, which can represent the result")
    if summary.stale:
        display.print_line(f"{join_first(summary.stale, 3)}: older than the weights; --overwrite replaces them")
    counts = f"{summary.translated} translated, {summary.skipped} already exist, {len(summary.failed)} failed"
    display.print_line(f"{counts}: {'in ' if output.is_dir() else ''}{output}")


def _describe_animated(summary: Summary) -> str:
    """Return a line on animated pictures, of which only the first frame was translated; empty if there are none."""
    if not summary.animated:
        return ""
    name, frames = summary.animated[0]
    more = f" (also of {len(summary.animated) - 1:,} more)" if len(summary.animated) > 1 else ""
    return f"{name} is an animation: only the first of its {frames} frames was translated{more}"


def _make_outcome(summary: Summary, peak_mb: float) -> Outcome:
    frames, renamed = summary.frames, summary.renamed
    result = {
        "translated": summary.translated,
        "skipped": summary.skipped,
        "failed": [{"name": name, "reason": reason} for name, reason in summary.failed],
        **({"stale": summary.stale} if summary.stale else {}),
        **({"renamed": [{"name": name, "suffix": suffix} for name, suffix in renamed]} if renamed else {}),
        "tiled": summary.tiled,
        **({"frames": frames} if frames else {}),
        "images_per_s": round((frames or summary.translated) / summary.seconds, 3),
        "peak_memory_mb": round(peak_mb, 1),
    }
    return result, 1 if summary.failed else 0
