"""`data.batch_size=auto`: the number that memory bears, found once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from velogan.cli import main
from velogan.config import Config, read_config
from velogan.data.sets.pair import TrainingData
from velogan.engine.distributed import DistributedContext
from velogan.engine.memory import free_memory_mb
from velogan.objectives.classes import SEGMENTER
from velogan.training import batch_size
from velogan.training.batch_size import find_largest_batch, resolve_auto_batch_size
from velogan.training.build import build_step
from velogan.training.engine_settings import resolve_engine
from velogan.training.trial_step import random_batch

from ..domains import domain_in_memory

Answer = Callable[[int], tuple[int, dict[str, Any]]]

TINY = Config().change(
    data={"batch_size": "auto", "crop_size": 32},
    generator={"channels": 2, "blocks": 1},
    discriminator={"channels": 2},
    engine={"device": "cpu", "threads": 1, "mode": "reference"},
)


def _answers(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[int]:
    """Stands in for the process that tries; the batches that were tried."""
    tried: list[int] = []

    def run(module: str, request: Mapping[str, Any], **_: Any) -> tuple[int, dict[str, Any]]:
        tried.append(request["config"]["data"]["batch_size"])
        return answer(tried[-1])

    monkeypatch.setattr(batch_size, "run_in_subprocess", run)
    return tried


def test_a_cpu_is_never_asked_for_more_than_it_has(monkeypatch: pytest.MonkeyPatch):
    tried = _answers(monkeypatch, lambda count: (0, {"mb": 100.0 + 50 * count, "problem": ""}))
    assert find_largest_batch(TINY, max_batch=100, resident_bytes=[], limit_mb=500) == (
        8,
        "16 images would need about 900 MB of 500",
    )
    assert tried == [1, 2, 4, 8]
    assert find_largest_batch(TINY, max_batch=100, resident_bytes=[], limit_mb=160) == (
        1,
        "2 images needed 200 MB of 160",
    )
    assert find_largest_batch(TINY, max_batch=5, resident_bytes=[], limit_mb=500) == (
        4,
        "it needs 300 MB; more than 5 are not tried",
    )


ANNOTATED = TINY.change(data={"masks_a": "masks", "labels_b": "maps"})
"""A step with all that can lie beside pictures."""


def test_a_step_is_tried_for_real():
    count, reason = find_largest_batch(ANNOTATED, max_batch=1, resident_bytes=[], limit_mb=free_memory_mb(), classes=5)
    assert (count, reason.partition(" MB; ")[2]) == (1, "more than 1 are not tried")
    assert 50 < float(reason.split()[2].replace(",", "")) < free_memory_mb()


def test_what_is_tried_has_masks_and_classes():
    config = ANNOTATED.change(data={"batch_size": 2})
    config = config.model_copy(update={"engine": resolve_engine(config)[0]})
    step, objective, nets = build_step(config, shape=(32, 32), classes=5)
    batch = random_batch(config, torch.device("cpu"))
    assert nets[SEGMENTER](batch["A"]).shape == (2, 5, 32, 32)
    uniform = {split: torch.rand(draws, 2) for split, draws in objective.num_uniforms.items()}
    terms = step({split: {**batch, "uniform": numbers} for split, numbers in uniform.items()}, number=0)
    assert {"generator/mask_a", "generator/semantic_a", "segmenter/cross_entropy_b"} <= set(terms)


@pytest.mark.gpu
def test_a_gpu_s_memory_is_found():
    count, reason = find_largest_batch(
        TINY.change(engine={"device": "cuda"}), max_batch=2, resident_bytes=[], limit_mb=None
    )
    assert count == 2, reason
    assert torch.cuda.is_available()


def _data() -> TrainingData:
    domain = domain_in_memory([np.zeros((36, 36, 3), np.uint8)] * 6)
    return TrainingData(a=domain, b=domain, sources=None)  # pyright: ignore[reportArgumentType]


def test_all_ranks_take_the_least(monkeypatch: pytest.MonkeyPatch):
    class Two(DistributedContext):
        def all_gather(self, value: Any) -> list[Any]:
            return [value, (2, "4 images did not fit")]

    tried = _answers(monkeypatch, lambda count: (0, {"mb": 1.0, "problem": ""}))
    config, decisions = resolve_auto_batch_size(TINY, _data(), Two(world_size=2, local_world_size=1))
    assert tried == [1, 2]  # of six pictures, shared by two
    assert config.data.batch == 2
    assert [(decision.field, decision.value) for decision in decisions] == [("batch", "2")]
    assert resolve_auto_batch_size(config, _data(), Two(world_size=2)) == (config, [])


def test_a_continued_run_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tried = _answers(monkeypatch, lambda count: (0, {"mb": 1.0, "problem": "did not fit" if count > 2 else ""}))
    flags = f"""train --data apples2oranges --image-size 32 --out {tmp_path / "run"} --data.batch-size auto
        --train.samples 0 --train.logger none --data.render-count 8 --data.render-test 2
        --discriminator.channels 4 --generator.channels 4 --generator.blocks 1 --engine.threads 1"""
    assert main([*flags.split(), "--images", "2"]) == 0
    assert "batch: 2 (4 images did not fit)" in capsys.readouterr().err
    assert read_config(tmp_path / "run").data.batch_size == 2
    decisions = json.loads((tmp_path / "run/run.json").read_text())["decisions"]
    assert {"field": "batch", "value": "2", "reason": "4 images did not fit"} in decisions
    assert main([*flags.split(), "--images", "4"]) == 0
    assert tried == [1, 2, 4]


def test_others_ask_for_a_number(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ValueError, match=r"data\.batch_size=auto is determined when `velogan train` starts a run"):
        _ = TINY.images_per_update
    with pytest.raises(ValueError, match="give a positive integer, or auto"):
        Config().change(data={"batch_size": 0})
    sweep = "sweep fast --data apples2oranges --out s --images 8 --vary data.batch_size=1,auto"
    assert main(sweep.split()) == 2
    assert "data.batch_size=auto may differ between trials" in capsys.readouterr().err
