"""The score on held-out training images, by which the best checkpoint is chosen."""

from __future__ import annotations

from collections.abc import Set
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from velogan.config import Config
from velogan.data.sets.loader import crop_shape
from velogan.data.sets.sources import MIN_TO_HOLD_OUT, Sources
from velogan.evaluation.features import JUDGE
from velogan.evaluation.images import open_for_evaluation
from velogan.evaluation.samples import center_crops, common_size, translate_for_grid
from velogan.methods.base import InferenceGenerators
from velogan.metrics.failures import failure_signs
from velogan.metrics.sliced import feature_map_distance, sliced_wasserstein
from velogan.networks.pretrained import LITE_SHA256, find_lite, frozen_features, to_three_channels
from velogan.report.scores import FEATURE_SCORE, IDENTITY_SCORE, SCORE
from velogan.types import Direction

_FEATURE_BATCH_SIZE = 8


class Validation:
    """Scores the averaged generators of `views` on the held-out images of both domains.

    The score is the sliced Wasserstein distance from translations to real images, averaged over scales and directions.
    If a discriminator uses a pretrained network's features, the same distance over feature maps is logged too, and
    chooses the best checkpoint: patches of pixels did not distinguish stripes from grain (benchmarks/LOG.md). The
    network of these maps is `JUDGE` where possible, see `_choose_features`. Both scores compare sets of images and do
    not measure how much of an image's content a translation keeps, since any weight between the two would be arbitrary.
    The mean absolute error of the cycle or of the reconstruction is logged as well, and signs of failure
    (`metrics.failures`).
    `description` says which images are scored; it is empty if there are none, and `disabled_reason` says why.
    """

    def __init__(self, config: Config, sources: Sources, views: InferenceGenerators):
        self.method, self.spec = config.method, config.spec
        self.views = views
        self.device, self.bf16 = config.engine.device, config.engine.precision == "bf16"
        data, spec = config.data, config.spec
        self.features = _choose_features(
            {config.features for config in spec.discriminators.values() if "projected" in config.network}
        )
        self.name = FEATURE_SCORE if self.features else SCORE
        self.description = self.disabled_reason = ""
        if sources.a.validation is None or sources.b.validation is None:
            is_small = min(len(domain.train.names) for domain in (sources.a, sources.b)) < MIN_TO_HOLD_OUT
            reason = f"a domain has fewer than {MIN_TO_HOLD_OUT} training pictures" if is_small else "data.validation=0"
            self.disabled_reason = f"no pictures are held out ({reason}): no checkpoint will be chosen as best"
            return
        try:
            a = open_for_evaluation(sources.a.validation, sources.a, data)
            b = open_for_evaluation(sources.b.validation, sources.b, data)
        except ValueError as error:
            self.disabled_reason = f"no checkpoint will be chosen as best: {error}"
            return
        shapes = [*a.shapes, *b.shapes]  # training sees a window of each
        size = common_size([*shapes, *(crop_shape(data, shape) for shape in shapes)], spec.multiple)
        self.a, self.b = center_crops(a, size), center_crops(b, size)
        judge = f", by {self.features}" if self.features else ""
        self.description = f"{len(self.a)} held-out {sources.a.name} and {len(self.b)} held-out {sources.b.name}{judge}"
        self._cached_maps: tuple[list[Tensor], list[Tensor]] | None = None
        self._cached_baseline: dict[str, float] | None = None

    def score(self) -> dict[str, Any]:
        """Compute the metrics for the log; the metric `self.name` chooses the best checkpoint.

        Distances are in units of the standard deviation of real images.
        """
        third_output = "reconstruction" if self.views.reconstruction else "cycle"
        distances: dict[str, float] = {}
        feature_distances: dict[str, float] = {}
        errors: dict[str, float] = {}
        failures: dict[str, float] = {}
        for direction, real, target in self._inputs_and_targets():
            fake, third = translate_for_grid(real, direction, self.views, device=self.device, bf16=self.bf16)
            if direction in self.method.directions:
                distances[f"{SCORE}_{direction}"] = self.distance(direction, fake, target)
                if self.features:
                    expected_maps = self._real_maps()[target is self.b]
                    distance = feature_map_distance(self._feature_maps(fake), expected_maps)
                    feature_distances[f"{FEATURE_SCORE}_{direction}"] = distance
                signs = failure_signs(fake, real, target)
                failures |= {f"failure/{name}_{direction}": value for name, value in signs.items()}
            if third is not None:
                errors[f"validation/{third_output}_{direction[0]}"] = (third - real).abs().mean().item()
        scores = {SCORE: fmean(distances.values()), **distances}
        if feature_distances:
            scores |= {FEATURE_SCORE: fmean(feature_distances.values()), **feature_distances}
        return {**scores, **errors, **failures, **self.identity_baseline()}

    def identity_baseline(self) -> dict[str, float]:
        """Return the scores of the unchanged inputs; empty if the images of A and B differ in shape."""
        if self._cached_baseline is None:
            self._cached_baseline = {}
            if self.a.shape[1:] == self.b.shape[1:]:
                a, b = self._real_maps() if self.features else (self.a, self.b)
                distance = feature_map_distance if self.features else _patch_distance
                pairs = {"a2b": (a, b), "b2a": (b, a)}
                scores = {
                    f"{IDENTITY_SCORE}_{direction}": distance(*pairs[direction])  # pyright: ignore[reportArgumentType]
                    for direction in self.method.directions
                }
                self._cached_baseline = {IDENTITY_SCORE: fmean(scores.values()), **scores}
        return self._cached_baseline

    def distance(self, direction: Direction, fake: Tensor, expected: Tensor) -> float:
        """Return the distance between patches of the translations `fake` and of the images `expected`."""
        return _patch_distance(fake, expected)

    def _inputs_and_targets(self) -> tuple[tuple[str, Tensor, Tensor], tuple[str, Tensor, Tensor]]:
        """Return (direction, inputs, target images) from A and from B; b2b if b2a is not learned."""
        from_b = "b2a" if "b2a" in self.method.directions else "b2b"
        return ("a2b", self.a, self.b), (from_b, self.b, self.a)

    def _real_maps(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the feature maps of both domains' held-out images, computed once."""
        if self._cached_maps is None:
            self._cached_maps = self._feature_maps(self.a), self._feature_maps(self.b)
        return self._cached_maps

    @torch.inference_mode()
    def _feature_maps(self, images: Tensor) -> list[Tensor]:
        """Return the pretrained network's feature maps `(N, c, h, w)` of `(N, C, H, W)` in [-1, 1], finest first."""
        assert self.features
        device = torch.device(self.device)
        extract = frozen_features(self.features, device).maps
        batches = [extract(to_three_channels(batch.to(device))) for batch in images.split(_FEATURE_BATCH_SIZE)]
        return [torch.cat([maps.float().cpu() for maps in level]) for level in zip(*batches)]


def _patch_distance(fake: Tensor, real: Tensor) -> float:
    return fmean(sliced_wasserstein(fake, real))


def _choose_features(used: Set[str]) -> str | None:
    """Return the network whose feature maps are compared; None if no discriminator uses pretrained features.

    This is `JUDGE` if it is installed and the networks `used` by discriminators are other EfficientNet-Lites. Otherwise
    it is one of `used`, even a custom network, since `JUDGE` may not suit the images of a custom network.
    """
    is_judge_usable = JUDGE not in used and used <= set(LITE_SHA256) and find_lite(JUDGE) is not None
    return JUDGE if used and is_judge_usable else min(used, default=None)
