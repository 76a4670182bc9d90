"""What the files of a run folder say of the run. A file may be missing or damaged; the others are still read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velogan.files import parse_yaml
from velogan.search.history import Tick, read_architecture

FILES = ("run.json", "config.yaml", "stats.jsonl", "scores.json", "samples")
SAMPLE = re.compile(r"(\d+)-(a2b|b2a|b2b)\.png")
MOST_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The contents of one run's files."""

    folder: Path
    name: str
    run: Mapping[str, Any]
    config: Mapping[str, Any]
    stats: list[dict[str, Any]]
    protocol: Mapping[str, Any]
    scores: list[dict[str, Any]]
    grids: dict[str, dict[int, Path]]
    """Sample files by direction and images seen."""
    best: Mapping[str, Any]
    """`checkpoints/best.json`: checkpoint, name and figure of the score, and the pictures it was measured on."""
    layout: Mapping[str, Any]
    """`samples/index.json`: columns and rows by direction."""
    architecture: list[Tick]
    """`architecture.jsonl`: the choices of a search over time."""

    @property
    def images(self) -> int:
        """Images seen, 0 if unknown."""
        sampled = (seen for times in self.grids.values() for seen in times)
        return int(self.last("images") or max(sampled, default=0))

    def last(self, name: str) -> float | None:
        """The newest finite figure of that name in the log."""
        figures = (row[name] for row in reversed(self.stats) if is_number(row.get(name)))
        return next(figures, None)

    def domain(self, domain: str) -> str:
        """The name of the data of domain "a" or "b"; the capital letter if it has none."""
        return str(mapping(mapping(self.run.get("data")).get(domain)).get("name") or domain.upper())

    def way(self, direction: str) -> tuple[str, str]:
        """Names of the domains that "a2b", "b2a" or "b2b" leads from and to."""
        source, target = direction[0] if direction in ("b2a", "b2b") else "a", "a" if direction == "b2a" else "b"
        return self.domain(source), self.domain(target)


def read_facts(folder: Path) -> Facts:
    """Read a run folder. Raises `ValueError` for a folder without any file of a run."""
    folder = Path(folder)
    if not any((folder / name).exists() for name in FILES):
        raise ValueError(f"{folder} holds none of {', '.join(FILES)}: give the folder of a training run")
    scores = mapping(_read(folder / "scores.json", json.loads))
    return Facts(
        folder=folder,
        name=folder.resolve().name,
        run=mapping(_read(folder / "run.json", json.loads)),
        config=mapping(_read(folder / "config.yaml", parse_yaml)),
        stats=_read(folder / "stats.jsonl", _rows) or [],
        protocol=mapping(scores.get("protocol")),
        scores=[score for score in listing(scores.get("scores")) if is_number(mapping(score).get("value"))],
        grids=_grids(folder / "samples"),
        best=mapping(_read(folder / "checkpoints" / "best.json", json.loads)),
        layout=mapping(_read(folder / "samples" / "index.json", json.loads)),
        architecture=read_architecture(folder),
    )


def curves(stats: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """Columns of the log, thinned to at most `MOST_POINTS` means of equally many neighbours."""
    names = dict.fromkeys(name for row in stats for name, value in row.items() if is_number(value))
    size = -(-len(stats) // MOST_POINTS) or 1
    groups = [stats[start : start + size] for start in range(0, len(stats), size)]
    return {name: [_mean([row.get(name) for row in group]) for group in groups] for name in names}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping with dotted names: `{"data": {"size": 1}}` to `{"data.size": 1}`."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            fields |= flat(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number below 1e100 in size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listing(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _mean(values: list[Any]) -> float | None:
    numbers = [value for value in values if is_number(value)]
    return float(f"{sum(numbers) / len(numbers):.5g}") if numbers else None


def _rows(text: str) -> list[dict[str, Any]]:
    """Lines of JSON; the last may be torn, as the run may be writing or may have been killed."""
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


def _grids(folder: Path) -> dict[str, dict[int, Path]]:
    grids: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.glob("*.png")):
        if found := SAMPLE.fullmatch(path.name):
            grids.setdefault(found[2], {})[int(found[1])] = path
    return dict(sorted(grids.items()))
