"""Export of a run or a weights file: one direction as a file, or a folder with all directions, and a model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from velogan.files import __version__, atomic_write, did_you_mean, looks_like_file_name, write_text
from velogan.interchange.card import SIGNATURE, CardMetadata, Files, render_card
from velogan.interchange.export import SUFFIXES, Format, export, save_reference
from velogan.interchange.hub import CONFIG, EXAMPLE, MANIFEST, PAGE, WEIGHTS
from velogan.interchange.site import check_for_browsers, fetch_runtime, write_site
from velogan.store.checkpoint import write_manifest
from velogan.translate.memory import translate_images
from velogan.translate.model import CheckpointChoice, Translator, Weights, load_translator
from velogan.translate.weights import load_networks
from velogan.types import GENERATOR_FILES, Direction

_EXAMPLE_SIDE = 512  # maximum height and width in pixels
_EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@dataclass(frozen=True)
class ExportOptions:
    """The options of `write_export`.

    direction: the only direction to export; None: a2b for a single file, all for a folder
    weights, checkpoint: see `load_translator`
    metadata: fields of the hub's model card; its licence also goes into an ONNX file
    onnxruntime: file of the package onnxruntime-web for format web; None: cached or downloaded
    """

    direction: Direction | None = None
    weights: Weights | None = None
    checkpoint: CheckpointChoice | None = None
    metadata: CardMetadata | None = None
    onnxruntime: Path | None = None


def write_export(path: Path, out: Path, *, format: Format, options: ExportOptions = ExportOptions()) -> dict[str, Any]:
    """Export the generators of `path`, a run or a weights file, and check the written files against PyTorch.

    If `out` has the suffix of the format, write one file, else a folder with a file per direction. For format reference
    the folder resembles `checkpoints/NAME` of the reference implementation, with the discriminators that it supports;
    for format hub it can be uploaded, and is also a checkpoint of velogan; for format web it is a static web site.

    Returns `file`, `max_difference` from PyTorch for values in [-1, 1], `megabytes`, `card` (the file of the card), and
    for format web `half`: whether weights are stored in float16. Raises ValueError if the options do not fit or `out`
    would overwrite other files.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format={format}: choose {', '.join(SUFFIXES)}{did_you_mean(format, SUFFIXES)}")
    is_single = out.suffix == SUFFIXES[format] and format not in ("hub", "web")  # these two are folders
    card_file = out.with_name(f"{out.name}.md") if is_single else out / PAGE
    _check_options(format, options)
    _check_output(out, card_file, format=format, is_single=is_single)
    load_options: Any = {"weights": options.weights, "checkpoint": options.checkpoint}
    if is_single or options.direction:
        model = load_translator(path, direction=options.direction, **load_options)
        models: dict[Direction, Translator] = {model.direction: model}
    else:
        models = load_translators(path, **load_options)
    runtime = b""
    if format == "web":
        for model in models.values():
            check_for_browsers(model)
        runtime = fetch_runtime(options.onnxruntime)
    if format == "hub":  # the manifest first: without it an incomplete folder is no checkpoint
        for name in (MANIFEST, EXAMPLE, *WEIGHTS):
            (out / name).unlink(missing_ok=True)
    metadata = options.metadata or CardMetadata()
    files = {}
    for direction, model in models.items():
        stem = _file_stem(direction, format, is_only=len(models) == 1)
        file = out if is_single else out / f"{stem}{SUFFIXES[format]}"
        files[direction] = model, export(model, file, format=format, license=metadata.license)
    left_out = _write_discriminators(models, out) if format == "reference" and len(models) > 1 else []
    example = EXAMPLE if metadata.picture else None
    if metadata.picture:
        _write_example(next(iter(models.values())), metadata.picture, out / EXAMPLE)
    write_text(card_file, render_card(files, metadata, format=format, left_out=left_out, example=example))
    if format == "hub":
        _write_manifests(out, files)
    if format == "web":
        write_site(out, path.stem if path.is_file() else path.resolve().name, files, runtime)
    exported = [file for _, file in files.values()]
    result: dict[str, Any] = {
        "file": str(out),
        "max_difference": max(file.max_difference for file in exported),
        "megabytes": round(sum(file.megabytes for file in exported), 3),
        "card": str(card_file),
    }
    if format == "web":
        result["half"] = all(file.half for file in exported)
    return result


def _check_options(format: Format, options: ExportOptions) -> None:
    """Raise ValueError if an option is not supported by the format."""
    metadata = options.metadata
    if metadata and format != "hub" and (format != "onnx" or metadata.datasets or metadata.picture):
        raise ValueError(
            f"format={format}: data sets and a picture require format=hub, a licence requires format=hub or onnx"
        )
    if options.onnxruntime and format != "web":
        raise ValueError(f"onnxruntime={options.onnxruntime} requires format=web, not {format}: remove it")


def _check_output(out: Path, card_file: Path, *, format: Format, is_single: bool) -> None:
    """Raise ValueError if `out` is of the wrong kind or would overwrite files that are not velogan's exports."""
    if looks_like_file_name(out) and not is_single:
        file = "" if format in ("hub", "web") else f" or a file that ends in {SUFFIXES[format]}"
        raise ValueError(f"{out} looks like a file name, which does not fit format={format}: choose a folder{file}")
    if out.is_file() is not is_single and out.exists():
        raise ValueError(f"{out} is an existing {'folder' if is_single else 'file'}: choose another path")
    if card_file.is_file() and SIGNATURE not in card_file.read_text("utf-8", "replace"):
        raise ValueError(f"{card_file} exists and would be overwritten by the model card: choose another path")
    if is_single and out.is_file() and not card_file.is_file():
        raise ValueError(f"{out} exists and has no model card of velogan: choose another path")
    is_run = any((out / name).exists() for name in ("config.yaml", "state.safetensors"))
    is_checkpoint = (out / MANIFEST).exists() and not (out / CONFIG).exists()
    if format in ("hub", "web") and (is_run or is_checkpoint):
        raise ValueError(f"{out} is a run or one of its checkpoints and would be overwritten: choose another folder")


def load_translators(path: Path, **options: Any) -> dict[Direction, Translator]:
    """Load the generators of a folder or file by direction; `options` are passed to `load_translator`."""
    roles = () if path.is_file() else load_networks(path)
    directions: list[Direction | None] = [direction for direction, role in GENERATOR_FILES.items() if role in roles]
    models = [load_translator(path, direction=direction, **options) for direction in directions or [None]]
    return {model.direction: model for model in models}


def _file_stem(direction: Direction, format: Format, *, is_only: bool) -> str:
    if format == "reference":
        return "latest_net_G" if is_only else f"latest_net_{GENERATOR_FILES[direction]}"
    return GENERATOR_FILES[direction] if format == "hub" else direction


def _write_discriminators(models: Mapping[Direction, Translator], out: Path) -> list[str]:
    """Write the discriminators of the checkpoint; return the roles that the reference does not support."""
    left_out = []
    file = next(iter(models.values())).file
    assert file is not None
    for role, network in load_networks(file.parent).items():
        if not role.startswith("G_"):
            try:
                save_reference(network, out / f"latest_net_{role}.pth")
            except ValueError:
                left_out.append(role)
    return left_out


def _write_manifests(out: Path, files: Files) -> None:
    """Write the hub's `config.json`, then the manifest that makes the folder a checkpoint."""
    networks = {
        direction: {"file": exported.file.name, **model.header} for direction, (model, exported) in files.items()
    }
    config = {"library_name": "velogan", "velogan": __version__, "model_type": "velogan", "networks": networks}
    write_text(out / CONFIG, json.dumps(config, indent=1))
    write_manifest(out, images=max(int(model.header.get("images_seen") or 0) for model, _ in files.values()))


def _write_example(model: Translator, picture: Path, file: Path) -> None:
    """Write the picture and its translation side by side as PNG."""
    try:
        with Image.open(picture) as opened:
            if opened.mode not in _EIGHT_BIT_MODES:
                raise ValueError(f"its pixel format is {opened.mode}")
            before = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"picture={picture} cannot be read: {error}; give a picture with 8 bits per channel") from None
    before.thumbnail((_EXAMPLE_SIDE, _EXAMPLE_SIDE))
    canvas = Image.new("RGB", (2 * before.width, before.height))
    canvas.paste(before, (0, 0))
    canvas.paste(translate_images(model, before).convert("RGB"), (before.width, 0))
    with atomic_write(file) as tmp_path:
        canvas.save(tmp_path, format="PNG")
