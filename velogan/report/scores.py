"""Scores in words and bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.report.facts import Facts, is_number

LABELS = {
    "psnr_object_db": "PSNR of the object to the truth",
    "psnr_background_db": "PSNR of the background to the input",
    "psnr_truth_db": "PSNR to the truth",
    "ssim_object": "SSIM of the object to the truth",
    "ssim_background": "SSIM of the background to the input",
    "ssim_truth": "SSIM to the truth",
    "squeeze_fid": "squeeze-FID to real pictures",
    "squeeze_kid": "squeeze-KID to real pictures",
}
TELLING = ("psnr_object_db", "psnr_truth_db", "squeeze_kid", "squeeze_fid", "ssim_object", "ssim_truth")
"""Which score the headline quotes: the first of these that there is, else the first score."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Places on a track from the worst (0) to the best (1); None where the figure is unknown."""

    value: float
    nothing: float | None
    real: float | None


def label(score: Mapping[str, Any]) -> str:
    """What the score is called, for people."""
    name = str(score.get("name", "score"))
    if share := re.fullmatch(r"share_class_(\d+)", name):
        return f"Share classified as class {share[1]}"
    return LABELS.get(name) or name.removesuffix("_db").replace("_", " ")


def figure(score: Mapping[str, Any], value: Any) -> str:
    """`value` in the score's unit: "21.3 dB", "42.0 %", "0.0210"."""
    if not is_number(value):
        return "unknown"
    name = str(score.get("name", ""))
    if name.endswith("_db"):
        return f"{value:.1f} dB"
    if name.startswith("share_"):
        return f"{100 * value:.1f} %"
    if name.startswith("ssim"):
        return f"{value:.3f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def gain(score: Mapping[str, Any]) -> float | None:
    """How much better than doing nothing, in the score's unit; None where doing nothing was not scored."""
    if not is_number(score.get("ceiling")):
        return None
    difference = score["value"] - score["ceiling"]
    return -difference if score.get("better") == "lower" else difference


def bar(score: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> Bar:
    """Where value, doing nothing and real pictures lie between the worst and the best.

    `among` are scores of the same name, so that their bars have one scale.
    """
    name = str(score.get("name", ""))
    keys = ("value", "floor", "ceiling")
    known = [other[key] for other in among for key in keys if is_number(other.get(key))]
    usual = 40 if name.endswith("_db") else 1 if name.startswith(("ssim", "share")) else 0
    low, high = min(0, *known), max(usual, *known) * (1 if usual == 1 else 1.05) or 1

    def place(value: Any) -> float | None:
        if not is_number(value):
            return None
        part = (value - low) / (high - low)
        return 1 - part if score.get("better") == "lower" else part

    nothing, real = place(score.get("ceiling")), place(score.get("floor"))
    return Bar(value=place(score["value"]) or 0, nothing=nothing, real=real)


def telling(facts: Facts) -> dict[str, Any] | None:
    """The score that the headline quotes."""
    ranked = [score for name in TELLING for score in facts.scores if score.get("name") == name]
    return next(iter(ranked + facts.scores), None)


def sentence(facts: Facts) -> str:
    """The result of a run in one sentence."""
    score = telling(facts)
    if score is None:
        return "Not scored yet: the command “velogan evaluate” does it."
    text = f"{label(score)}: {figure(score, score['value'])}"
    better = gain(score)
    if better is None:
        return text + "."
    amount = figure(score, abs(better)).replace(" %", " percentage points")
    return f"{text}, {amount} {'better' if better >= 0 else 'worse'} than doing nothing."
