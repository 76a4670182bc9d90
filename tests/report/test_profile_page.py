from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from velogan.measure.traces import breakdown
from velogan.measure.traces.reading import load_events, read_timeline
from velogan.report.profile_page import write_profile_page

from .conftest import Page

TRACE = Path(__file__).parents[1] / "measure" / "traces" / "cuda_trace.json"


@pytest.fixture
def profile() -> dict[str, Any]:
    """The profile of a trace written by hand."""
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
        "temporal": breakdown.summarize_temporal(timeline),
        "idle": breakdown.summarize_idle(timeline),
        "kernels": breakdown.summarize_kernels(timeline),
        "launches": breakdown.summarize_launches(timeline),
        "streams": breakdown.summarize_streams(timeline),
        "page": "profile.html",
        "trace": "somewhere/trace.json.gz",
    }


def _words(profile: dict[str, Any], tmp_path: Path) -> tuple[str, str]:
    """Return the page's source, and its text."""
    source = write_profile_page(profile, tmp_path / "profile.html").read_text(encoding="utf-8")
    page = Page(source)
    assert not {"src", "onclick", "onload"} & {name for _, attributes in page.tags for name in attributes}
    return source, page.text


def test_shows_values_with_their_denominators(profile: dict[str, Any], tmp_path: Path):
    source, words = _words(profile, tmp_path)
    assert not re.search(r"://|<script|[$]", source), "the page loads nothing"
    assert "Of 420 µs in 1 step." in words
    assert "launches over 50 µs 14% 1 of 7 63% 60 µs of 95 µs" in words
    assert "kernels shorter than their launch 14% 1 of 7 1.7% 4 µs of 242 µs" in words
    assert "delays over 100 µs 14% 1 of 7 52% 116 µs of 223 µs" in words
    assert "waiting for the host 2 156 µs 84%" in words
    assert "Memcpy DtoH 1 14 µs 5.8%" in words
    assert "Two or more run at once for 8 µs, 3.4% of the busy time." in words
    assert "H200 <&>" in words, "names are escaped"


def test_a_cpu_has_operators_and_no_launches(profile: dict[str, Any], tmp_path: Path):
    _, words = _words(profile | {"device": "cpu", "launches": None, "idle": None, "streams": None}, tmp_path)
    assert "Top operators" in words
    assert "delays over" not in words
