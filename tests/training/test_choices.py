"""What several processes make of the first one's choices."""

from __future__ import annotations

from typing import Any

import pytest

from velogan.config import Config
from velogan.engine.directions import DirectionRanks
from velogan.engine.ranks import Ranks
from velogan.training.choices import for_all
from velogan.types import Decision

TWO = Ranks(0, 2)


def _chosen(ranks: Ranks, **asked: Any) -> tuple[str, str]:
    """Whether the step of two processes is captured, where one process captures it, and why."""
    config = Config().change(**asked)
    engine = config.engine.model_copy(update={"device": "cuda", "capture": "on"})
    engine, picks = for_all(ranks, config, engine, [Decision("capture", "on", "one process does")])
    (pick,) = (pick for pick in picks if pick.what == "capture")
    assert pick.choice == engine.capture
    return engine.capture, pick.why


def test_a_step_of_several_processes_is_captured_where_that_is_asked():
    assert _chosen(TWO, engine={"capture": "on"})[0] == _chosen(TWO, engine={"mode": "graph"})[0] == "on"
    assert _chosen(TWO)[0] == "off"
    assert "where engine.capture=on asks" in _chosen(TWO)[1]


@pytest.mark.parametrize(
    ("ranks", "asked"),
    [(DirectionRanks(TWO), {}), (TWO, {"discriminator": {"norm": "sync_batch"}})],
)
def test_exchanges_within_a_pass_are_not_captured(ranks: Ranks, asked: dict[str, Any]):
    assert _chosen(ranks, **asked)[0] == "off"
    with pytest.raises(ValueError, match=r"engine\.capture=on with several .* within a pass.*capture=off"):
        _chosen(ranks, engine={"capture": "on"}, **asked)
