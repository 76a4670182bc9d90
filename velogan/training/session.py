"""One run folder: opened, locked, continued, filled while training, and closed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from torch import nn

from velogan.config import Config, differences, parse_config, read_config, write_yaml
from velogan.data.sets.pair import Data
from velogan.data.sets.sources import check_apart
from velogan.engine.config import EngineConfig
from velogan.engine.duration import Length, parse_length, parse_span
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.trainer import Hook, Trainer, stop_on_signal
from velogan.evaluation.samples import Sampler
from velogan.evaluation.validation import Validation
from velogan.files import pluralize, write_text
from velogan.methods.base import Role
from velogan.observe.log import Log, read_stats
from velogan.observe.progress import Display, Training, forecast
from velogan.report import write_report
from velogan.report.failures import ENDED, describe_improvement, final_checkpoint_is_worse, find_failures
from velogan.search.recorder import ArchitectureRecorder
from velogan.store.checkpoint import (
    damage,
    digest,
    imported,
    list_checkpoints,
    load_state,
    load_weights,
    mark_best,
    newest_whole,
    put_back,
    read_best,
    remove_old,
    save_checkpoint,
    set_aside,
    weights_only,
)
from velogan.store.record import read_record, write_record
from velogan.training.record import changed_domains, engine_of, new_record, with_engine
from velogan.training.weights import headers, stored
from velogan.types import Decision

MAY_CHANGE = ("train.length", "train.keep", "train.samples", "train.tensorboard", "data.cache_dir")
MAY_CHANGE += ("data.workers", "train.log_every", "train.sample_every", "train.checkpoint_every")
MAY_CHANGE += ("train.patience", "train.process_timeout")
MAY_CHANGE += ("train.start", "method.start")
"""Fields that may differ when a run is continued, besides those of the engine: they do not change what is learned."""


FORECAST_S = 60.0
"""Seconds of training after which a run says what to expect."""


@dataclass(frozen=True)
class Result:
    """What a training command achieved; `seconds` are those of the whole run that its length counts."""

    run: Path
    checkpoint: Path
    images_seen: int
    images_per_s: float
    seconds: float
    weights_sha256: str
    finished: bool
    ranks: int = 1


class Session:
    """A run folder in use by this process."""

    def __init__(self, run: Path, config: Config, *, say: Callable[[str], None]):
        self.folder, self.config, self.say = run, config, say
        self.record = read_record(run)
        self.engine = engine_of(self.record)
        self._told: set[str] = set()
        self._began = 0.0
        self.state: dict[str, Any] | None = None
        """What the run continues from, once it is loaded."""

    @classmethod
    def open(cls, run: Path, config: Config, *, say: Callable[[str], None]) -> Session:
        """A new run, or the one that `run` holds, with its own configuration. ValueError where they disagree."""
        check_apart(config.data, run)
        if not (run / "config.yaml").exists():
            if list_checkpoints(run) and not imported(run):
                raise ValueError(
                    f"--out {run} holds checkpoints, but no config.yaml that says how they were trained: put it back, "
                    "or name a new folder"
                )
            if run.exists() and not run.is_dir():
                raise ValueError(f"--out {run} is a file: name a folder")
            if run.exists() and any(run.iterdir()) and not (run / ".lock").exists():
                raise ValueError(f"--out {run} is not empty and holds no run: name a new folder")
            return cls(run, config, say=say)
        if imported(run):
            return cls(run, config, say=say)
        saved = read_config(run)
        if config.data.batch_size == "auto":  # it was found when the run began
            config = config.change(data={"batch_size": saved.data.batch_size})
        if config.generator.output == "auto":
            config = config.change(generator={"output": saved.generator.output})
        changed = differences(config, saved)
        kept = {name: values for name, values in changed.items() if not name.startswith("engine.")}
        wrong = {name: values for name, values in kept.items() if name not in MAY_CHANGE}
        if wrong:
            listed = "; ".join(f"{name} is {new!r} here and {old!r} there" for name, (new, old) in wrong.items())
            raise ValueError(f"--out {run} holds a run with another configuration ({listed}): name a new folder")
        tree = saved.model_dump()
        for name, (asked, _) in kept.items():
            section, _, field = name.rpartition(".")
            tree[section][field] = asked
        tree["engine"] = config.engine.model_dump()  # what was chosen before stays, unless this asks for something else
        return cls(run, parse_config(tree), say=say)

    @property
    def begins_anew(self) -> bool:
        """Whether the folder holds no training to go on with."""
        return imported(self.folder) or not list_checkpoints(self.folder)

    def begins_from(self) -> Path | None:
        """Whose weights the networks begin with: those that were imported into this folder, or those of `train.start`.

        None where the run has begun, or begins anew.
        """
        if imported(self.folder):
            return self.folder
        asked = self.config.train.start
        return Path(asked) if asked is not None and self.begins_anew else None

    def start(
        self,
        config: Config,
        engine: EngineConfig,
        trainer: Trainer,
        *,
        roles: Mapping[str, Role],
        data: Data,
        decisions: Sequence[Decision],
        why: str,
        origin: Mapping[str, Any],
    ) -> None:
        """Loads the newest whole checkpoint if there is one; records configuration, choices and data.

        `config`: as requested. `engine`: the resolved engine settings, with their `decisions`. `why`: for a resumed
        run, why they changed. `origin`: the `preset` and `command` of the run, and what was `changed` in the preset.
        """
        self.config, self.trainer, self.roles, self.data = config, trainer, roles, data
        self.engine: EngineConfig | None = engine
        put_back(self.folder)
        whole, broken = newest_whole(self.folder)
        self._resume(whole, broken)
        if whole is None:
            self._set_aside()
        longer = self._is_longer()
        if not longer:
            write_text(self.folder / "config.yaml", write_yaml(config))
        self._record(decisions, why, origin, began=whole is not None and not weights_only(whole), longer=longer)
        self.log = Log(self.folder, tensorboard=config.train.tensorboard, say=self.say)
        self.log.truncate(trainer.images)

    def _set_aside(self) -> None:
        """Keep the curves of a training that has left no checkpoint, under another name, and say so."""
        file = self.folder / "stats.jsonl"
        if not file.is_file() or not file.stat().st_size:
            return
        kept = next(name for n in count(1) if not (name := self.folder / f"stats.before-{n}.jsonl").exists())
        write_text(kept, file.read_text())
        self.say(f"{self.folder} holds curves, but no checkpoint: beginning anew; these curves are kept in {kept.name}")

    def _is_longer(self) -> bool:
        """Whether the run has seen more images than are asked for; then it keeps the length that it has."""
        file, length = self.folder / "config.yaml", self.config.train.length
        asked = parse_length(length, epoch=self.trainer.epoch).total
        longer = asked is not None and asked < self.trainer.images
        longer = longer and file.is_file() and read_config(file).train.length != length
        if longer:
            self.say(
                f"{self.folder} has seen {pluralize(self.trainer.images, 'image')} already, more than {length}: "
                "nothing is trained; a larger --images goes on"
            )
        return longer

    def _record(
        self, decisions: Sequence[Decision], why: str, origin: Mapping[str, Any], *, began: bool, longer: bool
    ) -> None:
        record = self.record
        if began and not longer and origin.get("command"):  # the command that repeats the run as long as it is now
            record = {**record, "command": origin["command"]}
            write_record(self.folder, record)
        if "data" not in record:
            record = {**new_record(origin, self.data), **record}
        if began and (changed := changed_domains(record, self.data)):
            self.say(
                f"the pictures of domain {' and '.join(changed)} have changed since this run began: continuing with "
                "the new ones"
            )
        free = {"threads"} if self.config.engine.threads is None else set[str]()  # then they are the machine's
        before = engine_of(record)
        if self.engine is None or (before and before.model_dump(exclude=free) == self.engine.model_dump(exclude=free)):
            return
        if why:
            self.say(f"the engine computes another way from {pluralize(self.trainer.images, 'image')} on: {why}")
        for line in engine_lines(decisions):
            self.say(line)
        images, device = self.trainer.images, self.trainer.device
        write_record(self.folder, with_engine(record, self.engine, decisions, images=images, reason=why, device=device))

    def _resume(self, checkpoint: Path | None, broken: Mapping[Path, str]) -> None:
        """Continues from `checkpoint`, if there is one; sets `broken` ones aside, which are worse than none."""
        best = read_best(self.folder)
        best = self.folder / "checkpoints" / best["checkpoint"] if best else None
        if best and (wrong := broken.get(best) or damage(best)):
            self.say(f"{wrong}: it was the best checkpoint, and the next one that scores is taken for the best")
            broken = {**broken, best: wrong}
        for folder, wrong in broken.items():
            self.say(f"{wrong}: checkpoint {folder.name} is not used")
            set_aside(folder)
        if checkpoint is None or weights_only(checkpoint):
            return
        state, clock = load_state(checkpoint)
        self.state = state
        weights = {name: load_weights(checkpoint / f"{name}.safetensors")[1] for name in self._stored()}
        try:
            for name, net in self._stored().items():
                net.load_state_dict(weights[name])
            self.trainer.load_state_dict(state)
            self.trainer.clock.load_state_dict(clock)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{checkpoint} holds another state than this run's ({type(error).__name__}: {str(error)[:300]}): put "
                "its own copy there, or move it away to continue from the one before"
            ) from error
        self.say(f"continuing {self.folder} at {pluralize(self.trainer.images, 'image')}")
        self._tell_ranks(1 + len(state.get("others", ())))

    def _tell_ranks(self, before: int) -> None:
        """Says what changes with the number of processes."""
        now, images = self.trainer.distributed.world, self.config.images_per_update
        if now != before:
            kept = "those of the others are not used" if now < before else "the new ones with copies"
            self.say(
                f"trained by {now} process{'es' if now > 1 else ''} from here on, before by {before}: an update is of "
                f"{pluralize(now * images, 'image')}, "
                f"before of {before * images}; each goes on with past translations of its own, {kept}"
            )

    def _stored(self) -> dict[str, nn.Module]:
        return stored(self.config.method, self.config.spec, self.roles, self.trainer.ema.nets)

    def run(
        self,
        display: Display,
        *,
        grids: Sampler | None,
        validation: Validation,
        architecture: ArchitectureRecorder | None = None,
    ) -> Result:
        """Trains to the end of the run, or until asked to stop; leaves a checkpoint. Without `grids` it draws none.

        NonFiniteError where numbers break: then nothing is saved, and what was saved before stays.
        """
        trainer, train = self.trainer, self.config.train
        length = parse_length(train.length, epoch=trainer.epoch)
        trainer.plan(length)
        self.validation = validation
        before, worked = trainer.images, trainer.clock.worked
        self._began = trainer.clock.seconds
        with self.log, stop_on_signal(trainer):
            bar = display.training(length.total)
            hooks = [Hook(parse_span(train.log_every), lambda images: self._log_tick(images, length, bar))]
            if grids is not None:
                hooks.append(Hook(length.spaced(train.sample_every), partial(self._sample, grids)))
            if architecture is not None:
                architecture.start(trainer.images)
                hooks.append(Hook(parse_span(train.log_every), architecture.write))
            if validation.disabled_reason:
                waits = f"; train.patience={train.patience} has no score to wait for" if train.patience else ""
                self.say(validation.disabled_reason + waits)
            hooks.append(Hook(length.spaced(train.checkpoint_every), self._save))
            ended = self._waited_enough()
            if ended and not self._at_end():
                self._tell_early_end()
            try:
                if trainer.distributed.broadcast(not ended):
                    trainer.run(length, hooks=hooks)
            except NonFiniteError as error:
                error.advice = self._advice()
                raise
            if trainer.distributed.broadcast(not list_checkpoints(self.folder)):
                self._save(trainer.images)
        if trainer.images == before:
            self._write_page()
        worked = trainer.clock.worked - worked
        last = list_checkpoints(self.folder)[-1]
        return Result(
            run=self.folder,
            checkpoint=last,
            images_seen=trainer.images,
            images_per_s=(trainer.images - before) / worked if worked > 0 else 0.0,
            seconds=trainer.clock.seconds,
            weights_sha256=digest(last),
            finished=self._at_end() or self._waited_enough(),
            ranks=trainer.distributed.world,
        )

    def _at_end(self) -> bool:
        """Whether the training has its whole length; in minutes, what is reserved for the end may be left."""
        return self.trainer.length.progress(self.trainer.images, self.trainer.clock.seconds) >= 1

    def _write_page(self) -> None:
        self._remakeable("report.html", write_report, [self.folder])

    def _sample(self, grids: Sampler, images: int) -> None:
        self._remakeable("sample pictures", grids.write, images)

    def _remakeable(self, what: str, make: Callable[..., object], *arguments: Any) -> None:
        """Calls what writes files that can be made again: where they cannot be written, says so once and goes on."""
        try:
            make(*arguments)
        except OSError as error:
            self._say_once(
                what, f"{self.folder}: {what} cannot be written ({error.strerror or error}): going on without"
            )

    def _say_once(self, subject: str, text: str) -> None:
        if subject not in self._told:
            self._told.add(subject)
            self.say(text)

    def _when(self, images: int) -> dict[str, Any]:
        """The three axes of a row of the log."""
        return {"images": images, "epoch": images / self.trainer.epoch, "seconds": self.trainer.clock.seconds}

    def _log_tick(self, images: int, length: Length, bar: Training) -> None:
        trainer = self.trainer
        means, speed = trainer.stats.tick(), trainer.clock.tick(images)
        row: dict[str, Any] = {**self._when(images), "images_per_s": speed}
        row["step_ms"] = 1000 * trainer.batch_size / speed if speed else 0.0
        row |= {f"loss/{name}": value for name, value in means.items()}
        row |= {
            f"lr/{group['name']}": float(group["lr"])
            for optimizer in trainer.step.optimizers.values()
            for group in optimizer.param_groups
        }
        if trainer.step.scale is not None:
            row["loss_scale"] = float(trainer.step.scale.factor)
        self.log.write(row)
        totals = {name.split("/")[0]: value for name, value in means.items() if name.endswith("/total")}
        first = {name: "".join(word[0] for word in name.split("_")).upper() for name in totals}
        alone = {name for name in first if [*first.values()].count(first[name]) == 1}
        short = {first[name] if name in alone else name: value for name, value in totals.items()}
        if length.total is None:
            left: float | None = max(length.span.amount * 60 - trainer.clock.seconds, 0.0)
        else:
            left = trainer.clock.eta(max(length.total - images, 0))
        bar.update(images, images_per_s=speed, eta_s=left, losses=short)
        if trainer.clock.seconds - self._began >= FORECAST_S and "forecast" not in self._told:
            self._say_once("forecast", forecast(images, images_per_s=speed, total=length.total, left_s=left))

    def _save(self, images: int) -> None:
        trainer = self.trainer
        folder = save_checkpoint(
            self.folder,
            images=images,
            networks=self._stored(),
            headers=self._headers(images),
            state=trainer.state_dict(),
            clock=trainer.clock_state(),
        )
        if self.validation.description:
            self._score(folder, images)
        self._tell_failures()
        if self.validation.description and self._waited_enough():
            self.say(
                f"the score has not become better at {pluralize(self.config.train.patience, 'checkpoint')}: "
                "the run ends"
            )
            trainer.enough = True
        remove_old(self.folder, keep=self.config.train.keep)
        self._write_page()

    def _headers(self, images: int) -> dict[str, dict[str, Any]]:
        data = self.config.data
        origin = {
            "method": self.config.method.kind,
            "image_size": data.crop_size,
            "images_seen": images,
            "data": {"a": self.data.sources.a.name, "b": self.data.sources.b.name, "preprocess": data.preprocess},
        }
        described = headers(self.config.method, self.config.spec, self.roles, self.data)
        return {name: {**header, **origin} for name, header in described.items()}

    def _score(self, folder: Path, images: int) -> None:
        """Scores the averaged generators on the held-out pictures; `folder` is best where nothing scored lower."""
        figures = self.validation.score()
        ended = {ENDED: True} if self._at_end() else {}
        self.log.write({**self._when(images), **figures, **ended})
        name, on = self.validation.name, self.validation.description
        best = read_best(self.folder) or {}
        same = (best.get("name"), best.get("on")) == (name, on)
        if figures[name] < (best["score"] if same else math.inf):
            best = {"checkpoint": folder.name, "score": figures[name]}
        elif not same:
            return
        chosen = folder.with_name(best["checkpoint"])
        badly = folder if chosen != folder and final_checkpoint_is_worse(read_stats(self.folder)) else None
        mark_best(self.folder, checkpoint=chosen, name=name, score=best["score"], on=on, instead_of=badly)

    def _tell_failures(self) -> None:
        stats = read_stats(self.folder)
        for one in find_failures(stats):
            self._say_once(one.name, f"since {pluralize(one.since, 'image')} {one.description}: try {one.hint}")
        if self._at_end() and (gain := describe_improvement(stats)):
            self.say(gain)

    def _waited_enough(self) -> bool:
        """Whether `train.patience` says that the run has ended."""
        patience, best = self.config.train.patience, read_best(self.folder)
        if not patience or best is None:
            return False
        since = [row for row in read_stats(self.folder) if row.get(best["name"]) is not None]
        return sum(row["images"] > int(best["checkpoint"]) for row in since) >= patience

    def _tell_early_end(self) -> None:
        patience, at = self.config.train.patience, pluralize(self.trainer.images, "image")
        self.say(f"train.patience={patience} ended this run at {at}; --train.patience 0, or a larger one, goes on")

    def _advice(self) -> str:
        saved = list_checkpoints(self.folder)
        where = "none was saved yet"
        if saved:
            where = f"checkpoint {saved[-1].name} is kept, and the next start goes on from it"
        half = ", engine.precision=fp32" if self.engine and self.engine.precision in ("bf16", "fp16") else ""
        return (
            f"{self.folder}: {where}. To remove the cause start a new run folder with a lower "
            f"optimizer.lr{half}, and look at the pictures with `velogan data check`"
        )


def engine_lines(decisions: Sequence[Decision]) -> list[str]:
    """What a run computes with, in three lines, and what its data decided; all reasons stand in run.json."""
    of_engine = {decision.field: decision for decision in decisions if decision.field in EngineConfig.model_fields}
    used = [
        decision.field if decision.value == "on" else decision.value
        for decision in of_engine.values()
        if decision.value != "off"
    ]
    told = [
        decision
        for decision in decisions
        if decision.field not in of_engine or decision.field in ("precision", "kernels")
    ]
    lines = [f"engine: {', '.join(used)} (reasons: run.json)"] if used else []
    return lines + [f"{decision.field}: {decision.value} ({decision.reason})" for decision in told]
