"""The page that lies beside an exported model: what it is, where it comes from, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import velogan
from velogan.files import sha256
from velogan.interchange.export import Exported, Format
from velogan.networks.reference import Recognised, options
from velogan.translate.model import Translator
from velogan.types import Direction

_PROGRAMS = ("onnx", "torch")

_LIMITS = """A translator invents: it can add or remove structure. Do not measure or diagnose on translated pictures
without a check against truth. Nothing was measured on pictures for this card: `velogan evaluate RUN` does that."""


def card(
    models: Mapping[Direction, Translator], made: Sequence[Exported], *, format: Format, left_out: Sequence[str]
) -> str:
    """Markdown. `models` by direction, in the order of the files `made`."""
    parts = [f"# {', '.join(one.file.name for one in made)}", ""]
    for (direction, model), exported in zip(models.items(), made):
        parts += section(direction, model, exported, format)
    parts += [f"Left out, since the format has no such network: {', '.join(left_out)}.", ""] if left_out else []
    versions = f"velogan {velogan.__version__}, PyTorch {torch.__version__}"
    return "\n".join([*parts, _LIMITS, "", f"Written by {versions}.", ""])


def section(direction: str, model: Translator, exported: Exported, format: Format) -> list[str]:
    """What is known of one file, as lines of Markdown."""
    header = model.header
    network = Recognised(header, model.net.state_dict())
    sides = f"; height and width any multiples of {model.multiple}, any batch" if format in _PROGRAMS else ""
    sizes = ", ".join(f"{width}x{height}" for height, width in exported.sizes)
    exact = "no difference at all" if exported.max_difference == 0 else f"at most {exported.max_difference:.2g}"
    rows = {
        "direction": direction,
        "network": network.words,
        "parameters": f"{network.parameters:,}",
        "size": f"{exported.megabytes:.2f} MB",
        "input": f"`(B, {header.get('in_channels', 3)}, H, W)` float32 in [-1, 1]{sides}",
        "output": f"`(B, {header.get('out_channels', 3)}, H, W)` float32 in [-1, 1]",
        "pixels": f"{_pixels(header.get('input'))} in, {_pixels(header.get('output'))} out, for -1 to 1",
        "checked": f"{exact} from eager PyTorch in float32 at {sizes}, by {exported.by}",
        "trained on": _data(header),
        "images seen": f"{header.get('images_seen', 'unknown')}",
        "weights": f"{header.get('weights', 'unknown')}, of `{_name(model.file)}`",
        "SHA-256 of these weights": sha256(model.file) if model.file else "unknown",
        "SHA-256 of the file": sha256(exported.file),
    }
    if small := exported.int8:
        rows["in 8 bits"] = (
            f"PSNR {small.psnr:.1f} dB to float32, the mean of {small.pictures} pictures without part in its making; "
            f"{small.faster:.1f} times as fast as float32 in ONNX Runtime, with one thread where it was made"
        )
    if format == "reference":
        rows["flags"] = f"`{' '.join(options(header))}`"
    lines = [f"## {exported.file.name}", "", "| | |", "|---|---|"]
    return [*lines, *(f"| {name} | {value} |" for name, value in rows.items()), "", *_use(exported.file.name, format)]


def _use(name: str, format: Format) -> list[str]:
    code = {
        "onnx": [
            f'session = onnxruntime.InferenceSession("{name}")',
            '(translated,) = session.run(None, {"image": images})',
        ],
        "torch": [
            f'translate = torch.export.load("{name}").module(check_guards=False)',
            "translated = translate(images)",
        ],
    }
    return ["```python", *code[format], "```", ""] if format in code else []


def _pixels(form: Any) -> str:
    """A pixel format of a header in words."""
    told = dict(form) if isinstance(form, Mapping) else {}
    kind = told.get("dtype", "uint8")
    return f"{kind} {list(told['range'])}" if told.get("range") else f"{kind}, whole range"


def _data(header: Mapping[str, Any]) -> str:
    data = header.get("data")
    if not isinstance(data, Mapping):
        return "unknown: the weights were imported" if header.get("method") == "imported" else "unknown"
    return f"{data.get('a')} and {data.get('b')}, {data.get('preprocess')}, {header.get('image_size')} pixels"


def _name(file: Path | None) -> str:
    return file.name if file else "memory"
