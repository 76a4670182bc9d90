"""What `velogan export` writes: one direction as a file, or a folder of all that there are, with a card beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from velogan.files import write_text
from velogan.interchange.card import card
from velogan.interchange.export import SUFFIXES, Exported, Format, export, save_reference
from velogan.interchange.folder import About, finish, prepare
from velogan.translate.model import Translator, Weights, Which, load_translator
from velogan.translate.weights import networks_at
from velogan.types import GENERATOR_FILES, Direction


def write_export(
    path: Path,
    out: Path,
    *,
    format: Format,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: Which = "last",
    about: About | None = None,
    int8: Path | None = None,
) -> dict[str, Any]:
    """Exports what `path`, a run or a file, holds; gives `file`, `max_difference`, `megabytes` and `card`.

    `out` with the format's suffix is one file, of a2b where no `direction` is given; else a folder, with a file for the
    direction, or for each that there is. A folder of format reference is one of its `checkpoints/NAME`, with the
    discriminators that it knows. Format hub is a folder that others' programs know the parts of, with the page that
    `about` is for. `int8`: a folder of pictures to translate, by which one direction as ONNX is put into 8 bits; then
    `psnr` and `faster`, of `int8.Quantised`, are given too.
    """
    if about and format != "hub":
        raise ValueError(f"format={format}: a licence, data sets and a picture are for the page of format=hub")
    if int8 and not (direction or out.suffix == SUFFIXES[format] or path.is_file()):
        raise ValueError("int8 takes pictures of one domain: name a direction, or a file to write")
    common: Any = {"weights": weights, "checkpoint": checkpoint}
    single = out.suffix == SUFFIXES[format]
    if out.is_file() is not single and out.exists():
        raise ValueError(f"{out} is a {'folder' if single else 'file'} already: name another")
    if single or direction:
        model = load_translator(path, direction=direction, **common)
        models: dict[Direction, Translator] = {_way(model): model}
    else:
        models = load_all(path, **common)
    if format == "hub":
        prepare(out)
    made, left_out = [], []
    for way, model in models.items():
        name = out if single else out / f"{_name(way, format, alone=len(models) == 1)}{SUFFIXES[format]}"
        made.append(export(model, name, format=format, int8=int8))
    if format == "reference" and not single and len(models) > 1:
        left_out = _judges(path, out)
    if format == "hub":
        return {**_summary(out, made), "card": str(finish(out, models, made, about or About()))}
    page = out.with_name(f"{out.name}.md") if single else out / "README.md"
    write_text(page, card(models, made, format=format, left_out=left_out))
    return {**_summary(out, made), "card": str(page)}


def _summary(out: Path, made: Sequence[Exported]) -> dict[str, Any]:
    small = made[0].int8
    return {
        "file": str(out),
        "max_difference": max(one.max_difference for one in made),
        "megabytes": round(sum(one.megabytes for one in made), 3),
        **({"psnr": round(small.psnr, 2), "faster": round(small.faster, 2)} if small else {}),
    }


def load_all(path: Path, **settings: Any) -> dict[Direction, Translator]:
    """The generators of `path` by direction: all of a folder, the one of a file. `settings` are `load_translator`'s."""
    ways = [None] if path.is_file() else _ways(path)
    return {_way(model): model for model in (load_translator(path, direction=way, **settings) for way in ways)}


def _ways(path: Path) -> list[Direction | None]:
    found = networks_at(path)
    return [way for way, role in GENERATOR_FILES.items() if role in found] or [None]


def _way(model: Translator) -> Direction:
    return next(way for way, role in GENERATOR_FILES.items() if role == model.header["role"])


def _name(way: str, format: Format, *, alone: bool) -> str:
    if format == "hub":
        return GENERATOR_FILES[way]  # pyright: ignore[reportArgumentType]
    if format != "reference":
        return way
    return "latest_net_G" if alone else f"latest_net_{GENERATOR_FILES[way]}"  # pyright: ignore[reportArgumentType]


def _judges(path: Path, out: Path) -> list[str]:
    """Writes the discriminators; gives the names of those that the reference implementation does not have."""
    left_out = []
    for role, network in networks_at(path).items():
        if role.startswith("G_"):
            continue
        try:
            save_reference(network, out / f"latest_net_{role}.pth")
        except ValueError:
            left_out.append(role)
    return left_out
