"""The folder of a run: check that a command may use it, and merge the command's configuration with the saved one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from velogan.config import Config, differences, parse_config, read_config
from velogan.data.sets.sources import check_output_outside_data
from velogan.engine.config import EngineConfig
from velogan.store.checkpoint import is_imported, list_checkpoints
from velogan.store.record import read_record
from velogan.training.record import read_engine

FIELDS_CHANGEABLE_ON_RESUME = (
    "data.cache_dir",
    "data.workers",
    "train.checkpoint_every",
    "train.keep",
    "train.length",
    "train.log_every",
    "train.logger",
    "train.patience",
    "train.process_timeout",
    "train.sample_every",
    "train.samples",
    "train.start",
)
"""Fields that may change when a run is resumed, like all fields of the section engine."""

IMAGE_FOLDERS = ("data.path", "data.masks_a", "data.masks_b", "data.labels_a", "data.labels_b")
"""Fields that may change to a folder with the same images; `start_or_resume` checks that these are the same."""


def open_run(run: Path, config: Config) -> tuple[Config, EngineConfig | None]:
    """Return `config` for a new run; else the configuration saved in `run` with the changeable fields of `config`.

    Return the latest engine settings of the run, too; None for a new run. Raises ValueError if the folder holds files
    that are not a run's, or a run with another configuration.
    """
    if (run / "config.yaml").exists() and not is_imported(run):
        config = _merge(config, read_config(run), run)
    elif run.exists() and not run.is_dir():
        raise ValueError(f"--out {run} is a file: choose a folder")
    elif list_checkpoints(run) and not is_imported(run):
        raise ValueError(
            f"--out {run} holds checkpoints but no config.yaml with their settings: restore it, or choose a new folder"
        )
    elif run.exists() and any(run.iterdir()) and not (run / ".lock").exists() and not is_imported(run):
        raise ValueError(f"--out {run} is not empty and is not a run: choose a new folder")
    check_output_outside_data(config.data, run)
    return config, read_engine(read_record(run))


def initial_weights_path(run: Path, config: Config) -> Path | None:
    """Return the path of initial weights: `run` if it was imported; `train.start` of a new run; else None."""
    if is_imported(run):
        return run
    start = config.train.start
    return Path(start) if start is not None and not list_checkpoints(run) else None


def _merge(config: Config, saved: Config, run: Path) -> Config:
    """Return the `saved` configuration with the changeable fields of `config`. Raises ValueError if others differ."""
    if config.data.batch_size == "auto":  # it was resolved when the run started
        config = config.change(data={"batch_size": saved.data.batch_size})
    if config.generator.output == "auto":
        config = config.change(generator={"output": saved.generator.output})
    changed = differences(config, saved)
    changed = {name: values for name, values in changed.items() if not name.startswith("engine.")}
    moved = {name for name in IMAGE_FOLDERS if name in changed and all(changed[name])}
    refused = {name: values for name, values in changed.items() if name not in {*FIELDS_CHANGEABLE_ON_RESUME, *moved}}
    if refused:
        listed = "; ".join(f"{name} is {new!r} here and {old!r} there" for name, (new, old) in refused.items())
        flags = ", ".join(_format_flag(name, old) for name, (_, old) in refused.items())
        raise ValueError(
            f"--out {run} holds a run with another configuration ({listed}): to resume it, set {flags}; "
            "or choose a new folder"
        )
    tree = saved.model_dump()
    for name, (value, _) in changed.items():
        section, _, field = name.rpartition(".")
        tree[section][field] = value
    tree["engine"] = config.engine.model_dump()  # `auto` does not replace settings that were resolved before
    return parse_config(tree)


def _format_flag(name: str, value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{'no ' if value is None else ''}--{name.replace('_', '-')}{'' if value is None else f' {text}'}"
