"""Profile training steps with torch.profiler: write a page, a JSON file and a trace."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, record_function

from velogan.config import Config, fit_to_data
from velogan.data.sets.pair import open_data
from velogan.engine.device import synchronise
from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA
from velogan.engine.step import Step
from velogan.engine.trainer import Trainer
from velogan.measure.traces import breakdown
from velogan.measure.traces.reading import allow_captured_graphs, load_events, read_timeline
from velogan.measure.traces.timeline import STEP
from velogan.observe.machine import describe_machine
from velogan.observe.progress import Display
from velogan.report.profile_page import write_profile_page
from velogan.training.build import build_trainer
from velogan.training.engine_settings import resolve_engine

WARM_UP = 3
"""Number of steps before the profile, in which code is compiled and libraries choose algorithms."""

MIN_S = 0.5
"""Minimum seconds of timed steps without the profiler."""


def profile(config: Config, *, steps: int, out: Path, display: Display) -> dict[str, Any]:
    """Train `config` for `steps` steps under the profiler and write profile.html, profile.json and trace.json.gz.

    The trainer first runs warm-up steps, in which each kind of captured step is recorded, then steps that are timed
    without the profiler. No checkpoint is saved. Returns the contents of profile.json. Raises ValueError if an argument
    or setting is wrong.
    """
    if steps < 1:
        raise ValueError(f"--steps {steps}: too few; set at least 1")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: a file; set a folder")
    data = open_data(config.data, task=display.task, print_line=display.print_line)
    config, _ = fit_to_data(config, data.channels, data.crop_shapes(config.data))
    engine, decisions = resolve_engine(config)
    device = torch.device(engine.device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"engine.device={engine.device}: only CPUs and CUDA devices can be profiled; set engine.device=cpu"
        )
    config = config.model_copy(update={"engine": engine})
    if engine.captures:
        allow_captured_graphs()
    out.mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(config, data)
    _name_ranges(trainer)
    warm_up = EMA.EVERY if engine.captures else WARM_UP  # every EVERY-th step also updates the average
    display.print_line(f"warming up: {warm_up} steps")
    _train_steps(trainer, warm_up)
    timed_steps = min(steps, 4)
    plain_s = _train_steps(trainer, timed_steps)
    if timed_steps * plain_s < MIN_S:
        plain_s = _train_steps(trainer, math.ceil(MIN_S / plain_s))
    display.print_line(f"profiling: steps={steps}, about {1000 * plain_s:.0f} ms each")
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        profiled_s = _train_steps(trainer, steps)
    trace = out / "trace.json.gz"
    profiler.export_chrome_trace(str(trace))
    timeline = read_timeline(load_events(trace))
    on_cuda = timeline.device == "cuda"
    result = {
        "steps": steps,
        "step_ms": round(1000 * plain_s, 3),
        "profiled_step_ms": round(1000 * profiled_s, 3),
        **_settings(config),
        "decisions": [asdict(decision) for decision in decisions],
        "machine": describe_machine(device),
        "device": timeline.device,
        "temporal": breakdown.summarize_temporal(timeline),
        "idle": breakdown.summarize_idle(timeline) if on_cuda else None,
        "kernels": breakdown.summarize_kernels(timeline),
        "launches": breakdown.summarize_launches(timeline) if on_cuda else None,
        "streams": breakdown.summarize_streams(timeline) if on_cuda else None,
        "page": str(out / "profile.html"),
        "trace": str(trace),
    }
    (out / "profile.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_profile_page(result, out / "profile.html")
    return result


def _settings(config: Config) -> dict[str, Any]:
    return {
        "image_size": config.data.crop_size,
        "batch_size": config.data.batch,
        "accumulate": config.train.accumulate,
        "generator": config.generator.model_dump(mode="json"),
        "discriminator": config.discriminator.model_dump(mode="json"),
        "engine": config.engine.model_dump(mode="json"),
    }


def _train_steps(trainer: Trainer, steps: int) -> float:
    """Train for `steps` steps; return the seconds per step."""
    images = trainer.images + steps * trainer.images_per_step
    synchronise(trainer.device)
    start = time.perf_counter()
    epochs = images / trainer.images_per_epoch  # a length in images would run through all 200 epochs of the schedule
    trainer.run(Length(Span(epochs, "epochs"), trainer.images_per_epoch))
    synchronise(trainer.device)
    return (time.perf_counter() - start) / steps


def _name_ranges(trainer: Trainer) -> None:
    """Record steps and networks as named ranges of the trace; phases are named ranges already."""
    step: Any = trainer.step
    while not isinstance(step, Step):
        step = step.step
    step.forward_nets = {role: _NamedNet(role, net) for role, net in step.forward_nets.items()}
    named_step: Any = _NamedStep(trainer.step)
    trainer.step = named_step


class _NamedNet(nn.Module):
    def __init__(self, role: str, net: nn.Module):
        super().__init__()
        self._role, self._net = role, [net]  # in a list, so that its weights are not registered again

    def forward(self, *inputs: Tensor) -> Tensor:
        with record_function(self._role):
            return self._net[0](*inputs)


class _NamedStep:
    def __init__(self, step: Any):
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, *args: Any, **options: Any) -> dict[str, Tensor]:
        with record_function(STEP):
            return self._step(*args, **options)
