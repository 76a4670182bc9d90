"""Synthetic run folders, and a parser of pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

CONFIG = {"run": {"seed": 0}, "data": {"image_size": 64, "flip": True}, "objective": {"cycle": [10.0, 10.0]}}


VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    """A parsed page; elements must be closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.source = source
        self.feed(source)
        self.close()
        self.text = " ".join(self.text.split())
        assert self._open == []

    def data(self) -> Any:
        """Return the data of a report, which its first script is."""
        return json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif self._open and self._open[-1] != "style":
            self.text += f"{data} "

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def a_score(name: str = "psnr_object_db", value: float = 21.3, **changes: Any) -> dict[str, Any]:
    score = {"name": name, "direction": "a2b", "value": value, "real": None, "baseline": 12.2}
    rest = {"weights": "ema", "checkpoint": "last", "better": "higher", "description": "The fruit."}
    return score | rest | changes


@pytest.fixture
def score() -> Callable[..., dict[str, Any]]:
    """Create an entry of `scores.json`."""
    return a_score


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Create a run folder; keyword arguments replace the contents of its files."""

    def make(
        name: str = "demo",
        *,
        domains: tuple[str, str] = ("apples", "oranges"),
        scores: list[dict[str, Any]] | None = None,
        config: dict[str, Any] = CONFIG,
        command: str = "velogan train cyclegan --out demo",
        picture: str = "0001.png",
        size: int = 16,
        times: int = 3,
    ) -> Path:
        run = tmp_path / name
        _samples(run / "samples", picture=picture, size=size, times=times)
        run_json = {
            "velogan": "0.1.0",
            "preset": "cyclegan",
            "command": command,
            "started": "2025-01-02T03:04:05",
            "machine": {"cores": 2, "device": "cpu"},
            "decisions": [{"field": "precision", "value": "bf16", "reason": "2.3x as fast here"}],
            "data": {key: {"name": domain, "train": 500} for key, domain in zip("ab", domains)},
        }
        (run / "run.json").write_text(json.dumps(run_json))
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        scored = {"protocol": {"images": 48}, "scores": [a_score()] if scores is None else scores}
        (run / "scores.json").write_text(json.dumps(scored))
        rows = [
            {"images": n * 100, "seconds": n * 2.5, "images_per_s": 40.0, "lr/G": 2e-4}
            | {"loss/generator/cycle_a": 1 / n}
            for n in range(1, 11)
        ]
        (run / "stats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run

    return make


def _samples(folder: Path, *, picture: str, size: int, times: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for time in range(1, times + 1):
        for direction in ("a2b", "b2a"):
            grid = random.integers(0, 256, (2 * size + 2, 3 * size + 4, 3), dtype=np.uint8)
            Image.fromarray(grid).save(folder / f"{time * 100:09d}-{direction}.png")
    layout = {"columns": ["input", "translated", "back"], "rows": [picture, "0002.png"]}
    (folder / "index.json").write_text(json.dumps({"a2b": layout, "b2a": layout}))
