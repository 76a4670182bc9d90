"""Format scores for tables and bars: names, units, intervals, positions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.files import pluralize
from velogan.report.run_data import RunData, is_number

LABELS = {
    "structure": "Layout kept",
    "retrieval": "Input retrieved",
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
"""Short names of metrics, for tables of 80 characters a line; the field `description` of a score explains it."""
SPLITS = {"validation": "held-out images", "train": "training images"}
"""Notes on scores, by split; scores of test images need none."""

BY_IMPORTANCE = (
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
"""Metrics in the order in which a verdict names them."""

INPUT_METRICS = ("structure", "retrieval")
"""Metrics of how well the input is preserved: the unchanged input is their upper limit, not a result to beat."""

SCORE = "validation/distance"
"""Name, in the log and in best.json, of the score that chooses the best checkpoint; lower is better."""

FEATURE_SCORE = "validation/feature_distance"
"""Name of the score that chooses the best checkpoint if discriminators use pretrained features; lower is better, but it
is not comparable with `SCORE`."""

IDENTITY_SCORE = "validation/unchanged_input"
"""Name of the score (`SCORE` or `FEATURE_SCORE`) of the unchanged inputs; `_a2b` or `_b2a` may be appended."""

MIN_RETRIEVAL = 0.8
"""Translations with a lower `retrieval` are unrelated to their inputs; chance is 0.5 (benchmarks/RECORDS.md)."""

SAME_AS_LAST = "the same checkpoint as last"
"""The value of `best` in a protocol if the best checkpoint is the last one."""

Column = tuple[str, str]
"""Checkpoint and weights; both are empty if two folders of pictures were compared."""


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of one direction: the score to show first, and all scores by checkpoint and weights."""

    first: Mapping[str, Any]
    by_column: Mapping[Column, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Positions on a bar from the worst (0) to the best (1); None if the value is unknown.

    value: position of the translations
    baseline: position of the unchanged input
    real: position of real images
    starts_at_baseline: whether to draw from the unchanged input; False if its score is unknown or the best possible
    """

    value: float
    baseline: float | None
    real: float | None
    starts_at_baseline: bool = True


def display_name(score: Mapping[str, Any]) -> str:
    """Return the readable name of a score."""
    name = str(score.get("name", "score"))
    if share := re.fullmatch(r"(\w+)_share_class_(\d+)", name):
        return f"{score.get('class') or f'Class {share[2]}'} ({share[1]})"
    if distance := re.fullmatch(r"(\w+_)?(fid|kid)", name):
        return f"{(distance[1] or '').replace('_', '-')}{distance[2].upper()}"
    return LABELS.get(name) or name.removesuffix("_db").replace("_", " ")


def format_value(score: Mapping[str, Any], value: Any) -> str:
    """Format `value` in the unit of `score`: "21.3 dB", "42.0 %", "0.0210"."""
    if not is_number(value):
        return "unknown"
    name = str(score.get("name", ""))
    if name.endswith("_db"):
        return f"{value:.1f} dB"
    if name.startswith(("label_", "retrieval")) or "_share_class_" in name:
        return f"{100 * value:.1f} %"
    if name.startswith(("ssim", "structure")):
        return f"{value:z.3f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def group_scores(scores: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[MetricRow]]:
    """Return the columns of a table of `scores`, in order, and its rows: one for each direction and metric."""
    rows: dict[tuple[str, str], dict[Column, Mapping[str, Any]]] = {}
    for score in scores:
        column = (str(score.get("checkpoint") or ""), str(score.get("weights") or ""))
        rows.setdefault((str(score.get("direction")), str(score.get("name"))), {})[column] = score
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    return columns, [MetricRow(first=next(iter(row.values())), by_column=row) for row in rows.values()]


WEIGHTS = {"ema": "averaged", "raw": "raw"}
WEIGHTS_NOTE = (
    "averaged: a moving average of the weights, which “velogan translate” uses; raw: the weights of the last step."
)


def column_title(column: Column) -> str:
    """Return the title of a column: "last averaged"."""
    checkpoint, weights = column
    return " ".join(filter(None, (checkpoint, WEIGHTS.get(weights, weights)))) or "value"


def split_note(score: Mapping[str, Any]) -> str:
    """Return a short note on which images were scored; empty for test images."""
    return SPLITS.get(str(score.get("split")), "")


def half_interval(score: Mapping[str, Any]) -> float | None:
    """Return half the width of the score's 95 % interval; None if it is unknown."""
    span = score.get("interval_95")
    if isinstance(span, list | tuple) and len(span) == 2 and all(map(is_number, span)):
        return (span[1] - span[0]) / 2
    return None


def format_interval(score: Mapping[str, Any]) -> str:
    """Return the score's 95 % interval in its unit: "20.9 to 21.7 dB"; empty if it is unknown."""
    if half_interval(score) is None:
        return ""
    low, high = (format_value(score, bound) for bound in score["interval_95"])
    value, _, unit = low.partition(" ")
    return f"{value if high.endswith(f' {unit}') else low} to {high}"


def improvement(score: Mapping[str, Any]) -> float | None:
    """Return how much better the score is than the unchanged input's; negative if worse, None if that is unknown."""
    if not is_number(score.get("baseline")):
        return None
    difference = score["value"] - score["baseline"]
    return -difference if score.get("better") == "lower" else difference


def place_on_bar(score: Mapping[str, Any], scores: Sequence[Mapping[str, Any]]) -> Bar:
    """Return where the translations, the unchanged input and real images lie between the worst and the best.

    `scores`: all scores of this metric; their bars have one scale.
    """
    name = str(score.get("name", ""))
    keys = ("value", "real", "baseline")
    known = [other[key] for other in scores for key in keys if is_number(other.get(key))]
    is_share = name.startswith(("ssim", "label", *INPUT_METRICS)) or "_share_class_" in name
    usual_best = 40 if name.endswith("_db") else 1 if is_share else 0
    low, high = min(0, *known), max(usual_best, *known) * (1 if usual_best == 1 else 1.05) or 1

    def position(value: Any) -> float | None:
        if not is_number(value):
            return None
        fraction = (value - low) / (high - low)
        return 1 - fraction if score.get("better") == "lower" else fraction

    baseline = position(score.get("baseline"))
    value, real = position(score["value"]) or 0, position(score.get("real"))
    starts_at_baseline = baseline is not None and name not in INPUT_METRICS
    return Bar(value=value, baseline=baseline, real=real, starts_at_baseline=starts_at_baseline)


def describe_best_checkpoint(run: RunData) -> str:
    """Return a sentence on the best checkpoint and the score that chose it; empty if unknown."""
    best, name = run.best, str(run.best.get("name"))
    scored = [row["images"] for row in run.stats if is_number(row.get(name)) and is_number(row.get("images"))]
    checkpoint = str(best.get("checkpoint"))[:20]
    images = int(checkpoint) if checkpoint.isdecimal() else None
    if images is None or images not in scored or not is_number(best.get("score")):
        return ""
    metric = {
        "validation/distance": "lowest sliced Wasserstein distance",
        "validation/feature_distance": "lowest sliced Wasserstein distance of trained features",
    }.get(name, f"lowest {name}")
    rank = f"{scored.index(images) + 1} of {len(scored)}"
    return (
        f"Best: checkpoint {rank}, at {pluralize(images, 'image')}, {metric} ({best['score']:.3g}) on {best.get('on')}."
    )
