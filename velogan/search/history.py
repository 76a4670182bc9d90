"""Record of an architecture search in its run folder.

RUN/architecture.jsonl    the softmax weight (share) of each operation, by network and mixed operation, per log row:
                          `{"images": 1200, "shares": {"G_A": {"model.e.0": {"max_pool": 0.12, ...}, ...}, ...}}`
RUN/genotype.json         the operations with the largest shares now, for `velogan train --genotype`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from velogan.files import write_text
from velogan.networks.genotype import Genotype

HISTORY_FILE, GENOTYPE_FILE = "architecture.jsonl", "genotype.json"

Mixture = Mapping[str, float]
"""The softmax weights (shares) of a mixed operation's candidates, by name; their sum is 1."""

Shares = Mapping[str, Mapping[str, Mixture]]
"""Softmax weights by network, mixed operation and candidate."""


class HistoryEntry(TypedDict):
    """A line of `architecture.jsonl`: the number of images seen, and the softmax weights."""

    images: int
    shares: Shares


def read_architecture(run: Path) -> list[HistoryEntry]:
    """Read the history in the folder `run`, oldest first; empty if there is no file.

    Skips damaged lines, such as an incomplete last line.
    """
    try:
        lines = (Path(run) / HISTORY_FILE).read_bytes().splitlines()
    except OSError:
        return []
    return [entry for entry in map(_parse_line, lines) if entry]


def _parse_line(line: bytes) -> HistoryEntry | None:
    try:
        row = json.loads(line)
        return HistoryEntry(images=row["images"], shares=row["shares"])
    except (ValueError, KeyError, TypeError):
        return None


class ArchitectureRecorder:
    """Writes the state of a search into the folder `run`.

    `shares` and `genotype` return the current values. `provenance` and the images seen are added to the genotype.
    """

    def __init__(
        self,
        run: Path,
        *,
        shares: Callable[[], Shares],
        genotype: Callable[[], Genotype],
        provenance: Mapping[str, Any],
    ):
        self._history, self._genotype_file = run / HISTORY_FILE, run / GENOTYPE_FILE
        self._shares, self._genotype = shares, genotype
        self._provenance = provenance
        self._last = -1

    def start(self, images: int) -> None:
        """Start, or resume at `images` seen: remove later lines from the history, then write the current state."""
        rows = [row for row in read_architecture(self._history.parent) if row["images"] <= images]
        write_text(self._history, "".join(f"{json.dumps(row)}\n" for row in rows))
        self._last = rows[-1]["images"] if rows else -1
        self.write(images)

    def write(self, images: int) -> None:
        """Append a line to the history, unless it has one for `images` images, and write the genotype."""
        if self._last < images:  # the end of a run may coincide with an interval
            self._last = images
            with open(self._history, "ab") as file:
                file.write(f"{json.dumps({'images': images, 'shares': self._shares()})}\n".encode())
        genotype = self._genotype()
        provenance = {**genotype.provenance, "images": images, **self._provenance}
        write_text(self._genotype_file, genotype.model_copy(update={"provenance": provenance}).to_json())
