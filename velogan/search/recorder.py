"""What a run chooses besides weights, kept in its folder.

RUN/architecture.jsonl    the share of every operation over time, a line at each tick of the log
RUN/genotype.json         what would be taken now, for `velogan train --genotype`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from velogan.files import counted, write_text
from velogan.methods.capabilities import Choice
from velogan.search.history import FILE, Tick, read_architecture, too_slow, unchanged_since, warnings

GENOTYPE = "genotype.json"


class Chosen:
    """Follows the `choice` of the run in the folder `run`.

    `provenance` is written into the genotype, with the images seen. `epoch`: the images of one. `rate`: the learning
    rate of the architecture weights by Adam, else None; `step`: the images of a step.
    """

    def __init__(
        self,
        run: Path,
        choice: Choice,
        *,
        epoch: int,
        provenance: Mapping[str, Any],
        rate: float | None,
        step: int,
        say: Callable[[str], None],
    ):
        self._run, self._shares, self._genotype = run, run / FILE, run / GENOTYPE
        self._choice, self._epoch, self._provenance, self._say = choice, epoch, provenance, say
        self._rate, self._step = rate, step
        self._rows: list[Tick] = []
        self._length: int | None = None
        self._told: set[str] = set()

    def start(self, images: int, *, length: int | None) -> None:
        """Begins at `images` seen, in a run of `length` images, if that is known.

        Lines from later on are removed, since those images are seen again.
        """
        self._length = length
        if length and self._rate is not None and (slow := too_slow(self._rate, steps=length // self._step)):
            self._say(slow)
        self._rows = [row for row in read_architecture(self._run) if row["images"] <= images]
        write_text(self._shares, "".join(map(_line, self._rows)))
        if not self._rows or self._rows[-1]["images"] < images:
            self._append(images)
        self._derive(images)

    def write(self, images: int) -> None:
        """Adds a line, writes what would be taken now, and says once what looks wrong."""
        if self._rows[-1]["images"] < images:  # the end of a run may be a tick of the log
            self._append(images)
        self._derive(images)
        for sentence in warnings(self._rows, length=self._length):
            if sentence not in self._told:
                self._told.add(sentence)
                self._say(sentence)

    @property
    def settled(self) -> str:
        """That the run may end, as a sentence: what is chosen has not changed for long enough. Else empty."""
        if not self._choice.patience or not self._rows:
            return ""
        since = unchanged_since(self._rows)
        if self._rows[-1]["images"] - since < self._choice.patience * self._epoch:
            return ""
        return f"what is chosen has not changed since {counted(since, 'image')}: the run ends"

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
