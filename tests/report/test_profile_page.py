from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from velogan.measure.traces.breakdown import idle, kernels, launches, streams, temporal
from velogan.measure.traces.reading import load_events, read_timeline
from velogan.report.profile_page import percent, write_profile_page

TRACE = Path(__file__).parents[1] / "measure" / "traces" / "cuda_trace.json"
EMPTY = ("meta", "link", "br", "polyline")


@pytest.fixture
def found() -> dict[str, Any]:
    """What `velogan profile` would find in the trace written by hand."""
    timeline = read_timeline(load_events(TRACE))
    return {
        "steps": 1,
        "step_ms": 0.42,
        "profiled_step_ms": 0.43,
        "image_size": 256,
        "batch_size": 1,
        "accumulate": 1,
        "engine": {"mode": "auto", "precision": "bf16", "layout": "channels_last", "kernels": "plain", "compile": "on"},
        "machine": {"device": "H200 <&>", "threads": 1, "torch": "2"},
        "device": timeline.device,
        "temporal": temporal(timeline),
        "idle": idle(timeline),
        "kernels": kernels(timeline),
        "launches": launches(timeline),
        "streams": streams(timeline),
        "page": "profile.html",
        "trace": "somewhere/trace.json.gz",
    }


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not {"src", "onclick", "onload"} & {name for name, _ in attrs}
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += data.split()


def _read(found: dict[str, Any], tmp_path: Path) -> tuple[str, str]:
    """The page's source, and its words."""
    source = write_profile_page(found, tmp_path / "profile.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(source)
    assert page.open == []
    return source, " ".join(page.words)


def test_the_page_is_whole_and_alone(found: dict[str, Any], tmp_path: Path):
    source, _ = _read(found, tmp_path)
    assert "://" not in source
    assert "<script" not in source
    assert "$" not in source


def test_figures_have_their_denominators(found: dict[str, Any], tmp_path: Path):
    _, words = _read(found, tmp_path)
    assert "Of 420 µs in 1 step. " in words
    assert "launches over 50 µs 14% 1 of 7 63% 60 µs of 95 µs" in words
    assert "kernels shorter than their launch 14% 1 of 7 1.7% 4 µs of 242 µs" in words
    assert "delays over 100 µs 14% 1 of 7 52% 116 µs of 223 µs" in words
    assert "waiting for the host 2 156 µs 84%" in words
    assert "Memcpy DtoH 1 14 µs 5.8%" in words


def test_delays_are_drawn_with_what_is_late_in_red(found: dict[str, Any], tmp_path: Path):
    source, words = _read(found, tmp_path)
    assert "Delay of kernels From launch to start. Red: over 100 µs." in words
    assert '<div class=red style="height:33.3%" title="below 200 µs: 1, 116 µs in all">' in source
    assert '<div style="height:100.0%" title="below 5 µs: 1, 4 µs in all">' in source, "a short kernel"


def test_streams_are_drawn_where_there_are_several(found: dict[str, Any], tmp_path: Path):
    _, words = _read(found, tmp_path)
    assert "stream 7" in words
    assert "stream 8" in words
    assert "Two or more run at once for 8 µs, 3.4% of the busy time." in words
    _, words = _read(found | {"streams": None}, tmp_path)
    assert "stream 7" not in words


def test_names_are_text(found: dict[str, Any], tmp_path: Path):
    _, words = _read(found, tmp_path)
    assert "implicit_convolve_sgemm<float, 3>" in words
    assert "H200 <&>" in words


def test_a_cpu_has_operators_and_no_launches(found: dict[str, Any], tmp_path: Path):
    _, words = _read(found | {"device": "cpu", "launches": None, "idle": None, "streams": None}, tmp_path)
    assert "Top operators" in words
    assert "delays over" not in words


@pytest.mark.parametrize(
    ("share", "written"), [(None, "–"), (0, "0%"), (0.0004, "<0.1%"), (0.034, "3.4%"), (0.5, "50%")]
)
def test_shares_for_people(share: float | None, written: str):
    assert percent(share) == written
