"""Run folders whose files hold markup, huge numbers and nonsense: a page all the same, with nothing of it run."""

from __future__ import annotations

import html.parser
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from velogan.report import write_report

MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&</style><!--\n\x1b[2J\u2028\udcff"
VALUES = (0, -1e308, 10**400, 1e999, float("nan"), 1e-320, True, None, MARKUP, [], {"a": {"b": [MARKUP]}}, [None] * 5)


class _Page(html.parser.HTMLParser):
    """What elements and attributes a browser would find, and what is in scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def _page(run: Path) -> _Page:
    page = _Page()
    text = write_report([run]).read_text(encoding="utf-8")
    page.feed(text)
    page.close()
    assert not page.handlers
    assert all(source.startswith("data:") for source in page.sources)
    for data in re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL):
        json.loads(data)
    return page


def _run(folder: Path, **files: object) -> Path:
    """A run folder of ordinary files, some of them replaced: a name's "/" and "." are written "__" and "_"."""
    score = {"name": "psnr_truth_db", "direction": "a2b", "value": 20.0, "real": 30.0, "baseline": 10.0}
    plain: dict[str, object] = {
        "run.json": {"velogan": "0", "preset": "x", "command": "velogan train", "data": {"a": {"name": "a"}}},
        "config.yaml": "data: {path: [x]}",
        "stats.jsonl": [{"images": n, "seconds": n, "loss/x": 1 / n} for n in range(1, 5)],
        "scores.json": {"protocol": {"run": "x"}, "scores": [score | {"weights": "raw", "checkpoint": "last"}]},
        "checkpoints/best.json": {"checkpoint": "000000003", "score": 1.0, "name": "loss/x", "on": "2 pictures"},
        "samples/index.json": {"a2b": {"columns": ["input", "translated"], "rows": ["a.png"]}},
    }
    for name, content in (plain | files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jsonl") and isinstance(content, list):
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), errors="replace")
    Image.new("RGB", (34, 16)).save(folder / "samples" / "000000004-a2b.png")
    return folder


@pytest.fixture
def usual(tmp_path: Path) -> list[str]:
    """The elements of an ordinary page that could run something."""
    return _active(_page(_run(tmp_path / "usual")))


def _active(page: _Page) -> list[str]:
    return [tag for tag in page.tags if tag in ("script", "style", "iframe", "object", "embed", "link", "base", "form")]


def _everywhere(value: Any) -> dict[str, object]:
    """Every field that the page shows, and every name of one, as `value`."""
    name = value if isinstance(value, str) else "psnr_truth_db"
    score = {"name": name, "value": 1.0} | dict.fromkeys(
        ("direction", "real", "baseline", "weights", "checkpoint", "better", "description", "interval_95", "classes"),
        value,
    )
    fields = ("velogan", "preset", "command", "started", "machine", "decisions", "changed", "origin")
    data = {domain: {"name": value, "train": value, "test": value} for domain in "ab"}
    row = {"images": value, "seconds": value, "images_per_s": value, "step_ms": value, f"loss/{name}": 1.0, name: value}
    return {
        "run.json": dict.fromkeys(fields, value) | {"data": data, "machine": {"cores": value, name: value}},
        "config.yaml": json.dumps({"data": {name: value}, name: value}),
        "stats.jsonl": [row, {"images": 3, "loss/x": value}, {"images": 4, name: 2}],
        "scores.json": {"protocol": {name: value, "best": value}, "scores": [score, value, [value]]},
        "checkpoints/best.json": {"checkpoint": value, "score": value, "name": value, "on": value},
        "samples/index.json": {"a2b": {"columns": [value, name], "rows": [value] * 3}},
    }


@pytest.mark.parametrize("value", VALUES, ids=lambda value: ascii(value)[:20])
def test_shows_any_value_in_any_field(tmp_path: Path, usual: list[str], value: object) -> None:
    page = _page(_run(tmp_path / "run", **_everywhere(value)))
    assert _active(page) == usual


def test_markup_is_escaped(tmp_path: Path) -> None:
    text = write_report([_run(tmp_path / "run", **_everywhere(MARKUP))]).read_text(encoding="utf-8")
    assert "&lt;script&gt;alert" in text
    assert "<script>alert" not in text
    assert "<img src=x" not in text


def test_a_folder_name_with_markup_is_escaped(tmp_path: Path, usual: list[str]) -> None:
    assert _active(_page(_run(tmp_path / "<script>alert(1)" / "<img src=x onerror=alert(1)>"))) == usual
    many = write_report([_run(tmp_path / "<b>one"), _run(tmp_path / "two")]).read_text(encoding="utf-8")
    assert "<b>one" not in many


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe" * 99, b"[" * 100_000, b"null", b"3", b"[[]]", b"{"],
    ids=lambda content: ascii(content)[:20],
)
def test_ignores_files_with_other_content(tmp_path: Path, content: bytes) -> None:
    names = ("run.json", "config.yaml", "stats.jsonl", "scores.json", "checkpoints/best.json", "samples/index.json")
    _page(_run(tmp_path / "run", **dict.fromkeys(names, content)))


@pytest.mark.timeout(30)
def test_aliases_in_a_configuration_are_not_expanded(tmp_path: Path) -> None:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    _page(_run(tmp_path / "run", **{"config.yaml": laughs}))


def test_ignores_damaged_sample_images(tmp_path: Path, makers: dict[str, Any]) -> None:
    """Grids that are cut, empty, of another kind, or bombs; and layouts that do not fit them."""
    run = _run(
        tmp_path / "run", **{"samples/index.json": {"a2b": {"columns": ["input", "translated"] * 99, "rows": "x"}}}
    )
    whole = makers["valid"]()["rgb.png"]
    bomb = makers["png"](40_000, 40_000, zlib.compress(bytes(100)))
    for number, content in enumerate((b"", whole[:60], b"text", bomb, makers["valid"]()["first.gif"])):
        (run / "samples" / f"{number + 10:09d}-a2b.png").write_bytes(content)
    (run / "samples" / "000000020-a2b.png").mkdir()
    (run / "samples" / "000000030-a2b.png").symlink_to("000000030-a2b.png")
    _page(run)
    (run / "samples" / "index.json").write_text(json.dumps({"a2b": {"columns": {"a": 1}, "rows": [[]]}}))
    _page(run)
