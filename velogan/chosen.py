"""What a run chooses besides weights, kept in its folder.

RUN/architecture.jsonl    the share of every operation over time, a line at each tick of the log
RUN/genotype.json         what would be taken now, for `velogan train --genotype`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from velogan.files import write_text
from velogan.methods.base import Choice

SHARES, GENOTYPE = "architecture.jsonl", "genotype.json"

Places = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Shares by network, by place, by operation."""


class Chosen:
    """Follows the `choice` of the run in the folder `run`.

    `provenance` is written into the genotype, with the images seen. `epoch`: the images of one.
    """

    def __init__(
        self, run: Path, choice: Choice, *, epoch: int, provenance: Mapping[str, Any], say: Callable[[str], None]
    ):
        self._shares, self._genotype = run / SHARES, run / GENOTYPE
        self._choice, self._epoch, self._provenance, self._say = choice, epoch, provenance, say
        self._rows: list[dict[str, Any]] = []

    def start(self, images: int) -> None:
        """Begins at `images` seen; lines from later on are removed, since those images are seen again."""
        self._rows = [row for row in _read(self._shares) if row["images"] <= images]
        write_text(self._shares, "".join(map(_line, self._rows)))
        if not self._rows or self._rows[-1]["images"] < images:
            self._append(images)
        self._derive(images)

    def write(self, images: int) -> None:
        """Adds a line, and writes what would be taken now."""
        if self._rows[-1]["images"] < images:  # the end of a run may be a tick of the log
            self._append(images)
        self._derive(images)

    @property
    def settled(self) -> str:
        """That the run may end, as a sentence: what is chosen has not changed for long enough. Else empty."""
        if not self._choice.patience or not self._rows:
            return ""
        last = since = self._rows[-1]
        for row in reversed(self._rows):
            if _largest(row["shares"]) != _largest(last["shares"]):
                break
            since = row
        if last["images"] - since["images"] < self._choice.patience * self._epoch:
            return ""
        return f"what is chosen has not changed since {since['images']:,} images: the run ends"

    def _append(self, images: int) -> None:
        shares = {
            name: {place: {one: round(share, 6) for one, share in found.items()} for place, found in places.items()}
            for name, places in self._choice.shares().items()
        }
        self._rows.append({"images": images, "shares": shares})
        with open(self._shares, "ab") as file:
            file.write(_line(self._rows[-1]).encode())

    def _derive(self, images: int) -> None:
        made = self._choice.genotype()
        told = {**made.provenance, "images": images, **self._provenance}
        write_text(self._genotype, made.model_copy(update={"provenance": told}).text())


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _largest(shares: Places) -> dict[tuple[str, str], str]:
    """The operation with the largest share at each place."""
    return {
        (name, place): max(found, key=lambda one: found[one])
        for name, places in shares.items()
        for place, found in places.items()
    }


def _read(file: Path) -> list[dict[str, Any]]:
    """The lines of an earlier process, without one that it could not end."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if isinstance(row["images"], int) and row["shares"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
