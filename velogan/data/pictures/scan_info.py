"""What a medical file says of its slices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScanInfo:
    """What a file says of its slices: whose they are, of which series and kind; empty where it does not say.

    `position`: that of its first slice along the series, in mm; `number`: that of the file in the series; None where
    unknown. `times`: how many volumes of equal size the file holds, one after another.
    """

    patient: str = ""
    series: str = ""
    modality: str = ""
    position: float | None = None
    number: int | None = None
    times: int = 1
