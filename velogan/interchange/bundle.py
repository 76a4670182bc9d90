"""The writer of `velogan export`: one direction as a file, or a folder of all that there are, with a card beside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

import velogan
from velogan.files import names_a_file, nearest, replacing, write_text
from velogan.interchange.card import SIGNED, CardMetadata, Files, card
from velogan.interchange.export import SUFFIXES, Format, export, save_reference
from velogan.interchange.hub import CONFIG, EXAMPLE, MANIFEST, PAGE, WEIGHTS
from velogan.interchange.site import check_for_browsers, fetch_runtime, write_site
from velogan.store.checkpoint import write_manifest
from velogan.translate.memory import translate_images
from velogan.translate.model import CheckpointChoice, Translator, Weights, load_translator
from velogan.translate.weights import load_networks
from velogan.types import GENERATOR_FILES, Direction

_EXAMPLE_SIDE = 512
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def write_export(
    path: Path,
    out: Path,
    *,
    format: Format,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: CheckpointChoice | None = None,
    metadata: CardMetadata | None = None,
    opset: int | None = None,
    onnxruntime: Path | None = None,
) -> dict[str, Any]:
    """Exports what `path`, a run or a file, holds; gives `file`, `max_difference`, `megabytes` and `card`.

    `out` with the format's suffix is one file, of a2b where no `direction` is given; else a folder, with a file for the
    direction, or for each that there is. A folder of format reference is one of its `checkpoints/NAME`, with the
    discriminators that it knows. Format hub is a folder in the form of the Hugging Face hub, which is a checkpoint,
    too; `metadata` is for its card, and its licence for an ONNX file, too. `opset`: see `export`.
    Format web is a folder for any web host; `onnxruntime` is the package that runs there (`site.fetch_runtime`), and
    `half` is given too: whether weights are in float16.
    """
    if format not in SUFFIXES:
        raise ValueError(f"format={format}: choose {', '.join(SUFFIXES)}{nearest(format, SUFFIXES)}")
    single = out.suffix == SUFFIXES[format] and format not in ("hub", "web")  # which are folders
    if metadata and format != "hub" and (format != "onnx" or metadata.datasets or metadata.picture):
        raise ValueError(
            f"format={format}: data sets and a picture are for the card of format=hub, a licence for hub and onnx"
        )
    if onnxruntime and format != "web":
        raise ValueError(f"format={format} runs in no browser: leave onnxruntime out, or choose format=web")
    if names_a_file(out) and not single:
        file = "" if format in ("hub", "web") else f", or a file that ends in {SUFFIXES[format]}"
        raise ValueError(f"{out} is named like a file, and format={format} is not written so: name a folder{file}")
    if out.is_file() is not single and out.exists():
        raise ValueError(f"{out} is a {'folder' if single else 'file'} already: name another")
    page = out.with_name(f"{out.name}.md") if single else out / PAGE
    if page.is_file() and SIGNED not in page.read_text("utf-8", "replace"):
        raise ValueError(f"{page} is there already, and the model's card would overwrite it: name another place")
    if single and out.is_file() and not page.is_file():
        raise ValueError(f"{out} is there already, and no card says that it is velogan's: name another place")
    common: Any = {"weights": weights, "checkpoint": checkpoint}
    if single or direction:
        model = load_translator(path, direction=direction, **common)
        models: dict[Direction, Translator] = {model.direction: model}
    else:
        models = load_all(path, **common)
    if format in ("hub", "web"):
        _refuse_runs(out)
    runtime = b""
    if format == "web":
        for model in models.values():
            check_for_browsers(model)
        runtime = fetch_runtime(onnxruntime)
    if format == "hub":
        _clear(out)
    files, metadata, example = {}, metadata or CardMetadata(), None
    for way, model in models.items():
        name = out if single else out / f"{_name(way, format, alone=len(models) == 1)}{SUFFIXES[format]}"
        files[way] = model, export(model, name, format=format, opset=opset, license=metadata.license)
    left_out = _write_discriminators(models, out) if format == "reference" and not single and len(models) > 1 else []
    if metadata.picture:
        example = EXAMPLE
        _write_example(next(iter(models.values())), metadata.picture, out / EXAMPLE)
    write_text(page, card(files, metadata, format=format, left_out=left_out, example=example))
    if format == "hub":
        _write_manifests(out, files)
    if format == "web":
        write_site(out, path.stem if path.is_file() else path.resolve().name, files, runtime)
    written = [one for _, one in files.values()]
    told: dict[str, Any] = {
        "file": str(out),
        "max_difference": max(one.max_difference for one in written),
        "megabytes": round(sum(one.megabytes for one in written), 3),
        "card": str(page),
    }
    if format == "web":
        told["half"] = all(one.half for one in written)
    return told


def load_all(path: Path, **settings: Any) -> dict[Direction, Translator]:
    """The generators of `path` by direction: all of a folder, the one of a file. `settings` are `load_translator`'s."""
    found = () if path.is_file() else load_networks(path)
    ways: list[Direction | None] = [way for way, role in GENERATOR_FILES.items() if role in found]
    models = [load_translator(path, direction=way, **settings) for way in ways or [None]]
    return {model.direction: model for model in models}


def _name(way: Direction, format: Format, *, alone: bool) -> str:
    if format == "reference":
        return "latest_net_G" if alone else f"latest_net_{GENERATOR_FILES[way]}"
    return GENERATOR_FILES[way] if format == "hub" else way


def _write_discriminators(models: Mapping[Direction, Translator], out: Path) -> list[str]:
    """Those of the generators' checkpoint. Gives the roles of those that the reference implementation does not have."""
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


def _refuse_runs(out: Path) -> None:
    """ValueError where `out` is a run or one of its checkpoints."""
    of_a_run = [name for name in ("config.yaml", "state.safetensors") if (out / name).exists()]
    if of_a_run or ((out / MANIFEST).exists() and not (out / CONFIG).exists()):
        raise ValueError(f"{out} is a run or one of its checkpoints, which this would overwrite: name another folder")


def _clear(out: Path) -> None:
    """Removes what an earlier export left in `out`."""
    for name in (MANIFEST, EXAMPLE, *WEIGHTS):  # the manifest first: half a folder is none
        (out / name).unlink(missing_ok=True)


def _write_manifests(out: Path, files: Files) -> None:
    """Writes the hub's `config.json`, then the manifest that makes the folder a checkpoint."""
    networks = {way: {"file": one.file.name, **model.header} for way, (model, one) in files.items()}
    config = {"library_name": "velogan", "velogan": velogan.__version__, "model_type": "velogan", "networks": networks}
    write_text(out / CONFIG, json.dumps(config, indent=1))
    write_manifest(out, images=max(int(model.header.get("images_seen") or 0) for model, _ in files.values()))


def _write_example(model: Translator, picture: Path, file: Path) -> None:
    """Writes the picture and its translation side by side."""
    try:
        with Image.open(picture) as opened:
            if opened.mode not in _EIGHT_BITS:
                raise ValueError(f"its pixels are {opened.mode}")
            before = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"picture={picture} cannot be shown: {error}; name a picture of 8 bits") from None
    before.thumbnail((_EXAMPLE_SIDE, _EXAMPLE_SIDE))
    both = Image.new("RGB", (2 * before.width, before.height))
    both.paste(before, (0, 0))
    both.paste(translate_images(model, before).convert("RGB"), (before.width, 0))
    with replacing(file) as aside:
        both.save(aside, format="PNG")
