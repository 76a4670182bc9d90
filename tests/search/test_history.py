from __future__ import annotations

import json
from pathlib import Path

from velogan.networks.cells import generator_kinds, operation_names
from velogan.search.history import HistoryEntry, read_architecture


def test_skips_damaged_lines(tmp_path: Path):
    assert read_architecture(tmp_path) == []
    mixtures = {
        f"model.{place}": dict.fromkeys(operation_names(letter), 1 / len(operation_names(letter)))
        for place, letter in enumerate(generator_kinds(9))
    }
    history = [HistoryEntry(images=images, shares={"G_A": mixtures}) for images in (10, 20, 30)]
    good = [json.dumps(entry) for entry in history]
    broken = ['{"images": 5}', "[]", good[0].replace("0.", "NaN,", 1)]
    (tmp_path / "architecture.jsonl").write_text("\n".join([*broken, *good, good[0][:100]]))
    assert read_architecture(tmp_path) == history
