"""A training does not depend on those who read its output."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest


@pytest.mark.parametrize("output", ["full disk", "closed pipe"])
def test_a_training_ends_as_usual_if_its_output_cannot_be_written(output: str, zygote, flags, same, tmp_path: Path):
    run, log = tmp_path / "run", Path("/dev/full")
    if output == "closed pipe":
        log = tmp_path / "pipe"
        os.mkfifo(log)
        Thread(target=_read_line, args=[log]).start()  # as `head -1`
    pid = zygote({"argv": flags(run), "said": str(log), "out": str(tmp_path / "out")})
    assert zygote({"wait": pid}) == 0
    assert same(run)


def _read_line(pipe: Path) -> None:
    with pipe.open() as file:
        file.readline()
