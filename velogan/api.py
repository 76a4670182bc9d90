"""velogan from Python: the public names, which `import velogan` has, too (docs/python.md)."""

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
from velogan.translate.masking import MaskSide
from velogan.translate.memory import to_picture, translate_images
from velogan.translate.model import CheckpointChoice, Pages, Translator, Weights, load_translator
from velogan.translate.options import TranslateOptions
from velogan.translate.uncertainty import UncertaintyEstimator, UncertaintyMap
from velogan.types import Direction

PRESETS: tuple[str, ...] = tuple(RECIPES)
"""The names that `preset` takes."""

Images = TypeVar("Images")
PathLike = str | Path


def preset(name: str = RECOMMENDED) -> Config:
    """The configuration of this name; `Config.change` replaces fields. ValueError for another name.

    Without a name, the recommended one at a size that this machine bears; "cyclegan" is the paper's.
    """
    if name not in RECIPES:
        raise ValueError(f"preset={name!r:.40} is not known: there are {', '.join(PRESETS)}")
    return RECIPES[name]()


def train(config: Config, run: PathLike) -> Result:
    """Trains `config` in the folder `run`, or continues what is there, with progress on standard error.

    ValueError for what you can mend, such as pictures that are missing; `velogan.engine.nonfinite.NonFiniteError` where
    numbers break.
    """
    if not isinstance(config, Config):
        raise ValueError(f"config={config!r:.40} is no configuration: give velogan.preset(), changed by Config.change")
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
    """The model of a run folder, a `.safetensors` or `.pth` file, or the hub (`hf://OWNER/NAME`), ready to translate.

    `direction`: a2b or b2a; None: a2b, or the direction of a file. `weights`: averaged (ema, the default where they are
    kept) or raw. `fp32`: computed by plain float32 layers, not by the accelerated network, which differs by a few
    levels of 8 bits. ValueError, with the mend, where there is no such model.
    """
    common: Any = {"direction": direction, "weights": weights, "checkpoint": checkpoint}
    path = resolve_model_path(path)
    return Model(load_translator(path, device=resolve_device(device), fast=not fp32, **common), path)


@dataclass(frozen=True)
class Model:
    """A trained generator of one direction; `load` makes it."""

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
        """The model of a folder that `save_pretrained` wrote, or of OWNER/NAME on the hub.

        What is not kept yet is downloaded: weights as safetensors, never a pickle. `revision`: a branch, tag or commit;
        the other arguments are those of `load`.
        """
        found = resolve_repo(f"{name}@{revision}" if revision else name)
        return load(found, direction=direction, device=device, fp32=fp32)

    def save_pretrained(
        self,
        folder: PathLike,
        *,
        license: str | None = None,
        datasets: Sequence[str] = (),
        picture: PathLike | None = None,
    ) -> dict[str, Any]:
        """Writes a folder as the hub has it: the weights of all directions that there are, `config.json`, a model card.

        `license`: an identifier of the hub, such as mit; None: the card says that none is stated. `datasets`: names of
        data sets on the hub. `picture`: a file that the card shows before and after. Gives what `export` gives.
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
        """Publishes that folder on the hub as `repo_id`, OWNER/NAME, by one commit, and gives its address.

        `private`: None: as its owner has set for new ones. You are who has logged in (`hf auth login`, or `HF_TOKEN`).
        """
        require_hub()
        metadata = CardMetadata(license, tuple(datasets), Path(picture) if picture else None, repo_id)
        with tempfile.TemporaryDirectory() as folder:
            self._save(Path(folder), metadata)
            return upload(Path(folder), repo_id, private=private, message=commit_message)

    def _save(self, folder: Path, metadata: CardMetadata) -> dict[str, Any]:
        file = self.translator.file
        if file is None:
            raise ValueError("this model was not loaded from a file: load it from a run or a file, then save it")
        if self.path is None or self.path.is_file():
            return write_export(file, folder, format="hub", options=ExportOptions(metadata=metadata))
        weights = "ema" if file.stem.endswith(".ema") else "raw"
        return write_export(
            file.parent, folder, format="hub", options=ExportOptions(weights=weights, metadata=metadata)
        )

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        return self.translator.device

    @property
    def facts(self) -> dict[str, Any]:
        """The header of its weights file: network, pixel formats, images seen."""
        return dict(self.translator.header)

    def translate(self, images: Images, *, tile: int | None = None) -> Images:
        """The translation of a PIL image, an array, a tensor or a list of these, of the same kind, size and depth.

        Arrays are pixels: `(H, W)`, `(H, W, C)` or `(B, H, W, C)`, uint8 or uint16, or float32 if the model was trained
        with a declared range. Tensors are `(C, H, W)` or `(B, C, H, W)` in [-1, 1], on any device, where the result is
        too. Pictures of more than two million pixels are translated in tiles of `tile` pixels; 0: never. ValueError for
        anything else.
        """
        return translate_images(self.translator, images, tile=tile)

    def uncertainty(self, image: Any, *, tile: int | None = None) -> UncertaintyMap:
        """Where not to trust the translation of a PIL image or an array `(H, W)` or `(H, W, C)`: a map, `(H, W)` uint8.

        `tile` is that of `translate`; a picture that it cuts into tiles has no map. ValueError for that, for anything
        else, and where the model is not of a run folder with a way back.
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
        masks: PathLike | None = None,
        masks_keep: MaskSide = "outside",
        pages: Pages | None = None,
    ) -> Summary:
        """Translates a picture, film or scan, or a folder with its tree: `velogan translate`, with its arguments."""
        return translate(
            self.translator.with_pages(pages),
            Path(source),
            Path(target),
            TranslateOptions(
                overwrite=overwrite,
                format=format,
                tile=tile,
                smooth=smooth,
                masks=None if masks is None else Path(masks),
                masks_keep=masks_keep,
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
    """Scores a run on held-out pictures: `scores`, each beside that of doing nothing, and the `protocol`.

    The arguments are those of `velogan evaluate`; `features` None: lite2 where it is installed.
    """
    chosen: FeatureChoice = features or default_features()
    common: Any = {"classes": classes, "checkpoint": checkpoint, "limit": limit, "device": resolve_device(device)}
    return _evaluate(Path(run), data=data, features=chosen, **common)


def export(
    path: PathLike,
    out: PathLike,
    *,
    format: Format,
    direction: Direction | None = None,
    weights: Weights | None = None,
) -> dict[str, Any]:
    """Writes generators for other programs, as `velogan export`: `file`, `max_difference`, `megabytes`, `card`."""
    options = ExportOptions(direction=direction, weights=weights)
    return write_export(resolve_model_path(path), Path(out), format=format, options=options)


def import_reference(source: PathLike, run: PathLike, *, picture_statistics: bool = False) -> dict[str, Any]:
    """Makes a run folder of the reference implementation's weights, as `velogan import`: `run`, `networks`.

    `picture_statistics`: batch norm takes each picture's own statistics, as the reference's test.py does.
    """
    return _import_reference(Path(source), Path(run), picture_statistics=picture_statistics)
