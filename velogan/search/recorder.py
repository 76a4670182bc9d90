"""Record of an architecture search in its run folder.

RUN/architecture.jsonl    the share of every operation over time, one line at each interval of the log
RUN/genotype.json         the operations with the largest shares now, for `velogan train --genotype`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from velogan.files import write_text
from velogan.networks.genotype import Genotype
from velogan.search.history import HISTORY_FILE, HistoryEntry, Shares, read_architecture

GENOTYPE = "genotype.json"


class ArchitectureRecorder:
    """Writes the state of a search into the folder `run`.

    `shares` and `genotype` return the current ones; `provenance` is added to the genotype, with the images seen.
    """

    def __init__(
        self,
        run: Path,
        *,
        shares: Callable[[], Shares],
        genotype: Callable[[], Genotype],
        provenance: Mapping[str, Any],
    ):
        self._history, self._genotype_file = run / HISTORY_FILE, run / GENOTYPE
        self._shares, self._genotype, self._provenance = shares, genotype, provenance
        self._last = -1

    def start(self, images: int) -> None:
        """Start at `images` seen. Later lines are removed, since those images are processed again."""
        rows = [row for row in read_architecture(self._history.parent) if row["images"] <= images]
        write_text(self._history, "".join(map(_line, rows)))
        self._last = rows[-1]["images"] if rows else -1
        self.write(images)

    def write(self, images: int) -> None:
        """Append a line, unless there is one for `images`, and write the genotype."""
        if self._last < images:  # the end of a run may coincide with an interval
            self._last = images
            with open(self._history, "ab") as file:
                file.write(_line({"images": images, "shares": _rounded(self._shares())}).encode())
        genotype = self._genotype()
        provenance = {**genotype.provenance, "images": images, **self._provenance}
        write_text(self._genotype_file, genotype.model_copy(update={"provenance": provenance}).to_json())


def _rounded(shares: Shares) -> dict[str, dict[str, dict[str, float]]]:
    return {
        network: {
            name: {operation: round(share, 6) for operation, share in mixture.items()}
            for name, mixture in mixtures.items()
        }
        for network, mixtures in shares.items()
    }


def _line(row: HistoryEntry) -> str:
    return json.dumps(row) + "\n"
