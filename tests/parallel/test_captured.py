"""A step of two processes, recorded in pieces with the exchange between them, by `benchmarks/parted.py`."""

from __future__ import annotations

import pytest

from benchmarks import parted


def test_pieces_equal_plain_steps_bit_for_bit_and_one_process_with_both_batches():
    for found in parted.started("cpu"):
        assert found["to_plain"] == 0
        assert found["to_one"] < 1e-3
        assert found["moved"] > 0.1


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_two_processes_on_one_gpu_equal_one_with_both_batches():
    for found in parted.started("cuda"):
        assert found["device"] == "cuda"
        assert found["to_one"] < 1e-3
        assert found["half_to_plain"] < 0.1 * found["moved"], "no piece has weights of before"
        assert found["moved"] > 0.1
