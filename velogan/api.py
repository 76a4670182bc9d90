"""velogan from Python: the names that stay. `import velogan` has them all (docs/python.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from velogan.config import Config, read_config
from velogan.data.domains.sources import code_directory
from velogan.deploy.bundle import write_export
from velogan.deploy.doubt import Doubt, Doubter
from velogan.deploy.export import Format
from velogan.deploy.memory import one_picture, translate_images
from velogan.deploy.model import Translator, Weights, Which, load_translator
from velogan.deploy.translate import Summary, translate
from velogan.engine.resolve import resolve_device
from velogan.evaluation.doubt import doubter_of
from velogan.evaluation.evaluate import Features
from velogan.evaluation.evaluate import evaluate as _evaluate
from velogan.imported import import_reference as _import_reference
from velogan.kernels.inference import Accelerator
from velogan.networks.pretrained import find_lite
from velogan.observe.progress import Display
from velogan.recipes import DEFAULT, RECIPES
from velogan.run import train as _train
from velogan.session import Result
from velogan.types import Direction

__all__ = [
    "PRESETS",
    "Config",
    "Doubt",
    "Model",
    "Result",
    "Summary",
    "evaluate",
    "export",
    "import_reference",
    "load",
    "preset",
    "read_config",
    "train",
]

PRESETS: tuple[str, ...] = tuple(RECIPES)
"""The names that `preset` takes."""

Images = TypeVar("Images")
PathLike = str | Path


def preset(name: str = DEFAULT) -> Config:
    """The configuration of this name; `Config.change` replaces fields. ValueError for another name."""
    if name not in RECIPES:
        raise ValueError(f"preset={name!r:.40} is not known: there are {', '.join(PRESETS)}")
    return RECIPES[name]()


def train(config: Config, run: PathLike) -> Result:
    """Trains `config` in the folder `run`, or continues what is there, with progress on standard error.

    ValueError for what you can mend, such as pictures that are missing; `velogan.engine.nonfinite.NonFiniteError` where
    numbers break.
    """
    with Display() as display:
        return _train(config, Path(run), display=display, origin={"preset": "", "command": "velogan.train"})


def load(
    path: PathLike,
    *,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: Which = "last",
    device: str = "auto",
    exact: bool = False,
) -> Model:
    """The model of a run folder, or of a `.safetensors` or `.pth` file, ready to translate.

    `direction`: a2b or b2a; None: a2b, or the direction of a file. `weights`: averaged (ema, the default where they are
    kept) or raw. `exact`: computed by plain float32 layers, not by the accelerated network, which differs by a few
    levels of 8 bits. ValueError, with the mend, where there is no such model.
    """
    where = resolve_device(device)
    faster = None if exact else Accelerator(where, code_directory() / "kernels")
    common: Any = {"direction": direction, "weights": weights, "checkpoint": checkpoint}
    return Model(load_translator(Path(path), device=where, accelerate=faster, **common))


@dataclass(frozen=True)
class Model:
    """A trained generator of one direction; `load` makes it."""

    translator: Translator

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.translator.device

    @property
    def facts(self) -> dict[str, Any]:
        """What the file says of it: network, pictures, images seen."""
        return dict(self.translator.header)

    def translate(self, images: Images, *, tile: int | None = None) -> Images:
        """The translation of a PIL image, an array, a tensor or a list of these, of the same kind, size and depth.

        Arrays are pixels: `(H, W)`, `(H, W, C)` or `(B, H, W, C)`, uint8 or uint16, or float32 if the model was trained
        with a declared range. Tensors are `(C, H, W)` or `(B, C, H, W)` in [-1, 1], on any device, where the result is
        too. Pictures of more than two million pixels are translated in tiles of `tile` pixels; 0: never. ValueError for
        anything else.
        """
        return translate_images(self.translator, images, tile=tile)

    def doubt(self, image: Any, *, tile: int | None = None) -> Doubt:
        """Where not to trust the translation of a PIL image or an array `(H, W)` or `(H, W, C)`: a map, `(H, W)` uint8.

        `tile` is that of `translate`; a picture that it cuts into tiles has no map. ValueError for that, for anything
        else, and where the model is not of a run folder with a way back.
        """
        return self._doubter.of(one_picture(image), tile=tile)

    @cached_property
    def _doubter(self) -> Doubter:
        return doubter_of(self.translator)

    def translate_files(
        self, source: PathLike, target: PathLike, *, overwrite: bool = False, format: str | None = None
    ) -> Summary:
        """Translates a picture file, or a folder with its tree, as `velogan translate` does."""
        return translate(self.translator, Path(source), Path(target), overwrite=overwrite, format=format)


def evaluate(
    run: PathLike,
    *,
    data: Sequence[str] = (),
    features: Features | None = None,
    classes: Mapping[str, int] | None = None,
    checkpoint: Which | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Scores a run on held-out pictures: `scores`, each beside that of doing nothing, and the `protocol`.

    The arguments are those of `velogan evaluate`; `features` None: lite0 where it is installed.
    """
    chosen: Features = features or ("lite0" if find_lite("lite0") else "none")
    common: Any = {"classes": classes, "checkpoint": checkpoint, "limit": limit, "device": resolve_device(device)}
    return _evaluate(Path(run), data=data, features=chosen, **common)


def export(
    path: PathLike, out: PathLike, *, format: Format, direction: Direction | None = None, weights: Weights | None = None
) -> dict[str, Any]:
    """Writes generators for other programs, as `velogan export`: `file`, `max_difference`, `megabytes`, `card`."""
    return write_export(Path(path), Path(out), format=format, direction=direction, weights=weights)


def import_reference(source: PathLike, run: PathLike) -> dict[str, Any]:
    """Makes a run folder of the reference implementation's weights, as `velogan import`: `run`, `networks`."""
    return _import_reference(Path(source), Path(run))
