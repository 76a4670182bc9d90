"""The model card: Markdown that says what exported weights are, where they come from and what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

import velogan
from velogan.data.sets.slices import OWN_PERCENTILES
from velogan.files import counted, sha256
from velogan.interchange.export import MOST_HALF, Exported, Format
from velogan.networks.reference import Recognised, options
from velogan.translate.model import Translator
from velogan.types import Direction

_LIMITS = """A translator invents: it can add or remove structure. Do not measure or diagnose on translated pictures
without a check against truth. On pictures unlike those that it was trained on nothing is known of it."""

_UNSTATED = """not stated. Whoever published this folder has named none, so nobody is given any rights: ask first. The
rights of the pictures that it was trained on may bind, too."""

_UNSCORED = "None: these weights were not scored (`velogan evaluate RUN` does that), or `scores.json` is of others."

_CODE = {
    "onnx": 'session = onnxruntime.InferenceSession("{file}")\n(translated,) = session.run(None, {{"image": images}})',
    "torch": 'translate = torch.export.load("{file}").module(check_guards=False)\ntranslated = translate(images)',
    "hub": """import velogan  # from a clone, with the extra `hub`
from PIL import Image

model = velogan.load("hf://{name}", direction="{direction}")
model.translate(Image.open("photo.jpg")).save("translated.png")""",
}

SIGNED = "Written by velogan "
"""How the last line of every card begins."""

Files = Mapping[Direction, tuple[Translator, Exported]]
"""The generators by direction, each with the file that was written of it."""


@dataclass(frozen=True)
class CardMetadata:
    """The facts about a published model that only its author knows.

    `license`: an identifier of the hub (mit, cc-by-4.0); None: not stated. `datasets`: names of data sets on the hub.
    `picture`: a file that the card shows before and after. `name`: the repository, OWNER/NAME.
    """

    license: str | None = None
    datasets: tuple[str, ...] = ()
    picture: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.license):
            raise ValueError(
                f"license={self.license!r:.60} is no identifier of the hub: write one such as mit, cc-by-4.0 or other"
            )


def card(
    files: Files, metadata: CardMetadata, *, format: Format, left_out: list[str], example: str | None = None
) -> str:
    """The card as Markdown; that of format hub begins with the YAML that the hub reads.

    `left_out`: roles of networks that the format cannot hold; `example`: the name of a picture beside the card.
    """
    title = (metadata.name or "").rpartition("/")[2] or ", ".join(one.file.name for _, one in files.values())
    ways = " and ".join(f"{way}: {_pictures(model)}" for way, (model, _) in files.items())
    parts = [f"# {title}\n\nUnpaired image-to-image translation, {ways}.\n"]
    parts += [f"![before and after]({example})\n"] if example else []
    for way, (model, written) in files.items():
        parts += [_section(way, model, written, format)]
        if code := _CODE.get(format):
            told = code.format(file=written.file.name, name=metadata.name or "OWNER/NAME", direction=way)
            parts += [f"```python\n{told}\n```\n"]
    parts += [f"Left out, since the format has no such network: {', '.join(left_out)}.\n"] if left_out else []
    parts += [f"## Scores\n\n{_scores(files)}\n", f"## Limits\n\n{_LIMITS}\n"]
    if format == "hub":
        parts = [_header(files, metadata), *parts]
        stated = f"`{metadata.license}`, as its publisher states." if metadata.license else _UNSTATED
        parts += [f"## Licence\n\nOf these weights: {stated}\n"]
    return "\n".join([*parts, f"{SIGNED}{velogan.__version__}, PyTorch {torch.__version__}.\n"])


def _pictures(model: Translator) -> str:
    """Of which pictures it makes which; imported weights do not say it."""
    return " to ".join(model.domains) if isinstance(model.header.get("data"), Mapping) else "unknown pictures"


def _header(files: Files, metadata: CardMetadata) -> str:
    methods = sorted({str(model.header.get("method", "unknown")) for model, _ in files.values()} - {"unknown"})
    told: dict[str, Any] = {"library_name": "velogan", "license": metadata.license or "other"}
    told |= {} if metadata.license else {"license_name": "not-stated"}
    told |= {"pipeline_tag": "image-to-image"}
    told |= {"tags": ["velogan", "image-to-image", "unpaired-image-translation", *methods]}
    told |= {"datasets": list(metadata.datasets)} if metadata.datasets else {}
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---\n"


def _section(direction: Direction, model: Translator, written: Exported, format: Format) -> str:
    """The table of one file."""
    header = model.header
    network = Recognised(header, model.net.state_dict())
    programs = format in ("onnx", "torch", "web")
    sides = f"; height and width any multiples of {model.multiple}, any batch" if programs else ""
    sizes = ", ".join(f"{width}x{height}" for height, width in written.sizes)
    exact = "no difference at all" if written.max_difference == 0 else f"at most {written.max_difference:.2g}"
    rows = {
        "direction": direction,
        "network": network.words,
        "parameters": f"{network.parameters:,}",
        "size": f"{written.megabytes:.2f} MB",
        "input": f"`(B, {header.get('in_channels', 3)}, H, W)` float32 in [-1, 1]{sides}",
        "output": f"`(B, {header.get('out_channels', 3)}, H, W)` float32 in [-1, 1]",
        "pixels": f"{_pixels(header.get('input'))} in, {_pixels(header.get('output'))} out, for -1 to 1",
        "checked": f"{exact} from eager PyTorch in float32 at {sizes}, by {written.by}",
        "trained on": _data(header),
        "images seen": header.get("images_seen", "unknown"),
        "weights": f"{header.get('weights', 'unknown')}, of `{model.file.name if model.file else 'memory'}`",
        "SHA-256 of these weights": sha256(model.file) if model.file else "unknown",
        "SHA-256 of the file": sha256(written.file),
    }
    if written.half is not None:
        kept = f"float32, since results in float16 differ by more than {MOST_HALF:.2g}"
        rows["weights are stored in"] = "float16" if written.half else kept
    if format == "reference":
        rows["flags"] = f"`{' '.join(options(header))}`"
    lines = [f"## {written.file.name}", "", "| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items()), ""])


def _pixels(form: Any) -> str:
    """The pixel format of a header in words."""
    told = dict(form) if isinstance(form, Mapping) else {}
    kind, beside = told.get("dtype", "uint8"), told.get("neighbours")
    words = f"{kind} {list(told['range'])}" if told.get("range") else f"{kind}, whole range"
    more = []
    if told.get("own_scale"):
        low, high = OWN_PERCENTILES
        more.append(f"which percentiles {low:g} and {high:g} of each volume's own values become")
    if beside:
        more.append(f"channels from below to above: {counted(beside, 'slice')} below, the slice, {beside} above")
    return f"{words} ({'; '.join(more)})" if more else words


def _data(header: Mapping[str, Any]) -> str:
    data = header.get("data")
    if not isinstance(data, Mapping):
        return "unknown: the weights were imported" if header.get("method") == "imported" else "unknown"
    return f"{data.get('a')} and {data.get('b')}, {data.get('preprocess')}, {header.get('image_size')} pixels"


def _scores(files: Files) -> str:
    """The scores of exactly these weights, from `scores.json` of their run, and what they were taken on."""
    rows, protocol = [], {}
    for way, (model, _) in files.items():
        try:
            found, scored = _scores_of(way, model)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        rows += scored
        protocol = found if scored else protocol
    if not rows:
        return _UNSCORED
    head = "| direction | score | value | 95 % interval | real pictures | doing nothing | pictures | of |"
    lines = [head, "|" + "---|" * 8, *map(_row, rows), ""]
    lines += [f"- `{name}`: {what}" for name, what in {row["name"]: row.get("what") for row in rows}.items()]
    sides = [protocol.get("data", {}).get(side, {}) for side in ("a", "b")]
    on = " and ".join(f"{side.get('images')} {side.get('name')} ({side.get('split')})" for side in sides)
    return "\n".join([*lines, f"- scored on {on} by velogan {protocol.get('velogan', '')}"])


def _scores_of(way: Direction, model: Translator) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The protocol and the scores of the file of `model`, which is in a checkpoint of the scored run."""
    if model.file is None:
        return {}, []
    file = model.file.absolute().parent.parent.parent / "scores.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    digest = sha256(model.file)
    networks = told["protocol"]["networks"]
    mine = [one for one in networks if (one["direction"], one["sha256"]) == (way, digest)]
    of = [(one["direction"], one["weights"], one["checkpoint"]) for one in mine[:1]]
    rows = [row for row in told["scores"] if (row["direction"], row["weights"], row["checkpoint"]) in of]
    return told["protocol"], rows


def _row(score: Mapping[str, Any]) -> str:
    value, real, baseline = (_number(score.get(key)) for key in ("value", "real", "baseline"))
    interval = " to ".join(map(_number, score.get("interval_95") or ()))
    pictures = (str(score.get(key, "")) for key in ("images_fake", "split"))
    return f"| {' | '.join([score['direction'], score['name'], value, interval, real, baseline, *pictures])} |"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""
