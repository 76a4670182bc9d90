"""The model card: Markdown that says what exported weights are, where they come from and what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import yaml

from velogan.data.pictures.values import full_range
from velogan.data.sets.slices import OWN_PERCENTILES
from velogan.files import __version__, pluralize, sha256
from velogan.interchange.export import ExportedFile, Format
from velogan.networks.reference import RecognisedNetwork, reference_flags
from velogan.translate.model import Translator
from velogan.types import Direction

_UNSTATED = """not stated. The publisher of this folder has named no licence, so no rights are granted: ask first. The
rights to the training pictures may apply, too."""

_UNSCORED = "None: these weights were not scored (run `velogan evaluate RUN`), or `scores.json` belongs to others."

_LOAD_FROM_HUB = """
```python
import velogan  # from a clone, with the extra `hub`
from PIL import Image

model = velogan.load("hf://{name}", direction="{direction}")
model.translate(Image.open("photo.jpg")).save("translated.png")
```
"""
_RUN_ONNX = 'session = onnxruntime.InferenceSession("{}")\n(translated,) = session.run(None, {{"image": images}})'
_RUN_TORCH = """translate = torch.export.load("{}").module(check_guards=False)
translated = translate(torch.from_numpy(images)).numpy()"""

SIGNATURE = "Written by velogan "
"""The first words of the last line of every card, by which velogan recognises cards that it wrote."""

Files = Mapping[Direction, tuple[Translator, ExportedFile]]
"""The generators by direction, each with its exported file."""


@dataclass(frozen=True)
class CardMetadata:
    """The facts about a published model that only its author knows.

    `license`: an identifier of the hub (mit, cc-by-4.0); None: not stated. `datasets`: names of data sets on the hub.
    `picture`: file of a picture to show before and after translation. `name`: the repository, OWNER/NAME.
    """

    license: str | None = None
    datasets: tuple[str, ...] = ()
    picture: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.license):
            raise ValueError(
                f"license={self.license!r:.60} is not an identifier of the hub: use one such as mit, cc-by-4.0 or other"
            )


def render_card(
    files: Files, metadata: CardMetadata, *, format: Format, left_out: list[str], example: str | None = None
) -> str:
    """Return the card as Markdown, from the template card.md; for format hub it starts with the YAML for the hub.

    left_out: roles of networks that the format does not support
    example: the name of a picture beside the card
    """
    name = metadata.name or ""
    licence = f"`{metadata.license}`, as its publisher states." if metadata.license else _UNSTATED
    text = _read_template("card.md").format(
        title=name.rpartition("/")[2] or ", ".join(exported.file.name for _, exported in files.values()),
        directions=" and ".join(
            f"{direction}: {' to '.join(model.domains) if model.header.get('data') else 'unknown pictures'}"
            for direction, (model, _) in files.items()
        ),
        example=f"\n![before and after]({example})\n" if example else "",
        files="".join(_describe_file(direction, *file, name, format) for direction, file in files.items()),
        left_out=f"\nLeft out, since the format has no such network: {', '.join(left_out)}.\n" if left_out else "",
        scores=_format_scores(files),
        licence=f"\n## Licence\n\nOf these weights: {licence}\n" if format == "hub" else "",
    )
    header = _yaml_header(files, metadata) if format == "hub" else ""
    return f"{header}{text}{SIGNATURE}{__version__}, PyTorch {torch.__version__}.\n"


def _yaml_header(files: Files, metadata: CardMetadata) -> str:
    methods = sorted({str(model.header.get("method", "unknown")) for model, _ in files.values()} - {"unknown"})
    fields = {
        "library_name": "velogan",
        "license": metadata.license or "other",
        "license_name": None if metadata.license else "not-stated",
        "pipeline_tag": "image-to-image",
        "tags": ["velogan", "image-to-image", "unpaired-image-translation", *methods],
        "datasets": list(metadata.datasets),
    }
    known_fields = {name: value for name, value in fields.items() if value}
    return f"---\n{yaml.safe_dump(known_fields, sort_keys=False, allow_unicode=True)}---\n"


def _describe_file(direction: Direction, model: Translator, exported: ExportedFile, name: str, format: Format) -> str:
    """Return the section of one file: a table of its properties and code that runs it. `name`: OWNER/NAME, or empty."""
    header = model.header
    network = RecognisedNetwork(header, model.net.state_dict())
    difference = f"at most {exported.max_difference:.2g}" if exported.max_difference else "no difference at all"
    sizes = ", ".join(f"{width}x{height}" for height, width in exported.sizes)
    rows = {
        "direction": direction,
        "network": network.description,
        "parameters": f"{network.num_parameters:,}",
        "size": f"{exported.megabytes:.2f} MB",
        "input": f"`(B, {header.get('in_channels', 3)}, H, W)` float32 in [-1, 1]; H and W are multiples of "
        f"{model.multiple}",
        "output": f"`(B, {header.get('out_channels', 3)}, H, W)` float32 in [-1, 1]",
        "pixels": f"{_pixel_text(header.get('input'))} in, {_pixel_text(header.get('output'))} out, for -1 to 1",
        "checked": f"{difference} from eager PyTorch in float32 at {sizes}, by {exported.runtime}",
        "trained on": _describe_data(header),
        "images seen": header.get("images_seen", "unknown"),
        "weights": f"{header.get('weights', 'unknown')}, of `{model.file.name if model.file else 'memory'}`",
        "SHA-256": sha256(exported.file),
    }
    if exported.half is not None:
        rows["weights are stored in"] = "float16" if exported.half else "float32: float16 differs by too much"
    if format == "reference":
        rows["flags"] = f"`{' '.join(reference_flags(header))}`"
    lines = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    code = _example_code(model, exported.file, format)
    if format == "hub":
        code = _LOAD_FROM_HUB.format(name=name or "OWNER/NAME", direction=direction)
    return f"\n## {exported.file.name}\n\n| | |\n|---|---|\n{lines}{code}"


def _example_code(model: Translator, file: Path, format: Format) -> str:
    """Return Python code that translates a photo, or an array if no photo fits the model; empty for some formats."""
    if format not in ("onnx", "torch"):
        return ""
    mode = {1: "L", 3: "RGB"}.get(model.input.channels) if model.input.dtype == "uint8" else None
    is_picture = model.output.dtype == "uint8" and model.output.channels in (1, 3)
    write = (
        'Image.fromarray(pixels.squeeze()).save("translated.png")'
        if is_picture
        else 'np.save("translated.npy", pixels)'
    )
    (low, high), (low_out, high_out) = (fmt.range or full_range(fmt.dtype) for fmt in (model.input, model.output))
    return _read_template("card_code.md").format(
        library="onnxruntime" if format == "onnx" else "torch",
        read=f'np.atleast_3d(Image.open("photo.jpg").convert("{mode}"))'
        if mode
        else 'np.load("image.npy")  # (H, W, C)',
        multiple=model.multiple,
        low=low,
        half=(high - low) / 2,
        run=(_RUN_ONNX if format == "onnx" else _RUN_TORCH).format(file.name),
        low_out=low_out,
        half_out=(high_out - low_out) / 2,
        rounded="" if model.output.dtype == "float32" else f'.round().astype("{model.output.dtype}")',
        write=write,
    )


def _read_template(name: str) -> str:
    return resources.files("velogan.interchange").joinpath(name).read_text(encoding="utf-8")


def _pixel_text(pixel_format: Any) -> str:
    """Return the pixel format of a header in words."""
    fields = dict(pixel_format) if isinstance(pixel_format, Mapping) else {}
    kind, neighbours = fields.get("dtype", "uint8"), fields.get("neighbours")
    description = f"{kind} {list(fields['range'])}" if fields.get("range") else f"{kind}, whole range"
    details = []
    if fields.get("own_scale"):
        low, high = OWN_PERCENTILES
        details.append(f"which percentiles {low:g} and {high:g} of each volume's own values become")
    if neighbours:
        details.append(
            f"channels from below to above: {pluralize(neighbours, 'slice')} below, the slice, {neighbours} above"
        )
    return f"{description} ({'; '.join(details)})" if details else description


def _describe_data(header: Mapping[str, Any]) -> str:
    data = header.get("data")
    if not isinstance(data, Mapping):
        return "unknown: the weights were imported" if header.get("method") == "imported" else "unknown"
    return f"{data.get('a')} and {data.get('b')}, {data.get('preprocess')}, {header.get('image_size')} pixels"


def _format_scores(files: Files) -> str:
    """Return Markdown with the scores of exactly these weights, from their run's `scores.json`, and the image sets."""
    rows, protocol = [], {}
    for direction, (model, _) in files.items():
        try:
            model_protocol, model_rows = _find_scores(direction, model)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        rows += model_rows
        protocol = model_protocol if model_rows else protocol
    if not rows:
        return _UNSCORED
    header = "| direction | score | value | 95 % interval | real pictures | unchanged input | pictures | of |"
    lines = [header, "|" + "---|" * 8, *map(_table_row, rows), ""]
    descriptions = {row["name"]: row.get("description") for row in rows}
    lines += [f"- `{name}`: {description}" for name, description in descriptions.items()]
    domains = [protocol.get("data", {}).get(letter, {}) for letter in ("a", "b")]
    images = " and ".join(f"{domain.get('images')} {domain.get('name')} ({domain.get('split')})" for domain in domains)
    return "\n".join([*lines, f"- scored on {images} by velogan {protocol.get('velogan', '')}"])


def _find_scores(direction: Direction, model: Translator) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the protocol and the scores of the weights of `model`, from the scores.json of its run; empty if none."""
    if model.file is None:
        return {}, []
    file = model.file.absolute().parent.parent.parent / "scores.json"
    scores = json.loads(file.read_text(encoding="utf-8"))
    nets, digest = scores["protocol"]["networks"], sha256(model.file)
    keys = ("direction", "weights", "checkpoint")
    matches = [[net[key] for key in keys] for net in nets if (net["direction"], net["sha256"]) == (direction, digest)]
    return scores["protocol"], [row for row in scores["scores"] if [row[key] for key in keys] in matches[:1]]


def _table_row(score: Mapping[str, Any]) -> str:
    value, real, baseline = (_format_number(score.get(key)) for key in ("value", "real", "baseline"))
    interval = " to ".join(map(_format_number, score.get("interval_95") or ()))
    pictures = (str(score.get(key, "")) for key in ("images_fake", "split"))
    return f"| {' | '.join([score['direction'], score['name'], value, interval, real, baseline, *pictures])} |"


def _format_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else ""
