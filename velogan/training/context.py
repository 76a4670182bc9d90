"""The context of a prepared run: what each of its processes needs to build and train the networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from velogan.config import Config
from velogan.data.sets.pair import TrainingData
from velogan.engine.config import EngineConfig
from velogan.engine.distributed import DistributedContext
from velogan.networks.reference import RecognisedNetwork
from velogan.observe.progress import Display
from velogan.types import Decision


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A prepared run.

    Ranks differ only in `display`, `distributed`, `initial_weights`, `preparation_s` and `config.engine.threads`.

    folder: the run folder, which rank 0 writes
    requested: the requested configuration, with the batch size and the images' channels filled in
    config: `requested` with the resolved engine settings of this process
    engine: the resolved engine settings of rank 0, which are recorded
    decisions: the settings that were resolved for this run, with reasons
    engine_change: why the engine settings of a resumed run changed; empty if they did not
    data: the training images
    preparation_s: seconds that preparing the images took; a length in minutes does not include them
    initial_weights: networks, by role, that initialise a new run; empty except on rank 0
    """

    folder: Path
    display: Display
    distributed: DistributedContext
    requested: Config
    config: Config
    engine: EngineConfig
    decisions: Sequence[Decision]
    engine_change: str
    data: TrainingData
    preparation_s: float
    initial_weights: Mapping[str, RecognisedNetwork]
