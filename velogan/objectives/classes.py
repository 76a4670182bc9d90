"""Semantic consistency: a segmenter, trained at the same time, penalises translations that change classes.

CyCADA, "Cycle-Consistent Adversarial Domain Adaptation" (Hoffman et al. 2018), equation 4. There the segmenter is
trained beforehand on the labelled domain and predicts the inputs' classes; here label maps, if any, give these.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.objectives.base import LossOutput, Phase, PhaseCache
from velogan.objectives.masks import ExtraLoss
from velogan.types import Batch, Nets

SEGMENTER = "S"
"""The role of the segmenter: images of both domains `(B, C, H, W)` to logits `(B, K, H, W)`."""

SEMANTIC_LOSS_WEIGHT = 1.0
"""Weight of the penalty, as in CyCADA."""

CONFIDENCE_THRESHOLD = 0.9
"""Minimum probability of the predicted class at which a pixel counts, in a domain without label maps."""


class SemanticConsistencyLoss(ExtraLoss):
    """Adds a phase that trains the segmenter, and to phase `name` a penalty for pixels that change their class.

    A pixel's weight is the probability that the segmenter gives its label in the input; in a domain without label maps,
    the probability of the predicted class, or 0 below `CONFIDENCE_THRESHOLD`. So an untrained segmenter has little
    effect. The batch holds `label_a`, `label_b` or both, `(B, H, W)` int64, -1 for pixels without a class.
    """

    def phases(self) -> list[Phase]:
        """Return the phase of the segmenter, then the phases of the inner objective."""
        return [Phase(name="segmenter", trains=(SEGMENTER,), loss=self.segmenter_loss), *super().phases()]

    def segmenter_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """Compute the segmenter's cross-entropy on real images with label maps, and its accuracy, for the log."""
        total, terms = batch["A"].new_zeros(()), dict[str, Tensor]()
        for letter in "ab":
            if (labels := batch.get(f"label_{letter}")) is not None:
                logits = nets[SEGMENTER](batch[letter.upper()]).float()
                is_labelled = (labels >= 0).float()
                loss = weighted_cross_entropy(logits, labels, is_labelled)
                terms[f"cross_entropy_{letter}"] = loss
                terms[f"accuracy_{letter}"] = (logits.argmax(1) == labels).sum() / is_labelled.sum().clamp(min=1)
                total = total + loss
        return LossOutput(loss=total, terms=terms)

    def extra_losses(self, nets: Nets, batch: Batch, source: str, fake: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = nets[SEGMENTER](batch[source.upper()]).float()
        classes, weights = pseudo_labels(logits, batch.get(f"label_{source}"))
        loss = weighted_cross_entropy(nets[SEGMENTER](fake).float(), classes, weights)
        return {f"semantic_{source}": loss * SEMANTIC_LOSS_WEIGHT}


def pseudo_labels(logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return target classes and their weights in [0, 1], both `(B, H, W)`, from a segmenter's `logits` `(B, K, H, W)`.

    The weights are the probabilities of the classes. If `labels` are given, they are the classes, and pixels without a
    label get weight 0. Otherwise the classes are the most likely ones, and weights below `CONFIDENCE_THRESHOLD` are 0.
    """
    probabilities = logits.softmax(1)
    if labels is None:
        confidence, classes = probabilities.max(1)
        return classes, confidence * (confidence >= CONFIDENCE_THRESHOLD)
    return labels, _gather_class(probabilities, labels) * (labels >= 0)


def weighted_cross_entropy(logits: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over pixels of weight times cross-entropy. `logits` are `(B, K, H, W)`, the others `(B, H, W)`.

    The sum is divided by the number of pixels, not by the sum of weights, so that the mean over microbatches equals the
    result for the whole batch.
    """
    return -(_gather_class(F.log_softmax(logits, 1), classes) * weights).mean()


def _gather_class(values: Tensor, classes: Tensor) -> Tensor:
    """Select from `(B, K, H, W)` the value of each pixel's class, `(B, H, W)`; class 0 for pixels without a class."""
    return values.gather(1, classes.clamp(min=0)[:, None])[:, 0]
