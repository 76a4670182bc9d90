"""What a medical file states about its slices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScanInfo:
    """What a file states about its slices; strings are empty and numbers None if it states nothing.

    patient: an identifier or the name
    series: the identifier of the series
    modality: such as CT or MR
    positions: those of the slices along the series, in mm; empty if unknown
    phase: what tells slices at one position of a series apart
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
