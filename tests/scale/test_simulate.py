"""The model of a cluster, against cases computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.simulate.__main__ import _measured_step
from benchmarks.simulate.cluster import (
    Cluster,
    Link,
    modules,
    ring,
    row,
)
from benchmarks.simulate.load import Load, PhaseLoad
from benchmarks.simulate.parse import parse_bandwidth, parse_devices, parse_latency
from velogan.config import Config
from velogan.measure.probe import ImageCost

LINK = Link(bandwidth=1e6, latency=0.001)
CLUSTER = Cluster(LINK, LINK)


def phase(name: str, *, size: int, flops: int = 100, alone: int = 100) -> PhaseLoad:
    return PhaseLoad(name, (name,), bytes=size, flops=flops, flops_alone=alone)


def load_of_two() -> Load:
    """8 MB and then 4 MB, of a step of two images."""
    phases = (phase("one", size=8_000_000, flops=300, alone=300), phase("other", size=4_000_000, flops=50, alone=75))
    return Load(phases, weights=12_000_000, images=2)


def test_a_ring_by_hand():
    # 6 messages of a quarter: 6 * (1 ms + 250,000 / 1e6 s)
    assert ring(1e6, 4, LINK) == pytest.approx(6 * (0.001 + 0.25))


def test_a_row_by_hand():
    cluster = Cluster(LINK, LINK, backend="nccl", memory=1e9)
    result = row(2, load_of_two(), cluster, step_s=10.0, images=1)
    # the bytes once, two messages each; and 5.5 times through the memory
    exchange = (0.002 + 8 + 5.5 * 0.008) + (0.002 + 4 + 5.5 * 0.004)
    assert result.exchange_ms == pytest.approx(1000 * exchange)
    assert result.agree_ms == pytest.approx(4, rel=0.05)  # by gloo, on any device
    assert result.images_per_s == pytest.approx(4000 / (10_000 + result.exchange_ms + result.agree_ms))
    assert result.efficiency == pytest.approx(10_000 / result.step_ms)


def test_modules_wait_for_the_one_with_most_to_compute():
    # of 350 operations a step, the nodes have 300 and 75
    result = modules(load_of_two(), LINK, step_s=7.0, every=200)
    assert result.shares == pytest.approx({"one": 300 / 350, "other": 75 / 350})
    assert result.most == pytest.approx(350 / 300)
    assert result.times == pytest.approx(700 / (600 + 0.001 + 12))
    rare = modules(load_of_two(), LINK, step_s=7.0, every=20000)
    assert result.times < rare.times < rare.most


def test_parses_arguments():
    assert parse_devices("1..1024") == [2**power for power in range(11)]
    assert parse_devices("3..20") == [3, 4, 8, 16, 20]
    assert parse_devices("7..7") == [7]
    assert parse_devices("2,6,1") == [2, 6, 1]
    assert parse_bandwidth("10Gbit", "") == parse_bandwidth("10 gbit/s", "") == parse_bandwidth("10Gbps", "") == 1.25e9
    assert parse_bandwidth("400GB", "") == 4e11
    assert parse_bandwidth("8b", "") == 1
    assert [parse_latency(text, "") for text in ("50us", "0.05ms", "1s")] == pytest.approx([5e-5, 5e-5, 1])


@pytest.mark.parametrize(
    ("parse", "texts", "message"),
    [
        (parse_devices, ["0", "", "-1", "0..4", "4..2", "1,0", "one", "1..", "99999999", "1.5"], "numbers from 1 to"),
        (parse_bandwidth, ["fast", "10", "0Gbit", "-1Gbit", "9" * 400 + "Gbit", ""], "a number above 0 and a unit"),
        (parse_latency, ["soon", "50", "-1us", "1min", ""], "a number and a unit"),
    ],
)
def test_rejects_invalid_arguments(parse: Any, texts: list[str], message: str):
    for text in texts:
        with pytest.raises(ValueError, match=f": write {message}"):
            parse(text) if parse is parse_devices else parse(text, "--flag")


def test_measures_a_step_on_the_cores_of_one_device(monkeypatch: pytest.MonkeyPatch):
    measured: list[tuple[Config, Sequence[int]]] = []

    def probe(config: Config, cores: Sequence[int]) -> ImageCost:
        measured.append((config, cores))
        return ImageCost(seconds=0.5, memory_mb=1.0, gpu_memory_mb=1.0)

    monkeypatch.setattr("benchmarks.simulate.__main__.probe", probe)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert _measured_step(Config(), per_host=2) == 0.5
    assert measured[0][0].engine.threads == 2
    assert measured[0][1] == [0, 1]
