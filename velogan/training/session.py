"""Training on rank 0, which writes the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from velogan.engine.duration import parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.trainer import Hook, Trainer, stop_on_signal
from velogan.evaluation.samples import GridWriter
from velogan.evaluation.validation import Validation
from velogan.files import pluralize
from velogan.methods.base import Role
from velogan.observe.log import Log
from velogan.search.history import ArchitectureRecorder
from velogan.store.checkpoint import digest, list_checkpoints, remove_old
from velogan.training.context import RunContext
from velogan.training.reporter import Reporter
from velogan.training.saver import CheckpointSaver
from velogan.training.stopping import StoppingRule


@dataclass(frozen=True)
class Result:
    """The result of a run. `seconds`: elapsed time, including earlier starts; `images_per_s`: since the last start."""

    run: Path
    checkpoint: Path
    images_seen: int
    images_per_s: float
    seconds: float
    weights_sha256: str
    finished: bool
    world_size: int = 1


class Session:
    """Runs the trainer of a prepared run, with hooks that log, save and decide to stop."""

    def __init__(
        self, context: RunContext, trainer: Trainer, roles: Mapping[str, Role], *, log: Log, validation: Validation
    ):
        self.folder, self.print_line = context.folder, context.display.print_line
        self.log = log
        self.config, self.trainer = context.config, trainer
        self.validation = validation
        trainer.set_length(trainer.length)  # reserves time for the last hooks of a resumed run
        self.saver = CheckpointSaver(context, trainer, roles)
        self.reporter = Reporter(self.folder, trainer, log, display=context.display)
        self.stopping = StoppingRule(self.folder, trainer, patience=self.config.train.patience)

    def run(self, *, sampler: GridWriter | None, architecture: ArchitectureRecorder | None = None) -> Result:
        """Train to the end of the run, or until a stop is requested, and save a checkpoint.

        Raises NonFiniteError if a loss or gradient is not finite; then nothing is saved, and earlier checkpoints stay.
        """
        trainer = self.trainer
        images_before, training_s_before = trainer.images, trainer.clock.training_seconds
        with self.log, stop_on_signal(trainer):
            if architecture is not None:
                architecture.start(trainer.images)
            hooks = self._build_hooks(sampler, architecture)
            is_ended = self.stopping.is_patience_exhausted
            self._report_start(is_ended=is_ended)
            try:
                if trainer.distributed.broadcast(not is_ended):
                    trainer.run(trainer.length, hooks=hooks)
            except NonFiniteError as error:
                error.advice = self._advice()
                raise
            if trainer.distributed.broadcast(not list_checkpoints(self.folder)):
                self._save(trainer.images)
        images = trainer.images - images_before
        if not images:
            self.reporter.write_page()
        training_s = trainer.clock.training_seconds - training_s_before
        last = list_checkpoints(self.folder)[-1]
        return Result(
            run=self.folder,
            checkpoint=last,
            images_seen=trainer.images,
            images_per_s=images / training_s if training_s > 0 else 0.0,
            seconds=trainer.clock.seconds,
            weights_sha256=digest(last),
            finished=self.stopping.is_at_end or self.stopping.is_patience_exhausted,
            world_size=trainer.distributed.world_size,
        )

    def _build_hooks(self, sampler: GridWriter | None, architecture: ArchitectureRecorder | None) -> list[Hook]:
        train, length = self.config.train, self.trainer.length
        hooks = [Hook(parse_span(train.log_every), self.reporter.log_progress)]
        if sampler is not None:
            hooks.append(
                Hook(length.saving_interval(train.sample_every), partial(self.reporter.write_samples, sampler))
            )
        if architecture is not None:
            hooks.append(Hook(parse_span(train.log_every), architecture.write))
        hooks.append(Hook(length.saving_interval(train.checkpoint_every), self._save))
        return hooks

    def _save(self, images: int) -> None:
        """Save and score a checkpoint, report signs of failure, and end the run if its patience is exhausted."""
        checkpoint = self.saver.save(images)
        scores = self.validation.score() if self.validation.description else None
        is_final = self.stopping.is_at_end  # scoring may take the rest of a run in minutes
        if scores is not None:
            self.reporter.log_scores(images, scores, is_final=is_final)
            self.saver.update_best(checkpoint, scores, self.validation)
        self.reporter.report_failures(is_final=is_final)
        if scores is not None and self.stopping.is_patience_exhausted:
            checkpoints = pluralize(self.stopping.patience, "checkpoint")
            self.print_line(f"the score has not improved for {checkpoints}: the run ends")
            self.trainer.converged = True
        remove_old(self.folder, keep=self.config.train.keep)
        self.reporter.write_page()

    def _report_start(self, *, is_ended: bool) -> None:
        """Report why no checkpoint will be scored, or that the patience was exhausted before this start."""
        patience = self.stopping.patience
        if self.validation.disabled_reason:
            note = f"; train.patience={patience} has no effect without scores" if patience else ""
            self.print_line(self.validation.disabled_reason + note)
        if is_ended and not self.stopping.is_at_end:
            images = pluralize(self.trainer.images, "image")
            self.print_line(
                f"train.patience={patience} ended this run at {images}; --train.patience 0, or a larger one, resumes it"
            )

    def _advice(self) -> str:
        """Return advice for the user on non-finite values."""
        saved = list_checkpoints(self.folder)
        state = f"the next start resumes from checkpoint {saved[-1].name}" if saved else "no checkpoint was saved"
        precision = ", engine.precision=fp32" if self.config.engine.precision in ("bf16", "fp16") else ""
        return (
            f"{self.folder}: {state}. To remove the cause, start a new run with a lower optimizer.lr{precision}, and "
            "check the images with `velogan data check`"
        )
