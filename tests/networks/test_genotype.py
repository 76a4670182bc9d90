from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velogan.networks.genotype import Genotype, read_genotype

A = ("conv3", "max_pool", "conv3", "dilated5", "nearest", "bilinear")
B = ("conv7", "max_pool", "conv3", "conv3", "conv5", "conv7", "nearest", "transposed3")
DISCRIMINATOR = ("conv3", "conv4", "avg_pool", "conv5")
GENOTYPE: dict[str, Any] = {
    "generators": {"a2b": A, "b2a": B},
    "discriminators": {"a2b": DISCRIMINATOR, "b2a": DISCRIMINATOR},
}


def test_reads_what_was_written(tmp_path: Path):
    genotype = Genotype(**GENOTYPE, provenance={"data": "horse2zebra", "images": 400, "entropy": [0.5, {"e": 1}]})
    (file := tmp_path / "genotype.json").write_text(genotype.to_json())
    assert read_genotype(file) == genotype


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("not JSON", "is not a genotype: Invalid JSON"),
        ({"generators": {"b2a": B}}, "generators: a2b is missing"),
        ({"generators": {"a2b": A[1:]}}, r"generators\.a2b: 5 operations do not make a generator"),
        ({"generators": {"a2b": ("conv9", *A[1:])}}, r"generators\.a2b: 'conv9', number 1 .* choose one of max_pool"),
        (
            {"discriminators": {"a2b": DISCRIMINATOR[1:]}},
            r"discriminators\.a2b: 3 operations, but .* has 4",
        ),
    ],
)
def test_rejects_invalid_genotypes_with_the_field(changed: Any, words: str, tmp_path: Path):
    tree = {**GENOTYPE, **changed} if isinstance(changed, dict) else changed
    (file := tmp_path / "genotype.json").write_text(tree if isinstance(tree, str) else json.dumps(tree))
    with pytest.raises(ValueError, match=words) as error:
        read_genotype(file)
    assert str(error.value).startswith(f"--genotype {file} ")
    assert "\n" not in str(error.value)
