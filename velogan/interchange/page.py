"""The page of a published model, in the hub's form: a header of YAML that the hub reads, then Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import yaml

import velogan
from velogan.files import sha256
from velogan.interchange.card import section
from velogan.interchange.export import Exported
from velogan.translate.model import Translator
from velogan.types import Direction

_LIMITS = """A translator invents: it can add or remove structure. Do not measure or diagnose on translated pictures
without a check against truth. On pictures unlike those that it was trained on nothing is known of it."""

_UNSTATED = """Not stated. Whoever published this folder has named none, so nobody is given any rights: ask first. The
rights of the pictures that it was trained on may bind, too."""

_UNSCORED = "None: these weights were not scored, or `scores.json` of their run is of others."

_SHOWN = ("velogan", "pictures", "limit", "seed", "real", "baseline", "features")
"""What the page says of the protocol; the rest has folders of the machine in it, or is long."""


def page(
    models: Mapping[Direction, Translator],
    made: Sequence[Exported],
    *,
    license: str | None,
    datasets: Sequence[str],
    name: str | None,
    example: str | None,
) -> str:
    """Markdown. `models` by direction, in the order of the files `made`; `example`: a picture beside the page."""
    title = name.rpartition("/")[2] if name else "A translator of pictures"
    parts = [_header(models, license, datasets), f"# {title}", "", _summary(models), ""]
    parts += [f"![before and after]({example})", ""] if example else []
    parts += _use(models, name)
    for (way, model), exported in zip(models.items(), made):
        parts += section(way, model, exported, "hub")
    parts += ["## Scores", "", *_scores(models)]
    parts += ["## Limits", "", _LIMITS, ""]
    stated = f"`{license}`, as its publisher states." if license else _UNSTATED
    parts += ["## Licence", "", f"Of these weights: {stated[0].lower() + stated[1:]}", ""]
    return "\n".join([*parts, f"Written by velogan {velogan.__version__}, PyTorch {torch.__version__}.", ""])


def _header(models: Mapping[Direction, Translator], license: str | None, datasets: Sequence[str]) -> str:
    methods = sorted({str(model.header.get("method", "unknown")) for model in models.values()} - {"unknown"})
    told: dict[str, Any] = {
        "library_name": "velogan",
        "license": license or "other",
        "pipeline_tag": "image-to-image",
        "tags": ["velogan", "image-to-image", "unpaired-image-translation", *methods],
    }
    if not license:
        told["license_name"] = "not-stated"
    if datasets:
        told["datasets"] = list(datasets)
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---\n"


def _summary(models: Mapping[Direction, Translator]) -> str:
    ways = " and ".join(f"{way}: {_words(way, model)}" for way, model in models.items())
    return f"Unpaired image-to-image translation, {ways}."


def _words(way: Direction, model: Translator) -> str:
    """The direction by the names of its data."""
    data = model.header.get("data")
    if not isinstance(data, Mapping):
        return "unknown pictures"
    source, target = (data.get("a"), data.get("b")) if way == "a2b" else (data.get("b"), data.get("a"))
    return f"{source} to {target}"


def _use(models: Mapping[Direction, Translator], name: str | None) -> list[str]:
    ways = list(models)
    direction = f', direction="{ways[0]}"' if ways == ["b2a"] else ""
    return [
        "```python",
        "import velogan  # from a clone, with the extra `hub`",
        "from PIL import Image",
        "",
        f'model = velogan.load("hf://{name or "OWNER/NAME"}"{direction})',
        'model.translate(Image.open("photo.jpg")).save("translated.png")',
        "```",
        "",
    ]


def _scores(models: Mapping[Direction, Translator]) -> list[str]:
    """The scores that were taken of exactly these weights, with what they were taken on."""
    rows, protocol = [], {}
    for way, model in models.items():
        found, scored = _scores_of(way, model)
        rows += scored
        protocol = found or protocol
    if not rows:
        return [_UNSCORED, ""]
    head = "| direction | score | value | 95 % interval | real pictures | doing nothing | pictures | of |"
    lines = [head, "|" + "---|" * 8, *map(_row, rows)]
    meant: dict[str, str] = {}
    for row in rows:
        told = f"- `{row['name']}` ({row.get('better')} is better), here of {row['direction']}: {row.get('what')}"
        meant.setdefault(row["name"], told)
    lines += ["", *meant.values(), "", "Protocol:", ""]
    lines += [f"- {key}: {protocol[key]}" for key in _SHOWN if protocol.get(key) not in (None, [])]
    computed = sorted({str(one.get("computed_in")) for one in protocol["networks"]})
    return [*lines, f"- computed in: {', '.join(computed)}", f"- scored on: {_scored_on(protocol)}", ""]


def _row(score: Mapping[str, Any]) -> str:
    """A score as a row of the table."""
    value, real, baseline = (_number(score.get(key)) for key in ("value", "real", "baseline"))
    interval = " to ".join(map(_number, score.get("interval_95") or ()))
    pictures = (str(score.get(key, "")) for key in ("images_fake", "split"))
    return f"| {' | '.join([score['direction'], score['name'], value, interval, real, baseline, *pictures])} |"


def _scores_of(way: Direction, model: Translator) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The protocol and the scores of the file of `model`, where its run has any."""
    if model.file is None:
        return {}, []
    file = model.file.absolute().parent.parent.parent / "scores.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        protocol, digest = told["protocol"], sha256(model.file)
        mine = [one for one in protocol["networks"] if one["direction"] == way and one["sha256"] == digest]
        keys = {(one["weights"], one["checkpoint"]) for one in mine[:1]}
        rows = [
            row for row in told["scores"] if row["direction"] == way and (row["weights"], row["checkpoint"]) in keys
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []
    return protocol, rows


def _scored_on(protocol: Mapping[str, Any]) -> str:
    data = protocol.get("data", {})
    sides = [data.get(side, {}) for side in ("a", "b")]
    return " and ".join(f"{side.get('images')} {side.get('name')} ({side.get('split')})" for side in sides)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""
