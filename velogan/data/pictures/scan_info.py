"""The headers of medical files: the facts that are read, and the provenance that is written into synthetic files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScanInfo:
    """Facts about a file's slices from its header; a field is empty or None if the header does not state it.

    patient: identifies the patient: the ID, else the name, else the ID of the study
    series: identifies the series and the orientation of its slices
    modality: such as CT or MR
    positions: for each slice, its position along the normal of its plane, in mm; empty if unknown
    phase: values that distinguish slices at the same position of a series
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
