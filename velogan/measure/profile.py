"""Where a step's time goes: training steps under torch.profiler, as a page, a JSON file and a trace."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, record_function

from velogan.config import Config
from velogan.data.sets.pair import open_data
from velogan.engine.duration import Length, Span
from velogan.engine.ema import EMA
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.step import After, Step
from velogan.engine.trainer import Loader, Stepper, Trainer
from velogan.files import counted
from velogan.measure.traces.breakdown import idle, idle_by_phase, kernels, launches, owners, streams, strip, temporal
from velogan.measure.traces.glance import allow_captured_graphs
from velogan.measure.traces.memory import AVERAGES, MOMENTS, POOL, WEIGHTS, Held, memory_timeline
from velogan.measure.traces.reading import borrow_places, load_events, read_timeline
from velogan.measure.traces.timeline import LOADER, REST, STEP, Timeline
from velogan.methods.fit import check_sizes
from velogan.objectives.base import Phase
from velogan.observe.machine import machine
from velogan.observe.progress import Display
from velogan.observe.roofline import Roofline, flops, matmul_tflops, record_convolutions, synchronise, total
from velogan.report.profile_page import write_profile
from velogan.training.choices import decide
from velogan.training.run import fit_channels, trainer_of
from velogan.types import Batch, Decision

WARM_UP = 3
"""Steps before the profile, where none is captured. In them the step is compiled, and libraries choose algorithms."""

LEAST_S = 0.5
"""Steps without the profiler are timed for so many seconds, if four take less."""


def profile(config: Config, *, steps: int, out: Path, display: Display) -> dict[str, Any]:
    """Trains `config` for `steps` steps under the profiler and writes profile.html, profile.json and trace.json.gz.

    The steps are the trainer's own, with its loader. Before them come steps to warm up, in which each kind of captured
    step is recorded, then steps that are timed without the profiler. After them two steps are profiled for memory.
    Nothing of the run is kept. Returns the contents of profile.json. ValueError for wrong arguments or settings.
    """
    if steps < 1:
        raise ValueError(f"--steps {steps}: it takes at least one")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: name a folder; it is created if needed")
    data = open_data(config.data, task=display.task, say=display.say)
    config, _ = fit_channels(config, *data.channels)
    check_sizes(config.method, config.spec, data.shapes(config.data))
    engine, picks = decide(config)
    device = torch.device(engine.device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"engine.device={engine.device}: the profiler sees CPUs and CUDA devices: set engine.device=cpu"
        )
    config = config.model_copy(update={"engine": engine})
    if engine.capture == "on":
        allow_captured_graphs()
    out.mkdir(parents=True, exist_ok=True)
    training = _Training(trainer_of(config, data), config, device)
    warm_up = _round(training.phases) if engine.capture == "on" else WARM_UP
    display.say(f"warming up: {counted(warm_up, 'step')}")
    training.run(warm_up)
    plain = training.run(few := min(steps, 4))
    if few * plain < LEAST_S:
        plain = training.run(math.ceil(LEAST_S / plain))
    display.say(f"profiling {counted(steps, 'step')} of about {1000 * plain:.0f} ms")
    trace = out / "trace.json.gz"
    seconds = training.record(steps, trace)
    roles = {"phases": [phase.name for phase in training.phases], "networks": list(training.trainer.nets)}
    timeline = read_timeline(load_events(trace), **roles)
    looked, held = training.look(roles)
    if engine.capture == "on" and engine.mode != "streams":  # kernels of two streams have no fixed order
        timeline = borrow_places(timeline, looked)
    result = {
        "steps": steps,
        "step_ms": round(1000 * plain, 3),
        "profiled_step_ms": round(1000 * seconds, 3),
        **_settings(config, picks),
        "machine": machine(device),
        "device": timeline.device,
        **_answers(timeline),
        "memory": memory_timeline(looked, held),
        "roofline": training.roofline() if device.type == "cuda" else None,
        "page": str(out / "profile.html"),
        "trace": str(trace),
    }
    (out / "profile.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_profile(result, out / "profile.html")
    return result


def _round(phases: Sequence[Phase]) -> int:
    """Steps after which every kind of step has come: some run more phases, or the average after them."""
    return math.lcm(EMA.EVERY, *(phase.every for phase in phases))


def _settings(config: Config, picks: Iterable[Decision]) -> dict[str, Any]:
    return {
        "image_size": config.data.crop_size,
        "batch_size": config.data.batch,
        "accumulate": config.train.accumulate,
        "generator": config.generator.model_dump(mode="json"),
        "discriminator": config.discriminator.model_dump(mode="json"),
        "engine": config.engine.model_dump(mode="json"),
        "picked": [asdict(pick) for pick in picks],
    }


def _answers(timeline: Timeline) -> dict[str, Any]:
    return {
        "temporal": temporal(timeline),
        "idle": idle(timeline),
        "kernels": kernels(timeline),
        "launches": launches(timeline),
        "owners": owners(timeline),
        "phases": idle_by_phase(timeline),
        "strip": strip(timeline),
        "streams": streams(timeline),
    }


class _Training:
    """A trainer whose steps, loader and networks appear in traces as ranges with their names."""

    def __init__(self, trainer: Trainer, config: Config, device: torch.device):
        self.trainer, self.config, self.device = trainer, config, device
        self._plain = plain = _plain(trainer.step)
        plain.forward_nets = {role: _Named(role, net) for role, net in plain.forward_nets.items()}
        self.phases = plain.phases
        trainer.step = _NamedStep(trainer.step)
        trainer.loaders = {split: _NamedLoader(loader) for split, loader in trainer.loaders.items()}

    def run(self, steps: int) -> float:
        """Trains for `steps` steps; returns the seconds per step."""
        images = self.trainer.images + steps * self.config.images_per_update
        synchronise(self.device)
        begun = time.perf_counter()
        epochs = images / self.trainer.epoch  # rates move once in an epoch: in a run of few images at each step
        self.trainer.run(Length(Span(epochs, "epochs"), self.trainer.epoch))
        synchronise(self.device)
        return (time.perf_counter() - begun) / steps

    def record(self, steps: int, trace: Path, *, memory: bool = False) -> float:
        """The same under the profiler; writes the trace to a file."""
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self.device.type == "cuda")
        with torch.profiler.profile(activities=activities, profile_memory=memory, acc_events=True) as seen:
            seconds = self.run(steps)
        seen.export_chrome_trace(str(trace))
        return seconds

    def look(self, roles: Mapping[str, Any]) -> tuple[Timeline, dict[int, Held]]:
        """Two steps with their memory, and the memory held before them. Captured steps run kernel by kernel here."""
        self.trainer.step = _NamedStep(self._plain)
        for optimizer in self._plain.optimizers.values():
            optimizer.zero_grad()
        held = self._held()
        with TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            self.record(2, trace, memory=True)
            return read_timeline(load_events(trace), **roles), held

    def roofline(self) -> dict[str, float]:
        """Milliseconds of a step's convolutions alone, and of its arithmetic at the speed of one large product."""
        self.trainer.step = self._plain
        self._plain.forward_nets = self.trainer.nets  # whose layers call only the library's convolutions
        calls = record_convolutions(partial(self.run, 1))
        tflops = matmul_tflops(self.device)
        alone = total(calls, Roofline(calls, device=self.device).times())
        return {"ms": 1000 * alone, "arithmetic_ms": flops(calls) / tflops / 1e9, "matmul_tflops": tflops}

    def _held(self) -> dict[int, Held]:
        trainer, found = self.trainer, {}

        def hold(category: str, network: str, tensors: Iterable[Tensor | None]) -> None:
            for tensor in tensors:
                if tensor is not None and tensor.device.type == self.device.type:
                    storage = tensor.untyped_storage()
                    found[storage.data_ptr()] = Held(category, network, storage.nbytes())

        for role, net in trainer.nets.items():
            hold(WEIGHTS, role, [*net.parameters(), *net.buffers()])
        for role, net in trainer.ema.nets.items():
            hold(AVERAGES, role, [*net.parameters(), *net.buffers()])
        for optimizer in trainer.step.optimizers.values():
            for group in optimizer.param_groups:
                states = [state for parameter in group["params"] for state in optimizer.state[parameter].values()]
                hold(MOMENTS, group["name"], filter(torch.is_tensor, states))
        hold(POOL, REST, trainer.state.buffers())
        return found


def _plain(step: Any) -> Step:
    """The plain step inside its wrappers."""
    while not isinstance(step, Step):
        step = step.step
    return step


class _Named(nn.Module):
    def __init__(self, role: str, net: nn.Module):
        super().__init__()
        self._role, self._net = role, [net]  # in a list, so that its weights are not registered again

    def forward(self, *inputs: Tensor) -> Tensor:
        with record_function(self._role):
            return self._net[0](*inputs)


class _NamedStep:
    def __init__(self, step: Stepper):
        self.step, self.optimizers, self.scale = step, step.optimizers, step.scale

    def __call__(
        self, batches: Mapping[str, Batch], *, number: int = 0, after: Sequence[After] = ()
    ) -> dict[str, Tensor]:
        with record_function(STEP):
            return self.step(batches, number=number, after=after)

    def check(self) -> None:
        self.step.check()

    def origin(self, error: NonFiniteError, batches: Mapping[str, Batch]) -> str:
        return self.step.origin(error, batches)


class _NamedLoader:
    def __init__(self, loader: Loader):
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def batches(self, position: int) -> Generator[Batch, None, None]:
        batches = self.loader.batches(position)
        try:
            while True:
                with record_function(LOADER):
                    batch = next(batches)
                yield batch
        finally:
            batches.close()
