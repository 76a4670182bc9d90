"""The public Python API, also available as attributes of `velogan` (docs/python.md)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from velogan.config import Config
from velogan.config import read_config as read_config
from velogan.engine.device import resolve_device
from velogan.evaluation.evaluate import FeatureChoice
from velogan.evaluation.evaluate import evaluate as _evaluate
from velogan.evaluation.features import default_features
from velogan.evaluation.uncertainty import uncertainty_estimator
from velogan.interchange.bundle import ExportOptions, write_export
from velogan.interchange.card import CardMetadata
from velogan.interchange.export import Format
from velogan.interchange.hub import require_hub, resolve_model_path, resolve_repo, upload
from velogan.interchange.importing import import_reference as _import_reference
from velogan.observe.progress import Display
from velogan.recipes import RECIPES, RECOMMENDED
from velogan.training.run import train as _train
from velogan.training.session import Result
from velogan.translate.files import Summary, translate
from velogan.translate.memory import to_picture, translate_images
from velogan.translate.model import CheckpointChoice, Pages, Translator, Weights, load_translator
from velogan.translate.options import TranslateOptions
from velogan.translate.uncertainty import UncertaintyEstimator, UncertaintyMap
from velogan.types import Direction

PRESETS: tuple[str, ...] = tuple(RECIPES)
"""The valid names for `preset`."""

Images = TypeVar("Images")
PathLike = str | Path


def preset(name: str = RECOMMENDED) -> Config:
    """Return the configuration of a preset, by default the recommended one; to replace fields, use `Config.change`.

    "cyclegan" is the configuration of the CycleGAN paper. Raises ValueError if the name is unknown.
    """
    if name not in RECIPES:
        raise ValueError(f"preset={name!r:.40} is unknown: choose {', '.join(PRESETS)}")
    return RECIPES[name]()


def train(config: Config, run: PathLike) -> Result:
    """Train with `config` in the run folder `run`, or resume the run in it; progress goes to standard error.

    Raises ValueError for errors that the caller can fix, such as missing images, and
    `velogan.engine.nonfinite.NonFiniteError` if a loss or gradient becomes infinite or NaN.
    """
    if not isinstance(config, Config):
        raise ValueError(f"config={config!r:.40} is not a Config: pass velogan.preset(), changed by Config.change")
    with Display() as display:
        return _train(config, Path(run), display=display, origin={"preset": "", "command": "velogan.train"})


def load(
    path: PathLike,
    *,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: CheckpointChoice | None = None,
    device: str = "auto",
    fp32: bool = False,
) -> Model:
    """Load a model from a run folder, a `.safetensors` or `.pth` file, or the hub (`hf://OWNER/NAME`).

    direction: "a2b" or "b2a"; None: a weights file's own direction, else a2b
    weights: "ema" (moving average) or "raw"; None: ema if saved
    checkpoint: "last" or "best" of a run; None: last, or best if last is much worse
    device: "auto", "cpu", "cuda" or "mps"
    fp32: compute with plain float32 layers instead of accelerated ones, whose outputs differ by a few of 255 levels

    Raises ValueError, with a hint, if the model is not found.
    """
    common: Any = {"direction": direction, "weights": weights, "checkpoint": checkpoint}
    path = resolve_model_path(path)
    return Model(load_translator(path, device=resolve_device(device), fast=not fp32, **common), path)


@dataclass(frozen=True)
class Model:
    """A trained generator of one direction, as returned by `load`."""

    translator: Translator
    path: Path | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: PathLike,
        *,
        revision: str | None = None,
        direction: Direction | None = None,
        device: str = "auto",
        fp32: bool = False,
    ) -> Model:
        """Load a model from a folder that `save_pretrained` wrote, or from the hub repository OWNER/NAME.

        Downloads missing files, in the format safetensors, never pickles. `revision`: a branch, tag or commit; None:
        the default branch. For the other arguments see `load`.
        """
        path = resolve_repo(f"{name}@{revision}" if revision else name)
        return load(path, direction=direction, device=device, fp32=fp32)

    def save_pretrained(
        self,
        folder: PathLike,
        *,
        license: str | None = None,
        datasets: Sequence[str] = (),
        picture: PathLike | None = None,
    ) -> dict[str, Any]:
        """Write a folder for the hub with the weights of all directions, `config.json` and a model card.

        license: the hub's identifier of a license, such as "mit"; None: the card says that none is stated
        datasets: names of data sets on the hub
        picture: a picture file that the card shows before and after translation

        Return a dictionary with the same keys as `export`.
        """
        return self._save(Path(folder), CardMetadata(license, tuple(datasets), Path(picture) if picture else None))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        license: str | None = None,
        datasets: Sequence[str] = (),
        picture: PathLike | None = None,
        private: bool | None = None,
        commit_message: str = "Upload a velogan model",
    ) -> str:
        """Upload to the hub, as `repo_id` (OWNER/NAME), the folder that `save_pretrained` writes; return the URL.

        `private` None: the owner's default for new repositories. Requires a login (`hf auth login` or `HF_TOKEN`).
        """
        require_hub()
        metadata = CardMetadata(license, tuple(datasets), Path(picture) if picture else None, repo_id)
        with tempfile.TemporaryDirectory() as folder:
            self._save(Path(folder), metadata)
            return upload(Path(folder), repo_id, private=private, message=commit_message)

    def _save(self, folder: Path, metadata: CardMetadata) -> dict[str, Any]:
        file = self.translator.file
        if file is None:
            raise ValueError("this model was not loaded from a file: load it from a run or a file to save it")
        if self.path is None or self.path.is_file():
            return write_export(file, folder, format="hub", options=ExportOptions(metadata=metadata))
        weights = "ema" if file.stem.endswith(".ema") else "raw"
        return write_export(
            file.parent, folder, format="hub", options=ExportOptions(weights=weights, metadata=metadata)
        )

    @property
    def device(self) -> torch.device:
        return self.translator.device

    @property
    def metadata(self) -> dict[str, Any]:
        """The header of the model's weights file: network, pixel formats, images seen."""
        return dict(self.translator.header)

    def translate(self, images: Images, *, tile: int | None = None) -> Images:
        """Translate a PIL image, an array, a tensor or a list of these; return the same type, size and bit depth.

        Arrays are pixels: `(H, W)`, `(H, W, C)` or `(B, H, W, C)`, uint8 or uint16, or float32 if the model was trained
        with a declared range. Tensors are `(C, H, W)` or `(B, C, H, W)` in [-1, 1]; the result is on the same device.
        `tile`: side in pixels of the square tiles in which PIL images and arrays are translated; None: tiles only above
        two million pixels; 0: no tiles. Raises ValueError for other inputs.
        """
        return translate_images(self.translator, images, tile=tile)

    def uncertainty(self, image: Any, *, tile: int | None = None) -> UncertaintyMap:
        """Return an uncertainty map `(H, W)`, uint8, for the translation of a PIL image or an array `(H, W[, C])`.

        `tile`: see `translate`. Raises ValueError for images that are translated in tiles, for other inputs, and if the
        model was not loaded from a run folder with a reverse generator.
        """
        return self._estimator.estimate(to_picture(image), tile=tile)

    @cached_property
    def _estimator(self) -> UncertaintyEstimator:
        return uncertainty_estimator(self.translator)

    def translate_files(
        self,
        source: PathLike,
        target: PathLike,
        *,
        overwrite: bool = False,
        format: str | None = None,
        tile: int | None = None,
        smooth: float = 0.0,
        pages: Pages | None = None,
    ) -> Summary:
        """Translate a picture, video, scan or folder with its subfolders; for the options see `velogan translate`."""
        return translate(
            self.translator.with_pages(pages),
            Path(source),
            Path(target),
            TranslateOptions(
                overwrite=overwrite,
                format=format,
                tile=tile,
                smooth=smooth,
            ),
        )


def evaluate(
    run: PathLike,
    *,
    data: Sequence[str] = (),
    features: FeatureChoice | None = None,
    classes: Mapping[str, int] | None = None,
    checkpoint: CheckpointChoice | None = None,
    limit: int | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Score a run on held-out images; return `scores`, including scores of the unchanged input, and `protocol`.

    The arguments are the options of `velogan evaluate`; `features` None: lite2 if installed, else "none".
    """
    options: Any = {"classes": classes, "checkpoint": checkpoint, "limit": limit, "device": resolve_device(device)}
    return _evaluate(Path(run), data=data, features=features or default_features(), **options)


def export(
    path: PathLike,
    out: PathLike,
    *,
    format: Format,
    direction: Direction | None = None,
    weights: Weights | None = None,
) -> dict[str, Any]:
    """Export generators, as `velogan export` does; return `file`, `max_difference`, `megabytes` and `card`."""
    options = ExportOptions(direction=direction, weights=weights)
    return write_export(resolve_model_path(path), Path(out), format=format, options=options)


def import_reference(source: PathLike, run: PathLike, *, picture_statistics: bool = False) -> dict[str, Any]:
    """Create a run folder from weights of the reference implementation; return `run` and `networks`.

    `picture_statistics`: batch norm uses each image's own statistics, as the reference's test.py does.
    """
    return _import_reference(Path(source), Path(run), picture_statistics=picture_statistics)
