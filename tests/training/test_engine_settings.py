"""The choices of a continued run, and those of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from velogan.config import Config
from velogan.engine.config import EngineConfig
from velogan.training import engine_settings
from velogan.training.engine_settings import resolve_engine, resolve_engine_on_resume

BEFORE = EngineConfig(mode="eager", device="cpu", precision="bf16", kernels="plain", compile="off", threads=7)
BEFORE = BEFORE.model_copy(update={"checkpoint_activations": "off"})


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings, "available_cores", lambda: [0, 1])


def _resumed(before: EngineConfig = BEFORE, **requested: Any) -> tuple[dict[str, Any], str]:
    """The fields that differ from `before`, and the reason."""
    engine, _, reason = resolve_engine_on_resume(Config().change(engine=requested), before)
    return {name: value for name, value in engine.model_dump().items() if value != getattr(before, name)}, reason


def test_unchanged_but_for_the_threads_of_this_machine():
    assert _resumed(threads=7) == ({}, "")
    assert _resumed() == ({"threads": 2}, "")


def test_the_user_changes_a_field_and_the_others_stay():
    assert _resumed(precision="fp32", threads=7) == ({"precision": "fp32"}, "requested: engine.precision=fp32")
    changed, reason = _resumed(BEFORE.model_copy(update={"kernels": "native"}), mode="eager")
    assert (changed["kernels"], reason) == ("plain", "requested: engine.kernels=plain")
    changed, reason = _resumed(mode="reference")
    assert (changed["mode"], changed["precision"]) == ("reference", "fp32")
    assert "engine.mode=reference" in reason


def test_what_this_machine_cannot_do_is_decided_again():
    changed, reason = _resumed(BEFORE.model_copy(update={"device": "cuda:77"}))
    assert (changed["device"], reason) == (
        resolve_engine(Config())[0].device,
        "engine.device=cuda:77 is not available here",
    )


def test_several_processes_are_told_of_in_the_decisions():
    _, decisions = resolve_engine(Config().change(engine={"device": "cpu"}), processes=2)
    assert "per update" in next(decision.value for decision in decisions if decision.field == "processes")
