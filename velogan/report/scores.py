"""Scores in words and bars."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velogan.report.facts import Facts, is_number

LABELS = {
    "structure": "Layout kept from the input",
    "label_accuracy": "Pixels with the true label",
    "label_iou": "Overlap with the true labels (IoU)",
    "fid": "FID to real pictures",
    "kid": "KID to real pictures",
    "psnr_object_db": "PSNR of the object to the truth",
    "psnr_background_db": "PSNR of the background to the input",
    "psnr_reconstruction_db": "PSNR of the reconstruction to the input",
    "psnr_truth_db": "PSNR to the truth",
    "ssim_object": "SSIM of the object to the truth",
    "ssim_reconstruction": "SSIM of the reconstruction to the input",
    "ssim_truth": "SSIM to the truth",
    "squeeze_fid": "squeeze-FID to real pictures",
    "squeeze_kid": "squeeze-KID to real pictures",
    "lite1_fid": "lite1-FID to real pictures",
    "lite1_kid": "lite1-KID to real pictures",
    "lite2_fid": "lite2-FID to real pictures",
    "lite2_kid": "lite2-KID to real pictures",
    "sliced_wasserstein": "Sliced Wasserstein distance to real pictures",
}
CLASSIFIERS = {"squeeze": "SqueezeNet", "lite1": "EfficientNet-Lite1", "lite2": "EfficientNet-Lite2"}
SPLITS = {"validation": "held-out pictures", "train": "training pictures"}
"""The note beside a figure that is not of test pictures."""

TELLING = (
    "psnr_object_db",
    "label_accuracy",
    "psnr_truth_db",
    "kid",
    "lite2_kid",
    "lite1_kid",
    "squeeze_kid",
    "fid",
    "squeeze_fid",
    "ssim_object",
    "ssim_truth",
    "sliced_wasserstein",
)
"""The headline quotes the first of these scores that the run has, else its first score."""


SAME = "the same checkpoint as last"
"""What a protocol says if the best checkpoint is the last one."""

Column = tuple[str, str]
"""Checkpoint and weights; both are empty for two folders of pictures."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of one direction: the score to show first, and every translator's."""

    first: Mapping[str, Any]
    by_column: Mapping[Column, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Places on a track from the worst (0) to the best (1); None if the figure is unknown."""

    value: float
    nothing: float | None
    real: float | None


def label(score: Mapping[str, Any]) -> str:
    """What the score is called, for people."""
    name = str(score.get("name", "score"))
    if share := re.fullmatch(r"(\w+)_share_class_(\d+)", name):
        return f"Share classified as class {share[2]} by {CLASSIFIERS.get(share[1], share[1])}"
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
        return f"{value:.3f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def grouped(scores: Sequence[Mapping[str, Any]]) -> tuple[list[Column], list[Row]]:
    """The scores as rows, one for each direction and name, and the columns that these have, in order."""
    rows: dict[tuple[str, str], dict[Column, Mapping[str, Any]]] = {}
    for score in scores:
        column = (str(score.get("checkpoint") or ""), str(score.get("weights") or ""))
        rows.setdefault((str(score.get("direction")), str(score.get("name"))), {})[column] = score
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    return columns, [Row(first=next(iter(row.values())), by_column=row) for row in rows.values()]


def heading(column: Column) -> str:
    """What a column is called: "last ema"."""
    return " ".join(filter(None, column)) or "value"


def real_of(score: Mapping[str, Any]) -> str:
    """Which real pictures stand beside the score, in short."""
    return "unrelated pictures" if score.get("name") == "structure" else "real against real"


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

    # Doing nothing keeps the whole layout: this is the end of the track, not a result to beat.
    nothing, real = None if name == "structure" else place(score.get("baseline")), place(score.get("real"))
    return Bar(value=place(score["value"]) or 0, nothing=nothing, real=real)


def telling(facts: Facts) -> dict[str, Any] | None:
    """The score that the headline quotes."""
    ranked = [score for name in TELLING for score in facts.scores if score.get("name") == name]
    return next(iter(ranked + facts.scores), None)


def chosen(facts: Facts) -> str:
    """Which checkpoint is the best, and by what it was chosen; empty if none was."""
    best, name = facts.best, str(facts.best.get("name"))
    scored = [row["images"] for row in facts.stats if is_number(row.get(name)) and is_number(row.get("images"))]
    checkpoint = str(best.get("checkpoint"))[:20]
    images = int(checkpoint) if checkpoint.isdecimal() else None
    if images not in scored or not is_number(best.get("score")):
        return ""
    what = {
        "validation/distance": "lowest sliced Wasserstein distance",
        "validation/feature_distance": "lowest sliced Wasserstein distance of trained features",
    }.get(name, f"lowest {name}")
    among = f"{scored.index(images) + 1} of {len(scored)}"
    return f"Best: checkpoint {among}, at {images:,} images, {what} ({best['score']:.3g}) on {best.get('on')}."


def sentence(facts: Facts) -> str:
    """The result of a run in one sentence."""
    score = telling(facts)
    if score is None and facts.architecture:
        return "A search: the command “velogan train --genotype” trains what it finds."
    if score is None:
        return "Not scored yet: the command “velogan evaluate” does it."
    on = f"on {split_of(score)}" if split_of(score) else ""
    best = "best checkpoint" if score.get("checkpoint") == "best" else ""
    aside = ", ".join(filter(None, [best, on]))
    text = f"{label(score)}{f' ({aside})' if aside else ''}: {figure(score, score['value'])}"
    better = gain(score)
    if better is None:
        return text + "."
    amount = figure(score, abs(better)).replace(" %", " percentage points")
    return f"{text}, {amount} {'better' if better >= 0 else 'worse'} than doing nothing."
