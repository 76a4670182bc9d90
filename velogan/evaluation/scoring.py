"""Metrics of one translator, compared with the metrics of real images and of the unchanged input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import PixelFormat, denormalize
from velogan.data.sets.pair import Task
from velogan.data.sets.sources import DomainSource
from velogan.evaluation import per_image
from velogan.evaluation.features import FeatureNetwork
from velogan.evaluation.images import (
    DomainImages,
    ImageSet,
    Split,
    open_for_evaluation,
    open_ground_truth,
    random_subset,
    scoring_split,
)
from velogan.metrics.labels import intersection_over_union
from velogan.metrics.registry import (
    Features,
    MetricValue,
    class_name,
    class_shares,
    describe,
    image_means,
    is_share,
    label_metrics,
    lower_is_better,
    sample_patches,
    set_distances,
)
from velogan.metrics.retrieval import CHANCE
from velogan.report.scores import INPUT_METRICS
from velogan.translate.model import Translator

SPLITS: dict[Split, str] = {
    "test": "",
    "validation": "; on held-out training pictures, by which the best checkpoint was chosen",
    "train": "; on training pictures, which the run was trained on: too good for new ones",
}
"""The end of a metric's description by split: it says which pictures were scored."""


@dataclass(frozen=True)
class ReferenceScores:
    """Reference values by name of the metric, for one direction.

    `real`: for real target images, compared with the images that `real_of` describes; `baseline`: for unchanged inputs.
    """

    real: dict[str, float]
    baseline: dict[str, float]
    real_of: str


@dataclass(frozen=True)
class Scorer:
    """Scores translators on images that are preprocessed as `data` says.

    `networks`: feature networks for distances and class shares.
    `classes`: ImageNet index, by name, of each class whose share is measured.
    `limit`: maximum number of images of each domain, drawn by `seed`; None: all.
    `task`: reports progress.
    """

    data: DataConfig
    networks: Sequence[FeatureNetwork]
    classes: Mapping[str, int]
    limit: int | None
    seed: int
    task: Task

    def load(self, domain: DomainSource, other: DomainSource) -> DomainImages:
        """Load the images of `domain`, their true translations into `other` and masks if known, and their features."""
        split, source = scoring_split(domain)
        subset = random_subset(source, self.limit, self.seed)
        prepared = open_for_evaluation(subset, domain, self.data, progress=self.task(f"preparing {domain.name}"))
        images = ImageSet.from_domain(prepared)
        features = self.extract_features(images, f"extracting features of {domain.name}")
        ground_truth = open_ground_truth(domain, other, prepared.names, self.data, task=self.task)
        return DomainImages(domain, split, prepared.names, images, ground_truth, prepared.skipped, features)

    def reference_scores(self, source: DomainImages, target: DomainImages) -> ReferenceScores:
        """Score real images of `target`, and the unchanged images of `source`, as if they were translations."""
        real, real_of = self._score_real_images(len(source.images), target)
        real["retrieval"] = CHANCE
        unrelated = per_image.unrelated_structure(source, target, self.seed)
        if unrelated is not None:
            real["structure"] = unrelated
        inputs = source.images.with_channels_of(target.images)
        baseline: dict[str, MetricValue] = {}
        if inputs is not None:
            has_same_channels = inputs.format.channels == source.images.format.channels
            task_name = f"extracting features of {source.domain.name}"
            features = source.features if has_same_channels else self.extract_features(inputs, task_name)
            baseline = self.compute_metrics(source, target, inputs, features, resample=False)
        return ReferenceScores(real, {name: metric.value for name, metric in baseline.items()}, real_of)

    def _score_real_images(self, count: int, target: DomainImages) -> tuple[dict[str, float], str]:
        """Compare `target` with up to `count` training images, or its halves; return metrics and what was compared."""
        domain, name = target.domain, target.domain.name
        shares = class_shares(target.features, self.classes, seed=self.seed)
        if target.split == "train" or not domain.train.names:
            metrics = distances_between_halves(target.features, self.seed)
            real_of = f"one half of the {name} against the other"
        else:
            subset, progress = random_subset(domain.train, count, self.seed), self.task(f"preparing train {name}")
            prepared = open_for_evaluation(subset, domain, self.data, progress=progress)
            train = self.extract_features(ImageSet.from_domain(prepared), f"extracting features of train {name}")
            metrics = set_distances(train, target.features, seed=self.seed)
            real_of = f"{len(prepared)} train {name}"
        return {key: metric.value for key, metric in (metrics | shares).items()}, real_of

    def score(
        self, translator: Translator, source: DomainImages, target: DomainImages, references: ReferenceScores
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of `scores` for one translator, without the keys that identify the translator."""
        name_of_source, weights = source.domain.name, f"{translator.header.get('weights', 'own')} weights"
        fakes = self.translate_all(
            translator, source, target.images.format, f"translating {name_of_source} ({weights})"
        )
        features = self.extract_features(fakes, f"extracting features of translated {name_of_source} ({weights})")
        for name, metric in self.compute_metrics(source, target, fakes, features, resample=True).items():
            real, baseline = references.real.get(name, math.nan), references.baseline.get(name, math.nan)
            is_higher_better = not real < baseline if is_share(name) else not lower_is_better(name)
            yield {
                "name": name,
                **value_and_interval(metric),
                "real": finite_or_none(real),
                "baseline": finite_or_none(baseline),
                "images_real": len(target.images) if metric.images is None else 0,
                "images_fake": len(fakes) if metric.images is None else metric.images,
                "better": "higher" if is_higher_better else "lower",
                "split": source.split,
                "description": self._describe(name, source, target, references),
            } | self._special_keys(name, source, fakes)

    def score_reconstruction(self, autoencoder: Translator, source: DomainImages) -> Iterator[dict[str, Any]]:
        """Yield the entries of `scores` for the reconstructions of the inputs by an autoencoder."""
        domain = source.domain.name
        reconstructions = self.translate_all(autoencoder, source, source.images.format, f"reconstructing {domain}")
        values = per_image.reconstruction_metrics(source.images, reconstructions)
        for name, metric in image_means(values, seed=self.seed).items():
            yield {
                "name": name,
                **value_and_interval(metric),
                "real": None,
                "baseline": None,
                "images_real": 0,
                "images_fake": len(reconstructions),
                "better": "higher",
                "split": source.split,
                "description": f"{describe(name, source=domain, target=domain, classes={})}{SPLITS[source.split]}.",
            }

    def translate_all(
        self, translator: Translator, source: DomainImages, pixel_format: PixelFormat, task_name: str
    ) -> ImageSet:
        """Translate the images of `source` to pixels of `pixel_format`, like the command `translate`."""

        def translate(images: Tensor) -> Tensor:
            outputs = translator.translate_fast(images, rounded=pixel_format.dtype == "uint8")
            return denormalize(outputs, pixel_format.dtype, pixel_format.range).permute(0, 2, 3, 1).contiguous()

        outputs = source.images.map(translate, self.task(task_name))
        return ImageSet([image.numpy() for image in outputs], replace(pixel_format, channels=outputs[0].shape[-1]))

    def _special_keys(self, name: str, source: DomainImages, fakes: ImageSet) -> dict[str, Any]:
        """Return additional keys of a score: the class of a share; for `label_iou`, each label's accuracy and IoU."""
        labels = source.ground_truth.labels
        if is_share(name):
            return {"class": class_name(name, self.classes)}
        if name != "label_iou" or labels is None:
            return {}
        confusion = per_image.label_confusions(source, fakes, labels).sum(dim=0)
        pixels, correct = confusion.sum(dim=1), confusion.diagonal()
        colours = ((labels + 1) * 127.5).round().int().tolist()
        return {
            "classes": [
                {
                    "colour": "#" + "".join(f"{level:02x}" for level in colour),
                    "share": finite_or_none((pixels[index] / pixels.sum()).item()),
                    "accuracy": finite_or_none((correct[index] / pixels[index]).item()),
                    "iou": finite_or_none(intersection_over_union(confusion)[index].item()),
                }
                for index, colour in enumerate(colours)
            ]
        }

    def _describe(self, name: str, source: DomainImages, target: DomainImages, references: ReferenceScores) -> str:
        a, b = source.domain.name, target.domain.name
        text = describe(name, source=a, target=b, classes=self.classes)
        if name in INPUT_METRICS:
            text += f"; real against real: {b} that are unrelated to the input"
        elif name in references.real:
            text += f"; real against real: {f'real {b}' if is_share(name) else references.real_of}"
        return f"{text}{SPLITS[source.split]}."

    def compute_metrics(
        self, source: DomainImages, target: DomainImages, fakes: ImageSet, features: Features, *, resample: bool
    ) -> dict[str, MetricValue]:
        """Compute all metrics of `fakes` as translations of the images of `source`.

        `features`: features of `fakes`, see `extract_features`. `resample`: also compute intervals of distances.
        """
        labels = source.ground_truth.labels
        metrics = image_means(per_image.translation_metrics(source, fakes), seed=self.seed)
        if labels is not None:
            metrics |= label_metrics(per_image.label_confusions(source, fakes, labels), seed=self.seed)
        metrics |= set_distances(features, target.features, seed=self.seed, resample=resample)
        return metrics | class_shares(features, self.classes, seed=self.seed)

    def extract_features(self, images: ImageSet, task_name: str) -> Features:
        """Return the features and logits of images by all networks, and patches if all images have one size."""
        images = images.without_context()
        has_equal_sizes = len({array.shape for array in images.arrays}) == 1

        def extract(batch: Tensor) -> list[dict[str, Tensor]]:
            features = {name: rows for network in self.networks for name, rows in network.extract(batch).items()}
            features |= sample_patches(batch, total_images=len(images)) if has_equal_sizes else {}
            return [{name: rows[index] for name, rows in features.items()} for index in range(len(batch))]

        by_image = images.map(extract, self.task(task_name))
        return {name: torch.stack([features[name] for features in by_image]) for name in by_image[0]}


def distances_between_halves(features: Features, seed: int) -> dict[str, MetricValue]:
    """Return the distances between two random halves of a set; empty for fewer than 4 images."""
    count = len(next(iter(features.values()), ()))
    if count < 4:
        return {}
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    first, second = ({name: rows[half] for name, rows in features.items()} for half in order.chunk(2))
    return set_distances(first, second, seed=seed)


def no_progress(_name: str) -> Callable[[int, int], None]:
    """Report no progress; this is the `Task` for calls without one."""
    return lambda _done, _total: None


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def value_and_interval(metric: MetricValue) -> dict[str, Any]:
    """Return the keys `value` and `interval_95` of an entry of `scores`."""
    interval = metric.interval_95
    return {"value": finite_or_none(metric.value), "interval_95": None if interval is None else list(interval)}
