"""The program and weights that the headers of synthetic scans name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """The origin of a synthetic scan: the program with its version, and the weights with their SHA-256."""

    program: str
    version: str
    weights: str
    sha256: str

    @property
    def text(self) -> str:
        """The sentences that are written into headers."""
        return (
            f"Synthetic: computed by {self.program} {self.version} from another image, with the weights "
            f"{self.weights} (SHA-256 {self.sha256}). Not acquired from a patient. Not for diagnosis."
        )
