"""The output of a run except checkpoints: log, progress bar, sample grids, page and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from velogan.engine.trainer import Trainer
from velogan.evaluation.samples import GridWriter
from velogan.files import pluralize
from velogan.observe.log import Log, read_stats
from velogan.observe.progress import Display, forecast
from velogan.report import write_report
from velogan.report.failures import ENDED, describe_improvement, find_failures

FORECAST_S = 60.0
"""Seconds of training after which the run's end is forecast; by then the speed is known."""


class Reporter:
    """Writes the log of a run, shows its progress, and reports each problem once."""

    def __init__(self, folder: Path, trainer: Trainer, log: Log, *, display: Display):
        self._folder, self._trainer = folder, trainer
        self._log = log
        self._print_line = display.print_line
        self._bar = display.training(trainer.length.total)
        self._started_at = trainer.clock.seconds
        self._already_reported: set[str] = set()

    def log_progress(self, images: int) -> None:
        """Add a row with speed, losses and learning rates to the log; update the progress bar."""
        trainer, clock = self._trainer, self._trainer.clock
        losses, speed = trainer.stats.tick(), clock.tick(images)
        row: dict[str, Any] = {**self._progress_fields(images), "images_per_s": speed}
        row["step_ms"] = 1000 * trainer.images_per_step / speed if speed else 0.0
        row |= {f"loss/{name}": value for name, value in losses.items()}
        row |= {
            f"lr/{group['name']}": float(group["lr"])
            for optimizer in trainer.step.optimizers.values()
            for group in optimizer.param_groups
        }
        if trainer.step.scale is not None:
            row["loss_scale"] = float(trainer.step.scale.factor)
        self._log.write(row)
        total, length_s = trainer.length.total, trainer.length.seconds
        left_s = clock.eta(max((total or 0) - images, 0)) if length_s is None else max(length_s - clock.seconds, 0.0)
        self._bar.update(images, images_per_s=speed, eta_s=left_s, losses=_total_losses(losses))
        if clock.seconds - self._started_at >= FORECAST_S and "forecast" not in self._already_reported:
            self._report_once("forecast", forecast(images, images_per_s=speed, total=total, left_s=left_s))

    def log_scores(self, images: int, scores: Mapping[str, Any], *, is_final: bool) -> None:
        """Log the scores of a checkpoint; `is_final`: whether it is the last checkpoint of the run."""
        self._log.write({**self._progress_fields(images), **scores, **({ENDED: True} if is_final else {})})

    def report_failures(self, *, is_final: bool) -> None:
        """Print signs of failure that the log shows and, if `is_final`, the improvement over the unchanged input."""
        stats = read_stats(self._folder)
        for failure in find_failures(stats):
            since = pluralize(failure.since, "image")
            self._report_once(failure.name, f"since {since} {failure.description}: try {failure.hint}")
        if is_final and (improvement := describe_improvement(stats)):
            self._print_line(improvement)

    def write_page(self) -> None:
        """Write `report.html`."""
        self._try_write("report.html", write_report, [self._folder])

    def write_samples(self, sampler: GridWriter, images: int) -> None:
        """Write the sample grids; `images`: number of images seen."""
        self._try_write("sample pictures", sampler.write, images)

    def _try_write(self, name: str, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write(*arguments)`, which writes files that training does not need; report an OSError only once."""
        try:
            write(*arguments)
        except OSError as error:
            reason = error.strerror or error
            self._report_once(name, f"{self._folder}: {name} cannot be written ({reason}): training continues without")

    def _report_once(self, subject: str, text: str) -> None:
        if subject not in self._already_reported:
            self._already_reported.add(subject)
            self._print_line(text)

    def _progress_fields(self, images: int) -> dict[str, Any]:
        """Return the fields of every row of the log: images, epoch and seconds."""
        trainer = self._trainer
        return {"images": images, "epoch": images / trainer.images_per_epoch, "seconds": trainer.clock.seconds}


def _total_losses(losses: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's total loss, keyed by the initials of its name; by the whole name if initials coincide."""
    totals = {name.split("/")[0]: value for name, value in losses.items() if name.endswith("/total")}
    initials = {name: "".join(word[0] for word in name.split("_")).upper() for name in totals}
    unique = {name for name in totals if [*initials.values()].count(initials[name]) == 1}
    return {initials[name] if name in unique else name: value for name, value in totals.items()}
