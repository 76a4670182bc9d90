from __future__ import annotations

import pytest

from velogan.networks.generators import GeneratorConfig
from velogan.networks.sizes import network_size, reference_config, widths_matching


def test_size_of_cyclegans_generator():
    """C64 has the 11.378 million parameters that the paper calls 11.378 MB of C32, which has 2.851 million."""
    assert network_size(reference_config("C64")).parameters == 11_378_179
    assert network_size(reference_config("C32")).bytes == 4 * 2_850_563


def test_macs_by_hand():
    config = GeneratorConfig(
        network="cells", blocks=0, channels=8, operations=("max_pool", "conv4", "bilinear", "transposed3")
    )
    encoder = 128**2 * 3 * 4 + 64**2 * 16 * 4 * 8
    decoder = 64**2 * 8 * 4 + 128**2 * 9 * 4 * 3  # a 1x1 convolution before the interpolation
    assert network_size(config).macs == encoder + decoder


def _cells(name: str) -> GeneratorConfig:
    return GeneratorConfig(network="cells", operations=("conv3", "conv3", *[name] * 18, "transposed3", "transposed3"))


@pytest.mark.parametrize(
    ("name", "operations"),
    [("C32", ("dilated5", "dilated5")), ("C32", ("conv7", "conv7")), ("C64", ("conv3", "conv7"))],
)
def test_widths_match_the_size_of_two_cyclegan_generators(name: str, operations: tuple[str, str]):
    generators = [_cells(operation) for operation in operations]
    widths = widths_matching(generators, reference_config(name))
    configs = [config.model_copy(update={"channels": width}) for config, width in zip(generators, widths)]
    total = sum(network_size(config).bytes for config in configs)
    assert abs(total / (2 * network_size(reference_config(name)).bytes) - 1) <= 0.01
    assert widths[1] - widths[0] in ((0,) if name == "C64" else (0, 1))  # equal if that is near enough
