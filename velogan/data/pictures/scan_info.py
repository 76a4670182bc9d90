"""The header of a medical file: facts to read, and the provenance to write into synthetic files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScanInfo:
    """What a file states about its slices; strings are empty and numbers None if it states nothing.

    patient: an identifier or the name
    series: the identifier of the series
    modality: such as CT or MR
    positions: those of the slices along the series, in mm; empty if unknown
    phase: values that distinguish the slices at one position of a series
    number: the file's number within the series
    times: how many volumes of equal size the file contains, one after another
    """

    patient: str = ""
    series: str = ""
    modality: str = ""
    positions: tuple[float, ...] = ()
    phase: tuple[str, ...] = ()
    number: int | None = None
    times: int = 1


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
