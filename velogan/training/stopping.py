"""The rule that ends a run."""

from __future__ import annotations

from pathlib import Path

from velogan.engine.trainer import Trainer
from velogan.observe.log import read_stats
from velogan.store.checkpoint import read_best


class StoppingRule:
    """Decides when a run ends: at its length, or after `patience` checkpoints without a better score."""

    def __init__(self, folder: Path, trainer: Trainer, *, patience: int):
        self._folder, self._trainer = folder, trainer
        self.patience = patience

    @property
    def is_at_end(self) -> bool:
        """Whether the run has reached its length; a length in minutes is reduced by the time for the last hooks."""
        return self._trainer.length.progress(self._trainer.images, self._trainer.clock.seconds) >= 1

    @property
    def is_patience_exhausted(self) -> bool:
        """Whether at least `patience` checkpoints have been scored since the best one; never if `patience` is 0."""
        best = read_best(self._folder)
        if not self.patience or best is None:
            return False
        scored = [row for row in read_stats(self._folder) if row.get(best["name"]) is not None]
        return sum(row["images"] > int(best["checkpoint"]) for row in scored) >= self.patience
