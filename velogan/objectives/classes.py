"""Classes that keep their place: a segmenter, trained along on label maps, judges translations.

CyCADA, "Cycle-Consistent Adversarial Domain Adaptation" (Hoffman et al. 2018), equation 4: what a segmenter sees in a
translation is to be what there was in its input. There the segmenter is trained before, on the labelled domain, and
says what there was; here it is trained along, and where label maps say what there was, these are believed.
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
"""Of the term, as in CyCADA."""

CONFIDENCE_THRESHOLD = 0.9
"""The least probability of a class that the segmenter is believed where there is no label map."""


class SemanticConsistencyLoss(ExtraLoss):
    """A phase more, before all others, trains the segmenter on label maps.

    The phase `name` also pays for each pixel of a translation that the segmenter takes for another class than its
    input had there. A pixel counts as far as the segmenter knows it, by the probability that it gives of the input for
    the label; in a domain without label maps, for what it tells itself, if it is sure. So a segmenter that knows
    little yet teaches little.

    The batch holds `label_a`, `label_b` or both, `(B, H, W)`, -1 where a pixel has no class.
    """

    def phases(self) -> list[Phase]:
        """That of the segmenter, and those of the inner objective."""
        return [Phase(name="segmenter", trains=(SEGMENTER,), loss=self.segmenter_loss), *super().phases()]

    def segmenter_loss(self, nets: Nets, batch: Batch, cache: PhaseCache) -> LossOutput:
        """The cross-entropy of real pictures with their label maps; `right`: the share of labelled pixels."""
        total, terms = batch["A"].new_zeros(()), dict[str, Tensor]()
        for letter in "ab":
            if (labels := batch.get(f"label_{letter}")) is not None:
                logits = nets[SEGMENTER](batch[letter.upper()]).float()
                told = (labels >= 0).float()
                loss = weighted_cross_entropy(logits, labels, told)
                terms[f"classes_{letter}"] = loss
                terms[f"right_{letter}"] = (logits.argmax(1) == labels).sum() / told.sum().clamp(min=1)
                total = total + loss
        return LossOutput(loss=total, logged=terms)

    def extra_losses(self, nets: Nets, batch: Batch, letter: str, fake: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            logits = nets[SEGMENTER](batch[letter.upper()]).float()
        seen = pseudo_labels(logits, batch.get(f"label_{letter}"))
        return {
            f"classes_{letter}": weighted_cross_entropy(nets[SEGMENTER](fake).float(), *seen) * SEMANTIC_LOSS_WEIGHT
        }


def pseudo_labels(logits: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """What a segmenter knows of pictures by its `logits`, `(B, K, H, W)`: classes, and how far, 0 to 1, `(B, H, W)`.

    With `labels` the classes are these; without, what it tells, and it knows only what it is sure of.
    """
    shares = logits.softmax(1)
    if labels is None:
        sure, told = shares.max(1)
        return told, sure * (sure >= CONFIDENCE_THRESHOLD)
    return labels, _of(shares, labels) * (labels >= 0)


def weighted_cross_entropy(logits: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """The cross-entropy of `logits` `(B, K, H, W)` with `classes`, times `weights`, both `(B, H, W)`: a mean.

    It is one over all pixels, whatever they weigh: so the mean over the parts of a batch is that of the batch.
    """
    return -(_of(F.log_softmax(logits, 1), classes) * weights).mean()


def _of(values: Tensor, classes: Tensor) -> Tensor:
    """The value of each pixel's class, of `(B, K, H, W)`; that of class 0 where there is none."""
    return values.gather(1, classes.clamp(min=0)[:, None])[:, 0]
