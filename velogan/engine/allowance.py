"""What checkpoints, scores and pictures may take of a run in minutes, where their time counts as well."""

from __future__ import annotations

from collections.abc import Sequence

SHARE = 0.1
"""The share of a run in minutes that they may take together, those at its end among them."""

MOST_KEPT = 0.5
"""At most this share of a run is kept for the calls at its end."""


class Allowance:
    """Which calls a run of so many `seconds` affords, by what a call of each kind took the last time.

    `costs` are seconds of a call of each kind, guessed; 0 where nothing is known. What is `spent` is in seconds, too.
    The same on all ranks where the costs are.
    """

    def __init__(self, seconds: float, costs: Sequence[float]) -> None:
        self.seconds, self.costs, self.spent = seconds, list(costs), 0.0

    @property
    def kept(self) -> float:
        """The seconds that are kept for one call of each kind at the end."""
        return min(sum(self.costs), MOST_KEPT * self.seconds)

    def affords(self, kind: int, *, progress: float) -> bool:
        """Whether a call of this kind may be made at `progress`, in [0, 1], of the training.

        What calls may take before the end is given out evenly: none is made at once because the next may be too dear.
        """
        return self.spent + self.costs[kind] <= max(SHARE * self.seconds - self.kept, 0.0) * progress

    def took(self, kind: int, seconds: float) -> None:
        """Notes what a call took."""
        self.spent += seconds
        self.costs[kind] = seconds
