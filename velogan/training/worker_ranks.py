"""Multi-process training: check that all ranks have the same images, and run the ranks other than 0."""

from __future__ import annotations

from velogan.data.sets.pair import TrainingData
from velogan.engine.config import TrainConfig
from velogan.engine.distributed import DistributedContext
from velogan.engine.duration import parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.processes import ReportedByAnotherRank
from velogan.engine.trainer import Hook, Trainer, stop_on_signal


def check_same_images(distributed: DistributedContext, data: TrainingData) -> None:
    """Raise ValueError if the images of a rank differ from those of rank 0."""
    main_digests = distributed.broadcast(data.digests)
    for rank, changed in enumerate(distributed.all_gather(data.list_changed(main_digests))):
        if changed:
            raise ValueError(
                f"data.path (--data): {distributed.describe(rank)} has other images of domain "
                f"{' and '.join(changed)} than {distributed.describe(0)}: copy the same ones to all hosts"
            )


def run_worker_rank(config: TrainConfig, trainer: Trainer) -> None:
    """Train on a rank other than 0; hooks run at rank 0's intervals, so that rank 0 can gather this rank's state."""
    hooks = [Hook(parse_span(config.log_every), lambda _: None)]
    hooks += [Hook(trainer.length.saving_interval(config.sample_every), lambda _: None)] if config.samples else []
    hooks.append(Hook(trainer.length.saving_interval(config.checkpoint_every), lambda _: trainer.state_dict()))
    with stop_on_signal(trainer):
        if trainer.distributed.broadcast(None):  # the value of rank 0
            try:
                trainer.run(trainer.length, hooks=hooks)
            except NonFiniteError as error:  # rank 0 has it too, and reports it with advice
                raise ReportedByAnotherRank from error
        if trainer.distributed.broadcast(None):
            trainer.state_dict()
