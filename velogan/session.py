"""One run folder: opened, locked, continued, filled while training, and closed."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import velogan
from velogan.config import Config, differences, parse_config, read_config, write_yaml
from velogan.engine.checkpoint import (
    damage,
    digest,
    list_checkpoints,
    load_state,
    load_weights,
    mark_best,
    read_best,
    remove_old,
    save_checkpoint,
    write_text,
)
from velogan.engine.duration import Length, parse_length, parse_span
from velogan.engine.optimizers import Schedule
from velogan.engine.resolve import Pick
from velogan.engine.trainer import Hook, Trainer, stop_on_signal
from velogan.observe.log import Log
from velogan.observe.progress import Display, Training
from velogan.report import write_report
from velogan.samples import Sampler

if TYPE_CHECKING:
    from velogan.run import Data

MAY_CHANGE = ("train.length", "train.keep", "train.samples", "train.tensorboard", "data.cache_dir")
MAY_CHANGE += ("data.workers", "train.log_every", "train.sample_every", "train.checkpoint_every")
"""Fields that may differ when a run is continued: they do not change what a step computes."""


@dataclass(frozen=True)
class Result:
    """What a training command achieved."""

    run: Path
    checkpoint: Path
    images_seen: int
    images_per_s: float
    weights_sha256: str
    finished: bool


class Session:
    """A run folder in use by this process."""

    def __init__(self, run: Path, config: Config, *, say: Callable[[str], None]):
        self.folder, self.config, self.say = run, config, say

    @classmethod
    def open(cls, run: Path, config: Config, *, say: Callable[[str], None]) -> Session:
        """A new run, or the one that `run` holds, with its own configuration. ValueError where they disagree."""
        if not (run / "config.yaml").exists():
            if run.exists() and any(run.iterdir()) and not (run / ".lock").exists():
                raise ValueError(f"--out {run} is not empty and holds no run: name a new folder")
            return cls(run, config, say=say)
        saved = read_config(run)
        changed = differences(config, saved)
        wrong = {name: values for name, values in changed.items() if name not in MAY_CHANGE}
        if wrong:
            listed = "; ".join(f"{name} is {new!r} here and {old!r} there" for name, (new, old) in wrong.items())
            raise ValueError(f"--out {run} holds a run with another configuration ({listed}): name a new folder")
        tree = saved.model_dump()
        for name, (asked, _) in changed.items():
            section, _, field = name.rpartition(".")
            tree[section][field] = asked
        return cls(run, parse_config(tree), say=say)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder for this process. ValueError naming the process that holds it already."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / ".lock", "a+")
        except OSError as error:
            raise ValueError(f"--out {self.folder} cannot be written ({error.strerror}): name another") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise ValueError(
                    f"--out {self.folder} is in use by process {file.read().strip()}: wait for it, or name another"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def start(
        self,
        config: Config,
        trainer: Trainer,
        *,
        data: Data,
        picks: Sequence[Pick],
        origin: Mapping[str, Any],
    ) -> None:
        """Loads the newest whole checkpoint if there is one; records configuration, choices and data.

        `origin` holds the `preset` and `command` that the run came from, and what was `changed` in the preset.
        """
        self.config, self.trainer, self.data = config, trainer, data
        self.schedule_state: dict[str, Any] = {}
        self._since_save: list[float] = []
        write_text(self.folder / "config.yaml", write_yaml(config))
        resumed = self._resume()
        if not resumed and not (self.folder / "run.json").exists():
            write_text(self.folder / "run.json", json.dumps(self._facts(picks, origin), indent=1))
            for pick in picks:
                self.say(f"{pick.what}: {pick.choice} ({pick.why})")
        self.log = Log(self.folder, tensorboard=config.train.tensorboard)
        self.log.truncate(trainer.images)

    def _resume(self) -> bool:
        for checkpoint in reversed(list_checkpoints(self.folder)):
            broken = damage(checkpoint)
            if broken:
                self.say(f"{broken}; trying the one before")
                continue
            state, clock = load_state(checkpoint)
            for name, net in self._stored().items():
                net.load_state_dict(load_weights(checkpoint / f"{name}.safetensors")[1])
            self.schedule_state = state.pop("schedule")
            self.trainer.load_state_dict(state)
            self.trainer.clock.load_state_dict(clock)
            self.say(f"continuing {self.folder} at {self.trainer.images:,} images")
            return True
        return False

    def _stored(self) -> dict[str, nn.Module]:
        averages = {f"{role}.ema": net for role, net in self.trainer.ema.nets.items()}
        return {**self.trainer.nets, **averages}

    def _facts(self, picks: Sequence[Pick], origin: Mapping[str, Any]) -> dict[str, Any]:
        def count(side: Any, domain: Any) -> dict[str, Any]:
            test = len(side.test.names) if side.test else 0
            return {"name": side.name, "train": len(domain), "test": test, "skipped": len(domain.skipped)}

        return {
            "velogan": velogan.__version__,
            **origin,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(self.trainer.device),
            "picked": [asdict(pick) for pick in picks],
            "data": {
                "a": count(self.data.sources.a, self.data.a),
                "b": count(self.data.sources.b, self.data.b),
            },
        }

    def run(self, display: Display, *, samplers: Mapping[str, nn.Module]) -> Result:
        """Trains to the end of the run, or until asked to stop; always leaves a checkpoint."""
        trainer, train = self.trainer, self.config.train
        length = parse_length(train.length, epoch=len(trainer.loader))
        self.schedule = Schedule(self.config.schedule, epochs=length.ticks)
        if self.schedule_state:
            self.schedule.load_state_dict(self.schedule_state)
        before, seconds = trainer.images, trainer.clock.seconds
        with self.log, stop_on_signal(trainer):
            bar = display.training(length.total)
            hooks = [Hook(parse_span(train.log_every), lambda images: self._log_tick(images, length, bar))]
            if train.samples:
                sampler = Sampler(self.folder, self.config, self.data.sources, samplers, log=self.log)
                hooks.append(Hook(parse_span(train.sample_every), sampler.write))
            hooks.append(Hook(parse_span(train.checkpoint_every), self._save))
            trainer.run(length, schedule=self.schedule, hooks=hooks)
            if not list_checkpoints(self.folder):
                self._save(trainer.images)
        write_report([self.folder])
        took = trainer.clock.seconds - seconds
        last = list_checkpoints(self.folder)[-1]
        return Result(
            run=self.folder,
            checkpoint=last,
            images_seen=trainer.images,
            images_per_s=(trainer.images - before) / took if took > 0 else 0.0,
            weights_sha256=digest(last),
            finished=length.progress(trainer.images, trainer.clock.seconds) >= 1,
        )

    def _log_tick(self, images: int, length: Length, bar: Training) -> None:
        trainer = self.trainer
        means, speed = trainer.stats.tick(), trainer.clock.tick(images)
        if not means:
            return
        row: dict[str, Any] = {"images": images, "epoch": images / len(trainer.loader)}
        row |= {"seconds": trainer.clock.seconds, "images_per_s": speed}
        row["step_ms"] = 1000 * self.config.data.batch_size / speed if speed else 0.0
        row |= {f"loss/{name}": value for name, value in means.items()}
        row |= {
            f"lr/{group['name']}": group["lr"]
            for optimizer in trainer.step.optimizers.values()
            for group in optimizer.param_groups
        }
        self.log.write(row)
        short = {name.split("/")[0][:1].upper(): value for name, value in means.items() if name.endswith("/total")}
        if length.total is None:
            left: float | None = max(length.span.amount * 60 - trainer.clock.seconds, 0.0)
        else:
            left = trainer.clock.eta(max(length.total - images, 0))
        bar.update(images, images_per_s=speed, eta_s=left, losses=short)
        self._since_save.append(means["generator/total"])

    def _save(self, images: int) -> None:
        trainer = self.trainer
        state = {**trainer.state_dict(), "schedule": self.schedule.state_dict()}
        folder = save_checkpoint(
            self.folder,
            images=images,
            networks=self._stored(),
            headers={name: self._header(name, images) for name in self._stored()},
            state=state,
            clock=trainer.clock.state_dict(),
        )
        self._mark_if_best(folder)
        remove_old(self.folder, keep=self.config.train.keep)

    def _mark_if_best(self, folder: Path) -> None:
        """Best is the lowest mean of the generators' training loss between two checkpoints: a rough guide."""
        losses, self._since_save = self._since_save, []
        if losses:
            mean = sum(losses) / len(losses)
            best = read_best(self.folder)
            if best is None or mean < best["score"]:
                mark_best(self.folder, checkpoint=folder, name="loss/generator/total, mean in training", score=mean)

    def _header(self, name: str, images: int) -> dict[str, Any]:
        role, _, average = name.partition(".")
        part = self.config.generator if role.startswith("G_") else self.config.discriminator
        sources = self.data.sources
        return {
            "role": role,
            "network": "generator" if role.startswith("G_") else "discriminator",
            "config": part.model_dump(mode="json"),
            "weights": "ema" if average else "raw",
            "image_size": self.config.data.crop_size,
            "images_seen": images,
            "data": {"a": sources.a.name, "b": sources.b.name, "preprocess": self.config.data.preprocess},
        }


def machine(device: torch.device) -> dict[str, Any]:
    """What a record of speed must say of the machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
