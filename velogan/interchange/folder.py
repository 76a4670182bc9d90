"""A folder in the hub's convention: weights, `config.json` and a page with a header that the hub reads.

It is a checkpoint, too (`manifest.json`), so that all that takes a run takes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

import velogan
from velogan.files import replacing, write_text
from velogan.interchange.export import Exported
from velogan.interchange.page import page
from velogan.store.checkpoint import write_manifest
from velogan.translate.memory import translate_images
from velogan.translate.model import Translator
from velogan.types import GENERATOR_FILES, Direction

CONFIG, MANIFEST, PAGE, EXAMPLE = "config.json", "manifest.json", "README.md", "example.png"
WEIGHTS = tuple(f"{role}.safetensors" for role in GENERATOR_FILES.values())
NAMES = (CONFIG, MANIFEST, PAGE, EXAMPLE, *WEIGHTS)
"""All files that such a folder may hold."""

_MOST_SIDE = 512
_EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


@dataclass(frozen=True)
class About:
    """What only its author can say of a published model.

    `license`: an identifier of the hub (mit, cc-by-4.0); None: not stated. `datasets`: names of data sets on the hub.
    `picture`: shown before and after; without one no picture is published. `name`: the repository, OWNER/NAME.
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


def prepare(out: Path) -> None:
    """Clears what an earlier save left in `out`. ValueError where it is a run or one of its checkpoints."""
    if out.suffix == ".safetensors":
        raise ValueError(f"{out}: format=hub is a folder: name one without a suffix")
    of_a_run = [name for name in ("config.yaml", "state.safetensors") if (out / name).exists()]
    if of_a_run or ((out / MANIFEST).exists() and not (out / CONFIG).exists()):
        raise ValueError(f"{out} is a run or one of its checkpoints, which this would overwrite: name another folder")
    for name in (MANIFEST, EXAMPLE, *WEIGHTS):  # the manifest first: half a folder is none
        (out / name).unlink(missing_ok=True)


def finish(out: Path, models: Mapping[Direction, Translator], made: Sequence[Exported], about: About) -> Path:
    """Writes all but the weights, which are `made`, and gives the page."""
    example = out / EXAMPLE if about.picture else None
    if about.picture and example:
        _show(next(iter(models.values())), about.picture, example)
    seen = [model.header.get("images_seen") for model in models.values()]
    config = {
        "library_name": "velogan",
        "velogan": velogan.__version__,
        "model_type": "velogan",
        "networks": {way: {"file": one.file.name, **model.header} for (way, model), one in zip(models.items(), made)},
    }
    write_text(out / CONFIG, json.dumps(config, indent=1))
    text = page(
        models,
        made,
        license=about.license,
        datasets=about.datasets,
        name=about.name,
        example=EXAMPLE if example else None,
    )
    write_text(out / PAGE, text)
    write_manifest(out, images=max((count for count in seen if isinstance(count, int)), default=0))
    return out / PAGE


def _show(model: Translator, picture: Path, file: Path) -> None:
    """Writes the picture and its translation side by side."""
    try:
        with Image.open(picture) as opened:
            if opened.mode not in _EIGHT_BITS:
                raise ValueError(f"its pixels are {opened.mode}")
            before = opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"picture={picture} cannot be shown: {error}; name a picture of 8 bits") from None
    before.thumbnail((_MOST_SIDE, _MOST_SIDE))
    after = translate_images(model, before).convert("RGB")
    both = Image.new("RGB", (2 * before.width, before.height))
    both.paste(before, (0, 0))
    both.paste(after, (before.width, 0))
    with replacing(file) as aside:
        both.save(aside, format="PNG")
