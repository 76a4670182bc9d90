"""Scores in words and bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.files import counted
from velogan.report.facts import Facts, is_number

LABELS = {
    "structure": "Layout kept",
    "label_accuracy": "Right labels",
    "label_iou": "Label IoU",
    "psnr_object_db": "Object PSNR",
    "psnr_background_db": "Background PSNR",
    "psnr_reconstruction_db": "Reconstruction PSNR",
    "psnr_truth_db": "Truth PSNR",
    "ssim_object": "Object SSIM",
    "ssim_reconstruction": "Reconstruction SSIM",
    "ssim_truth": "Truth SSIM",
    "sliced_wasserstein": "Patch distance",
}
"""Short names of figures, for tables of 80 columns; the sentence `what` of a score says what it is."""
SPLITS = {"validation": "held-out pictures", "train": "training pictures"}
"""The note beside a figure that is not of test pictures."""

TELLING = (
    "psnr_object_db",
    "label_accuracy",
    "psnr_truth_db",
    "kid",
    "lite2_kid",
    "lite1_kid",
    "fid",
    "ssim_object",
    "ssim_truth",
    "sliced_wasserstein",
)
"""Figures in the order in which a verdict names them."""


SAME = "the same checkpoint as last"
"""What a protocol says if the best checkpoint is the last one."""

Column = tuple[str, str]
"""Checkpoint and weights; both are empty for two folders of pictures."""


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure of one direction: the score to show first, and every translator's."""

    first: Mapping[str, Any]
    by_column: Mapping[Column, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Places on a track from the worst (0) to the best (1); None if the figure is unknown.

    `rival`: whether doing nothing is a result to beat, and not one end of the track.
    """

    value: float
    nothing: float | None
    real: float | None
    rival: bool = True


def label(score: Mapping[str, Any]) -> str:
    """What the score is called, for people."""
    name = str(score.get("name", "score"))
    if share := re.fullmatch(r"(\w+)_share_class_(\d+)", name):
        return f"Class {share[2]} ({share[1]})"
    if distance := re.fullmatch(r"(\w+_)?(fid|kid)", name):
        return f"{(distance[1] or '').replace('_', '-')}{distance[2].upper()}"
    return LABELS.get(name) or name.removesuffix("_db").replace("_", " ")


def figure(score: Mapping[str, Any], value: Any) -> str:
    """`value` in the score's unit: "21.3 dB", "42.0 %", "0.0210"."""
    if not is_number(value):
        return "unknown"
    name = str(score.get("name", ""))
    if name.endswith("_db"):
        return f"{value:.1f} dB"
    if name.startswith("label_") or "_share_class_" in name:
        return f"{100 * value:.1f} %"
    if name.startswith(("ssim", "structure")):
        return f"{value:z.3f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def grouped(scores: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[FigureRow]]:
    """The scores as rows, one for each direction and name, and the columns that these have, in order."""
    rows: dict[tuple[str, str], dict[Column, Mapping[str, Any]]] = {}
    for score in scores:
        column = (str(score.get("checkpoint") or ""), str(score.get("weights") or ""))
        rows.setdefault((str(score.get("direction")), str(score.get("name"))), {})[column] = score
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    return columns, [FigureRow(first=next(iter(row.values())), by_column=row) for row in rows.values()]


WEIGHTS = {"ema": "averaged", "raw": "raw"}
WEIGHTS_NOTE = (
    "averaged: a moving average of the weights, which “velogan translate” uses; raw: the weights of the last step."
)


def heading(column: Column) -> str:
    """What a column is called: "last averaged"."""
    checkpoint, weights = column
    return " ".join(filter(None, (checkpoint, WEIGHTS.get(weights, weights)))) or "value"


def split_of(score: Mapping[str, Any]) -> str:
    """Which pictures were scored, in short; empty for test pictures."""
    return SPLITS.get(str(score.get("split")), "")


def deviation(score: Mapping[str, Any]) -> float | None:
    """Half the width of the score's 95 % interval; None if that is unknown."""
    span = score.get("interval_95")
    if isinstance(span, list | tuple) and len(span) == 2 and all(map(is_number, span)):
        return (span[1] - span[0]) / 2
    return None


def between(score: Mapping[str, Any]) -> str:
    """The score's 95 % interval in its unit: "20.9 to 21.7 dB"; empty if it is unknown."""
    if deviation(score) is None:
        return ""
    low, high = (figure(score, bound) for bound in score["interval_95"])
    value, _, unit = low.partition(" ")
    return f"{value if high.endswith(f' {unit}') else low} to {high}"


def gain(score: Mapping[str, Any]) -> float | None:
    """How much better than doing nothing, in the score's unit; None if doing nothing was not scored."""
    if not is_number(score.get("baseline")):
        return None
    difference = score["value"] - score["baseline"]
    return -difference if score.get("better") == "lower" else difference


def bar(score: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> Bar:
    """Where value, doing nothing and real pictures lie between the worst and the best.

    `among` are scores of the same name, so that their bars have one scale.
    """
    name = str(score.get("name", ""))
    keys = ("value", "real", "baseline")
    known = [other[key] for other in among for key in keys if is_number(other.get(key))]
    whole = name.startswith(("ssim", "label", "structure")) or "_share_class_" in name
    usual = 40 if name.endswith("_db") else 1 if whole else 0
    low, high = min(0, *known), max(usual, *known) * (1 if usual == 1 else 1.05) or 1

    def place(value: Any) -> float | None:
        if not is_number(value):
            return None
        part = (value - low) / (high - low)
        return 1 - part if score.get("better") == "lower" else part

    nothing, real = place(score.get("baseline")), place(score.get("real"))
    # doing nothing keeps the whole layout: the end of the track, not a result to beat
    rival = nothing is not None and name != "structure"
    return Bar(value=place(score["value"]) or 0, nothing=nothing, real=real, rival=rival)


def chosen(facts: Facts) -> str:
    """Which checkpoint is the best, and by what it was chosen; empty if none was."""
    best, name = facts.best, str(facts.best.get("name"))
    scored = [row["images"] for row in facts.stats if is_number(row.get(name)) and is_number(row.get("images"))]
    checkpoint = str(best.get("checkpoint"))[:20]
    images = int(checkpoint) if checkpoint.isdecimal() else None
    if images is None or images not in scored or not is_number(best.get("score")):
        return ""
    what = {
        "validation/distance": "lowest sliced Wasserstein distance",
        "validation/feature_distance": "lowest sliced Wasserstein distance of trained features",
    }.get(name, f"lowest {name}")
    among = f"{scored.index(images) + 1} of {len(scored)}"
    return f"Best: checkpoint {among}, at {counted(images, 'image')}, {what} ({best['score']:.3g}) on {best.get('on')}."
