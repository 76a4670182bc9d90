"""The metric by which a sweep compares runs, measured at each checkpoint on held-out training images."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from velogan.config import Config
from velogan.data.config import DataConfig
from velogan.data.rendered.apples2oranges import render_truth
from velogan.data.sets.sources import DomainSource, Folder, Sources, cache_directory
from velogan.evaluation import per_image
from velogan.evaluation.evaluate import load_networks
from velogan.evaluation.features import JUDGE, Judge
from velogan.evaluation.images import DomainImages, ImageSet
from velogan.evaluation.scoring import Scorer, no_progress
from velogan.evaluation.validation import SCORE, Validation
from velogan.files import did_you_mean
from velogan.methods.base import InferenceGenerators, Method, Spec
from velogan.metrics.bootstrap import resampled_sliced
from velogan.metrics.registry import METRIC_NAMES, image_means, lower_is_better
from velogan.metrics.sliced import level_patches
from velogan.networks.build import NetworkFactory
from velogan.translate.model import Translator
from velogan.types import Direction

RESAMPLED_SUFFIX = "/resampled"
"""Suffix of the log's key for the list of a metric's values over bootstrap resamples of the held-out images."""

_PREFIX = "validation/"
_ALWAYS_LOGGED = ("distance", "cycle_a", "cycle_b", "reconstruction_a", "reconstruction_b")
"""Metrics that `Validation` logs by itself, whatever the sweep's metric is."""

_NEED_TRUTH = ("psnr_object_db", "ssim_object", "psnr_background_db", "psnr_truth_db", "ssim_truth")
_NEED_TRUTH += ("label_accuracy", "label_iou")
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_CLASS_SHARE = r"(lite1|lite2)_share_class_(\d{1,3})"


def parse_metric(text: str) -> str:
    """Convert a metric's name as users write it to its key in the log, `validation/...`.

    Raises ValueError, which suggests the nearest name, if there is no such metric.
    """
    name = text.removeprefix(_PREFIX)
    base, direction = _split_metric_name(name)
    if re.fullmatch(_CLASS_SHARE, base):
        if direction is None:
            raise ValueError(
                f"metric={text}: the share of a class needs a direction; use {text}_a2b, with a class of domain B"
            )
    elif base not in (*_ALWAYS_LOGGED, *METRIC_NAMES) or (direction and base in _ALWAYS_LOGGED[1:]):
        known = [*_ALWAYS_LOGGED, *METRIC_NAMES]
        raise ValueError(
            f"metric={text}: unknown metric{did_you_mean(base, known)}; choose from {', '.join(known)} and "
            f"{JUDGE}_share_class_INDEX; append _a2b or _b2a for a single direction"
        )
    return f"{_PREFIX}{name}"


def higher_is_better(metric: str) -> bool:
    """Return whether a higher value of `metric` is better; a class share is assumed to be of a target class."""
    base, _ = _split_metric_name(metric.removeprefix(_PREFIX))
    return base not in _ALWAYS_LOGGED and not lower_is_better(base)


def evaluation_options(metric: str) -> dict[str, Any]:
    """Return the arguments `features`, `inception` and `classes` with which `evaluate` computes `metric`."""
    base, _ = _split_metric_name(metric.removeprefix(_PREFIX))
    options: dict[str, Any] = {"features": "none", "inception": None, "classes": {}}
    if (judge := base.partition("_")[0]) in get_args(Judge):
        options["features"] = judge
    if base.startswith(("fid", "kid")):
        options["inception"] = "auto"
    if match := re.fullmatch(_CLASS_SHARE, base):
        options["classes"] = {f"class {match[2]}": int(match[2])}
    return options


def check_metric(metric: str, method: Method, spec: Spec, sources: Sources, *, data: DataConfig, device: str) -> None:
    """Raise ValueError, with the reason and a hint, if runs of `method` on `sources` cannot compute `metric`."""
    name = metric.removeprefix(_PREFIX)
    base, direction = _split_metric_name(name)
    directions = method.directions
    if direction is not None and direction not in directions:
        raise ValueError(f"metric={name}: method={method.kind} learns only {directions[0]}; use that direction")
    if sources.a.validation is None or sources.b.validation is None:
        raise ValueError(
            f"metric={name}: no training pictures are held out to measure it on; set data.validation to 2 or more "
            "(each domain needs at least 20 training pictures)"
        )
    if base.startswith("cycle") or "reconstruction" in base:
        _check_generators(method, spec, name, base)
    elif base != "distance":
        available = _available_metrics(sources, metric, data, device)
        for needed in (direction,) if direction else directions:
            if base not in available[needed]:
                other = next((candidate for candidate in directions if base in available[candidate]), None)
                hint = f"use {base}_{other}" if other else f"choose from {', '.join(available[needed])}"
                reason = ": true translations are unknown, or of another kind" if base in _NEED_TRUTH else ""
                raise ValueError(f"metric={base}: not available for {needed} on held-out pictures{reason}; {hint}")


class MetricValidation(Validation):
    """A `Validation` that also computes a metric: for each direction, and the mean over directions.

    Runs on the same images use the same bootstrap resamples, so that their metrics can be compared resample by
    resample. The score of `Validation` still chooses the best checkpoint.
    """

    def __init__(self, config: Config, sources: Sources, views: InferenceGenerators, *, metric: str):
        super().__init__(config, sources, views)
        self.metric, self._resampled = metric, dict[Direction, Tensor]()
        self.metric_base, self.metric_direction = _split_metric_name(metric.removeprefix(_PREFIX))
        if self.metric_base not in _ALWAYS_LOGGED and self.description:
            self.scorer, self.domains = _open_scorer(sources, metric, config.data, self.device)

    def score(self) -> dict[str, Any]:
        """Compute the metrics of `Validation`, `self.metric`, and the list of its values over bootstrap resamples."""
        self._resampled = {}
        scores = super().score()
        if self.metric_base not in _ALWAYS_LOGGED:
            values = {direction: self._measure(direction) for direction in self.method.directions}
            known = {direction: value for direction, value in values.items() if value is not None}
            scores |= {f"{_PREFIX}{self.metric_base}_{direction}": value for direction, value in known.items()}
            if len(known) == len(values):
                scores[f"{_PREFIX}{self.metric_base}"] = fmean(known.values())
        if self.metric not in scores:
            raise ValueError(
                f"metric={self.metric.removeprefix(_PREFIX)}: not available for this run; choose from "
                f"{', '.join(scores)}"
            )
        directions = (self.metric_direction,) if self.metric_direction else self.method.directions
        if all(direction in self._resampled for direction in directions):
            mean = torch.stack([self._resampled[direction] for direction in directions]).mean(dim=0)
            rounded = [float(f"{value:.6g}") if np.isfinite(value) else None for value in mean.tolist()]  # for JSON
            scores[self.metric + RESAMPLED_SUFFIX] = rounded
        return scores

    def distance(self, direction: Direction, fake: Tensor, expected: Tensor) -> float:
        if self.metric_base == "distance":
            x, y = (list(level_patches(images).values()) for images in (fake, expected))
            self._resampled[direction] = resampled_sliced(x, y, seed=0)
        return super().distance(direction, fake, expected)

    def _measure(self, direction: Direction) -> float | None:
        """Return the metric for one direction; None if it is not defined there."""
        source, target = self.domains if direction == "a2b" else self.domains[::-1]
        if "_reconstruction" in self.metric_base:
            assert self.views.reconstruction is not None, "checked before"
            reconstructions = self._translate_all(self.views.reconstruction, source, source)
            metrics = image_means(per_image.reconstruction_metrics(source.images, reconstructions), seed=0)
        else:
            fakes = self._translate_all(self.views.generators[direction], source, target)
            features = self.scorer.extract_features(fakes, "")
            metrics = self.scorer.compute_metrics(source, target, fakes, features, resample=True)
        metric = metrics.get(self.metric_base)
        if metric is not None and metric.resampled is not None:
            self._resampled[direction] = metric.resampled
        return None if metric is None else metric.value

    def _translate_all(self, net: nn.Module, source: DomainImages, target: DomainImages) -> ImageSet:
        device = torch.device(self.device)
        translator = Translator(_InTrainingPrecision(net, self.bf16), multiple=self.spec.multiple, device=device)
        return self.scorer.translate_all(translator, source, target.images.format, "")


class _InTrainingPrecision(nn.Module):
    """A generator in the precision of training: bfloat16 if `bf16`, else float32.

    It runs outside inference mode, since training could not use inference tensors that a layer caches.
    """

    def __init__(self, net: nn.Module, bf16: bool):
        super().__init__()
        self.net, self.bf16 = net, bf16

    def forward(self, images: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            images = images.clone()
            with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                return self.net(images).float()


def _split_metric_name(name: str) -> tuple[str, Direction | None]:
    """Split `structure_a2b` into metric and direction; the direction is None for the mean over directions."""
    for direction in _DIRECTIONS:
        if name.endswith(f"_{direction}"):
            return name.removesuffix(f"_{direction}"), direction
    return name, None


def _open_scorer(
    sources: Sources, metric: str, data: DataConfig, device: str
) -> tuple[Scorer, tuple[DomainImages, DomainImages]]:
    """Return the scorer of a metric, and the held-out images of A and of B with true translations if known."""
    options, cache = evaluation_options(metric), cache_directory(data)
    classes = options.pop("classes")
    networks = load_networks(**options, cache=cache, device="cpu" if device == "auto" else device, task=no_progress)
    scorer = Scorer(data, networks, classes, None, 0, no_progress)
    a, b = _with_ground_truth(sources, cache / "rendered")
    return scorer, (scorer.load(a, b), scorer.load(b, a))


def _with_ground_truth(sources: Sources, folder: Path) -> Iterator[DomainSource]:
    """Yield both domains with held-out images, and their true translations if known, in place of the test images."""
    a, b = sources.a, sources.b
    assert a.validation is not None
    assert b.validation is not None
    is_paired = sources.aligned and a.validation.names == b.validation.names
    ground_truth = None
    names = {"A": a.validation.names, "B": b.validation.names}
    if isinstance(a.train, Folder):
        ground_truth = render_truth(a.train.directory.parent, names, into=folder)  # pyright: ignore[reportArgumentType]
    for domain, other in ((a, b.validation), (b, a.validation)):
        truth = other.directory if is_paired and isinstance(other, Folder) else None
        mask = None
        if ground_truth:
            truth, mask = ground_truth / f"truth{domain.letter}", ground_truth / f"mask{domain.letter}"
        yield replace(domain, test=domain.validation, truth=truth, mask=mask)


def _available_metrics(sources: Sources, metric: str, data: DataConfig, device: str) -> Mapping[Direction, list[str]]:
    """Return the metrics that can be computed on held-out images, by direction; to find them, score black images."""
    scorer, domains = _open_scorer(sources, metric, data, device)
    names: dict[Direction, list[str]] = {}
    for direction in _DIRECTIONS:
        source, target = domains if direction == "a2b" else domains[::-1]
        pixel_format = target.images.format
        black = ImageSet(
            [np.zeros((*array.shape[:2], pixel_format.channels), pixel_format.dtype) for array in source.images.arrays],
            pixel_format,
        )
        features = scorer.extract_features(black, "")
        names[direction] = [*scorer.compute_metrics(source, target, black, features, resample=False)]
    return names


def _check_generators(method: Method, spec: Spec, name: str, base: str) -> None:
    """Raise ValueError if the method lacks the reverse generator or the reconstruction that a metric needs."""
    with torch.device("meta"):
        nets = {key: role.net for key, role in method.roles(spec, NetworkFactory()).items()}
        views = method.inference_generators(nets, spec)
    if "reconstruction" in base and views.reconstruction is None:
        raise ValueError(f"metric={name}: method={method.kind} has no reconstruction; use {SCORE}")
    if base.startswith("cycle") and (views.reconstruction is not None or len(views.generators) < 2):
        raise ValueError(f"metric={name}: method={method.kind} has no cycle; use {SCORE}")
