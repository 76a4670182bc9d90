"""Ray that does not start, or does not answer."""

from __future__ import annotations

import pytest

from velogan.engine.ray_session import ray_session

ray = pytest.importorskip("ray", reason="the extra sweep is not installed")


def test_a_ray_that_does_not_start_is_told_with_the_mend(monkeypatch: pytest.MonkeyPatch):
    def init(**_asked: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(OSError, match=r"run the same command again \(The current node timed out"), ray_session(None):
        pass


def test_an_address_without_a_ray_is_named(monkeypatch: pytest.MonkeyPatch):
    def init(**_asked: object) -> None:
        raise ConnectionError("nobody there\nmore")

    monkeypatch.setattr(ray, "init", init)
    said = r"--address 10.0.0.1:1: no Ray answers there \(nobody there\)"
    with pytest.raises(ValueError, match=said), ray_session("10.0.0.1:1"):
        pass
