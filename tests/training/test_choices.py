"""What several processes make of the first one's choices."""

from __future__ import annotations

from typing import Any

import pytest

from velogan.config import Config
from velogan.engine.config import EngineConfig
from velogan.engine.distributed import DistributedContext
from velogan.training.choices import for_all
from velogan.types import Decision


def _for_two(device: str, **requested: Any) -> tuple[EngineConfig, list[Decision]]:
    config = Config().change(**requested)
    engine = config.engine.model_copy(update={"device": device, "capture": "on"})
    return for_all(DistributedContext(0, 2), config, engine, [Decision("capture", "on", "one process does")])


def test_a_step_of_several_processes_is_not_captured():
    engine, picks = _for_two("cuda")
    assert engine.capture == picks[0].choice == "off"
    for requested in ({"capture": "on"}, {"mode": "graph"}):
        with pytest.raises(ValueError, match=r"engine\.capture=on is for one process"):
            _for_two("cuda", engine=requested)


def test_statistics_are_shared_between_gpus_alone():
    norm = {"discriminator": {"norm": "sync_batch"}}
    assert _for_two("cuda", **norm)
    with pytest.raises(ValueError, match="norm=sync_batch"):
        _for_two("cpu", **norm)
