"""Read the files of a run folder. A file may be missing or damaged; the others are still read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velogan.files import parse_yaml
from velogan.search.history import HistoryEntry, read_architecture

RUN_FILES = ("run.json", "config.yaml", "stats.jsonl", "scores.json", "samples")
SAMPLE_NAME = re.compile(r"(\d+)-(a2b|b2a|b2b)\.png")
MAX_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The contents of the files of one run."""

    folder: Path
    name: str
    run_json: Mapping[str, Any]
    config: Mapping[str, Any]
    stats: list[dict[str, Any]]
    protocol: Mapping[str, Any]
    scores: list[dict[str, Any]]
    grids: dict[str, dict[int, Path]]
    """Sample grids by direction and number of training images seen."""
    best: Mapping[str, Any]
    """`checkpoints/best.json`: the checkpoint, the name and value of its score, and the images that were scored."""
    layout: Mapping[str, Any]
    """`samples/index.json`: names of the columns and rows of the grids, by direction."""
    architecture: list[HistoryEntry]
    """`architecture.jsonl`: the weights of the operations of a search over time."""

    @property
    def images_seen(self) -> int:
        """Number of training images seen; 0 if unknown."""
        sampled = (images for grids in self.grids.values() for images in grids)
        return int(self.last_value("images") or max(sampled, default=0))

    def last_value(self, name: str) -> float | None:
        """Return the newest finite value of `name` in the log; None if there is none."""
        values = (row[name] for row in reversed(self.stats) if is_number(row.get(name)))
        return next(values, None)

    def domain_name(self, domain: str) -> str:
        """Return the name of domain "a" or "b"; the capital letter if it has no name."""
        return str(as_mapping(as_mapping(self.run_json.get("data")).get(domain)).get("name") or domain.upper())

    def domain_names(self, direction: str) -> tuple[str, str]:
        """Return the names of the source and target domains of direction "a2b", "b2a" or "b2b"."""
        source, target = direction[0] if direction in ("b2a", "b2b") else "a", "a" if direction == "b2a" else "b"
        return self.domain_name(source), self.domain_name(target)


def read_run_data(folder: Path) -> RunData:
    """Read a run folder. Raises ValueError if it has none of the files of a run."""
    folder = Path(folder)
    if not any((folder / name).exists() for name in RUN_FILES):
        raise ValueError(f"{folder} has none of the files {', '.join(RUN_FILES)}: name the folder of a training run")
    scores = as_mapping(_read(folder / "scores.json", json.loads))
    return RunData(
        folder=folder,
        name=folder.resolve().name,
        run_json=as_mapping(_read(folder / "run.json", json.loads)),
        config=as_mapping(_read(folder / "config.yaml", parse_yaml)),
        stats=_read(folder / "stats.jsonl", _parse_rows) or [],
        protocol=as_mapping(scores.get("protocol")),
        scores=[score for score in as_list(scores.get("scores")) if is_number(as_mapping(score).get("value"))],
        grids=_find_grids(folder / "samples"),
        best=as_mapping(_read(folder / "checkpoints" / "best.json", json.loads)),
        layout=as_mapping(_read(folder / "samples" / "index.json", json.loads)),
        architecture=read_architecture(folder),
    )


def mean_curves(stats: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Return the columns of the log, averaged over groups of consecutive rows to at most `MAX_POINTS` values each."""
    names = dict.fromkeys(name for row in stats for name, value in row.items() if is_number(value))
    size = -(-len(stats) // MAX_POINTS) or 1
    groups = [stats[start : start + size] for start in range(0, len(stats), size)]
    return {name: [_mean([row.get(name) for row in group]) for group in groups] for name in names}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested mapping by dotted names: `{"data": {"size": 1}}` becomes `{"data.size": 1}`."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            fields |= flatten(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number with an absolute value below 1e100."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """Return `value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _mean(values: list[Any]) -> float | None:
    numbers = [value for value in values if is_number(value)]
    return float(f"{sum(numbers) / len(numbers):.5g}") if numbers else None


def _parse_rows(text: str) -> list[dict[str, Any]]:
    """Parse JSON lines; skip invalid ones, such as the incomplete last line of a running or killed run."""
    rows = (_parse(line) for line in text.splitlines())
    return [row for row in rows if isinstance(row, dict)]


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return None
        return parse(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None


def _find_grids(folder: Path) -> dict[str, dict[int, Path]]:
    grids: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.glob("*.png")):
        if match := SAMPLE_NAME.fullmatch(path.name):
            grids.setdefault(match[2], {})[int(match[1])] = path
    return dict(sorted(grids.items()))
