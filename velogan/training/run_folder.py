"""The folder of a run, with the configuration of the run in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from velogan.config import Config, differences, parse_config, read_config
from velogan.data.sets.sources import check_output_outside_data
from velogan.store.checkpoint import is_imported, list_checkpoints
from velogan.store.record import read_record
from velogan.training.record import read_engine

FIELDS_CHANGEABLE_ON_RESUME = (
    "data.cache_dir",
    "data.workers",
    "method.start",
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
"""Fields that may change when a run is resumed, besides those of the engine: they do not change what is learned."""


class RunFolder:
    """The folder of a run and its requested configuration.

    `previous_engine`: the resolved engine settings of the run so far; None for a new run. `print_line` prints a line.
    """

    def __init__(self, path: Path, config: Config, *, print_line: Callable[[str], None]):
        self.path, self.config, self.print_line = path, config, print_line
        self.record = read_record(path)
        self.previous_engine = read_engine(self.record)

    @classmethod
    def open(cls, path: Path, config: Config, *, print_line: Callable[[str], None]) -> RunFolder:
        """Open a new run, or the one in `path` with its own configuration. Raises ValueError if they do not match."""
        check_output_outside_data(config.data, path)
        if not (path / "config.yaml").exists():
            if list_checkpoints(path) and not is_imported(path):
                raise ValueError(
                    f"--out {path} holds checkpoints, but no config.yaml that says how they were trained: put it back, "
                    "or name a new folder"
                )
            if path.exists() and not path.is_dir():
                raise ValueError(f"--out {path} is a file: name a folder")
            if path.exists() and any(path.iterdir()) and not (path / ".lock").exists():
                raise ValueError(f"--out {path} is not empty and holds no run: name a new folder")
            return cls(path, config, print_line=print_line)
        if is_imported(path):
            return cls(path, config, print_line=print_line)
        return cls(path, _merge(config, read_config(path), path), print_line=print_line)

    @property
    def is_fresh_start(self) -> bool:
        """Whether the folder has no training to resume."""
        return is_imported(self.path) or not list_checkpoints(self.path)

    @property
    def initial_weights_path(self) -> Path | None:
        """The weights imported into this folder, or those of `train.start`; None if the run resumes or has neither."""
        if is_imported(self.path):
            return self.path
        start = self.config.train.start
        return Path(start) if start is not None and self.is_fresh_start else None


def _merge(config: Config, saved: Config, path: Path) -> Config:
    """Return the `saved` configuration with those fields of `config` that may change."""
    if config.data.batch_size == "auto":  # it was resolved when the run started
        config = config.change(data={"batch_size": saved.data.batch_size})
    if config.generator.output == "auto":
        config = config.change(generator={"output": saved.generator.output})
    changed = differences(config, saved)
    changed = {name: values for name, values in changed.items() if not name.startswith("engine.")}
    wrong = {name: values for name, values in changed.items() if name not in FIELDS_CHANGEABLE_ON_RESUME}
    if wrong:
        listed = "; ".join(f"{name} is {new!r} here and {old!r} there" for name, (new, old) in wrong.items())
        raise ValueError(f"--out {path} holds a run with another configuration ({listed}): name a new folder")
    tree = saved.model_dump()
    for name, (value, _) in changed.items():
        section, _, field = name.rpartition(".")
        tree[section][field] = value
    tree["engine"] = config.engine.model_dump()  # resolved settings are kept, unless this requests others
    return parse_config(tree)
