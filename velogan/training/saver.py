"""Save the checkpoints of a run and mark the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velogan.engine.trainer import Trainer
from velogan.evaluation.validation import Validation
from velogan.methods.base import Role
from velogan.observe.log import read_stats
from velogan.report.failures import final_checkpoint_is_worse
from velogan.store.checkpoint import mark_best, read_best, save_checkpoint
from velogan.training.context import RunContext
from velogan.training.weights import checkpoint_headers, checkpoint_networks


class CheckpointSaver:
    """Saves the networks of `roles`, their averages and the state of `trainer`, and marks the best checkpoint."""

    def __init__(self, context: RunContext, trainer: Trainer, roles: Mapping[str, Role]):
        self._folder, self._context = context.folder, context
        self._trainer, self._roles = trainer, roles

    def save(self, images: int) -> Path:
        """Save a checkpoint at `images` seen; return its folder."""
        return save_checkpoint(
            self._folder,
            images=images,
            networks=checkpoint_networks(self._context.config, self._roles, self._trainer.ema.nets),
            headers=self._build_headers(images),
            state=self._trainer.state_dict(),
            clock=self._trainer.clock_state(),
        )

    def update_best(self, checkpoint: Path, scores: Mapping[str, Any], validation: Validation) -> None:
        """Mark `checkpoint` as the best if its score is the lowest on these images; else note if it is much worse."""
        name, on = validation.name, validation.description  # as in `mark_best`
        best = read_best(self._folder) or {}
        is_comparable = (best.get("name"), best.get("on")) == (name, on)
        if scores[name] < (best["score"] if is_comparable else math.inf):
            best = {"checkpoint": checkpoint.name, "score": scores[name]}
        elif not is_comparable:
            return
        chosen = checkpoint.with_name(best["checkpoint"])
        superseded = None
        if chosen != checkpoint and final_checkpoint_is_worse(read_stats(self._folder)):
            superseded = checkpoint
        mark_best(self._folder, checkpoint=chosen, name=name, score=best["score"], scored_on=on, instead_of=superseded)

    def _build_headers(self, images: int) -> dict[str, dict[str, Any]]:
        config, sources = self._context.config, self._context.data.sources
        origin = {
            "method": config.method.kind,
            "image_size": config.data.crop_size,
            "images_seen": images,
            "data": {"a": sources.a.name, "b": sources.b.name, "preprocess": config.data.preprocess},
        }
        files = checkpoint_headers(config, self._roles, self._context.data)
        return {name: {**header, **origin} for name, header in files.items()}
