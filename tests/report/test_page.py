from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from velogan.report import write_report

from .conftest import Page

MakeRun = Callable[..., Path]
MakeScore = Callable[..., dict[str, Any]]

HOSTILE = "</script><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"


def report(*runs: Path) -> Page:
    return Page(write_report(list(runs)).read_text(encoding="utf-8"))


def test_describes_the_run_and_its_result(make_run: MakeRun, tmp_path: Path) -> None:
    run, out = make_run(), tmp_path / "deep" / "page.html"
    assert write_report([run], out) == out
    assert write_report([run]) == run / "report.html"
    page = Page((run / "report.html").read_text())
    assert page.source == out.read_text()
    for part in (
        "Apples become oranges",
        "Apples to oranges: better by Object PSNR (21.3 dB, unchanged input 12.2 dB); whether they depend on",
        "1,000 images seen",
        "500 apples and 500 oranges",
        "2.3x as fast here",
        "velogan train cyclegan --out demo",
        "data.image_size",
        "The fruit.",
    ):
        assert part in page.text
    assert not list(run.glob("*.tmp"))


def test_contains_images_and_curves(make_run: MakeRun) -> None:
    page = report(make_run())
    assert [(gallery["direction"], gallery["domains"]) for gallery in page.data()["galleries"]] == [
        ("a2b", ["apples", "oranges"]),
        ("b2a", ["oranges", "apples"]),
    ]
    gallery = page.data()["galleries"][0]
    assert [frame["images"] for frame in gallery["frames"]] == [100, 200, 300]
    assert (gallery["columns"], len(gallery["rows"])) == (["input", "translated", "back"], 2)
    assert _decode(gallery["frames"][0]["uri"]).size == tuple(gallery["size"]) == (52, 34)
    curves = page.data()["runs"][0]["curves"]
    assert curves["images"] == [100 * n for n in range(1, 11)]
    assert curves["loss/generator/cycle_a"][:2] == [1.0, 0.5]


def test_loads_nothing_from_elsewhere(make_run: MakeRun) -> None:
    page = report(make_run(), make_run("other"))
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert "@import" not in page.source
    loaded = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if key in attributes]
    assert loaded
    assert all(str(address).startswith("data:") for address in loaded)


def test_escapes_hostile_names(make_run: MakeRun, score: MakeScore) -> None:
    calm = report(make_run("calm"))
    hostile = make_run(
        "<b>bold & run",
        domains=(HOSTILE, HOSTILE),
        command=HOSTILE,
        picture=HOSTILE,
        config={HOSTILE: {"field": HOSTILE}, "$title": "${data}"},
        scores=[score(HOSTILE, description=HOSTILE, weights=HOSTILE, direction=HOSTILE, better=HOSTILE)],
    )
    page = report(hostile)
    assert page.count("script") == calm.count("script") == 2
    assert page.count("img") == calm.count("img")
    assert all(not key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert page.data()["galleries"][0]["rows"][0] == HOSTILE
    assert page.data()["runs"][0]["name"] == "<b>bold & run"
    assert HOSTILE in page.text
    assert "${data}" in page.text
    assert report(hostile, make_run("third")).count("b") > 0


@pytest.mark.parametrize("missing", ["run.json", "config.yaml", "stats.jsonl", "scores.json", "samples"])
@pytest.mark.parametrize("state", ["absent", "damaged"])
def test_any_file_may_be_missing_or_damaged(make_run: MakeRun, missing: str, state: str) -> None:
    run = make_run()
    path = run / missing
    if missing == "samples":
        shutil.rmtree(path) if state == "absent" else [file.write_bytes(b"\x89PNG oh") for file in path.iterdir()]
    elif state == "absent":
        path.unlink()
    else:
        path.write_text("[1, 2, {}]" if missing == "scores.json" else "{[\x00")
    page = report(run)
    assert bool(page.data()["galleries"]) == (missing != "samples")
    assert bool(page.data()["runs"][0]["curves"]) == (missing != "stats.jsonl")
    assert ("velogan evaluate" in page.text) == (missing == "scores.json")
    assert ("velogan train" in page.text) == (missing != "run.json")
    assert ("data.image_size" in page.text) == (missing != "config.yaml")


def test_accepts_an_incomplete_last_line_and_null(make_run: MakeRun) -> None:
    run = make_run()
    with (run / "stats.jsonl").open("a") as file:
        file.write('{"images": 1100, "loss/generator/cycle_a": null}\n{"images": 1200, "loss/gen')
    curves = report(run).data()["runs"][0]["curves"]
    assert curves["images"][-2:] == [1000, 1100]
    assert curves["loss/generator/cycle_a"][-2:] == [0.1, None]


def test_compares_several_runs(make_run: MakeRun, score: MakeScore) -> None:
    small = {"run": {"seed": 0}, "data": {"image_size": 32, "flip": True}}
    runs = [make_run("first"), make_run("second", config=small, scores=[score(value=10.0)])]
    path = write_report(runs)
    assert path == runs[0].parent / "comparison.html"
    page = Page(path.read_text())
    assert [run["name"] for run in page.data()["runs"]] == ["first", "second"]
    assert [gallery["run"] for gallery in page.data()["galleries"]] == [0, 0, 1, 1]
    assert "2 runs compared" in page.text
    assert "Worse than the unchanged input." in page.text
    assert "data.image_size" in page.text
    assert "data.flip" not in page.text


def test_rejects_folders_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere has none of the files run\.json"):
        write_report([tmp_path / "nowhere"])
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="at least one"):
        write_report([])


def _decode(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_names_the_best_checkpoint(make_run: MakeRun) -> None:
    run = make_run()
    with (run / "stats.jsonl").open("a") as file:
        file.write('{"images": 800, "validation/distance": 0.5}\n')
    (run / "checkpoints").mkdir()
    best = {"checkpoint": "000000800", "name": "validation/distance", "score": 0.5, "on": "2 <b>apples</b>"}
    (run / "checkpoints" / "best.json").write_text(json.dumps(best))
    page = report(run)
    assert "Best: checkpoint 1 of 1, at 800 images, lowest sliced Wasserstein distance (0.5) on 2 <b>app" in page.text
    curves = page.data()["runs"][0]["curves"]
    assert [value for value in curves["validation/distance"] if value is not None] == [0.5]
