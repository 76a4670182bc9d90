from __future__ import annotations

import pytest

from velogan.networks.generators import GeneratorConfig
from velogan.networks.sizes import network_size, reference_config, size_table, widths_matching


def test_the_size_of_cyclegan_s_generator():
    """C64 has the 11.378 million parameters that the paper calls 11.378 MB of C32, which has 2.851 million."""
    assert network_size(reference_config("C64")).parameters == 11_378_179
    assert network_size(reference_config("C32")).bytes == 4 * 2_850_563


def test_multiplications_by_hand():
    config = GeneratorConfig(
        network="cells", blocks=0, channels=8, operations=("max_pool", "conv4", "bilinear", "transposed3")
    )
    encoder = 128**2 * 3 * 4 + 64**2 * 16 * 4 * 8
    decoder = 64**2 * 8 * 4 + 128**2 * 9 * 4 * 3  # a 1x1 convolution before the pixels are doubled
    assert network_size(config).macs == encoder + decoder


def _cells(name: str) -> GeneratorConfig:
    return GeneratorConfig(network="cells", operations=("conv3", "conv3", *[name] * 18, "transposed3", "transposed3"))


@pytest.mark.parametrize(
    ("name", "operations"),
    [("C32", ("dilated5", "dilated5")), ("C32", ("conv7", "conv7")), ("C64", ("conv3", "conv7"))],
)
def test_two_generators_are_made_as_large_as_two_of_cyclegan(name: str, operations: tuple[str, str]):
    generators = [_cells(one) for one in operations]
    widths = widths_matching(generators, reference_config(name))
    made = sum(network_size(one.model_copy(update={"channels": width})).bytes for one, width in zip(generators, widths))
    assert abs(made / (2 * network_size(reference_config(name)).bytes) - 1) <= 0.01
    assert widths[1] - widths[0] in (0, 1)


def test_widths_are_equal_where_that_is_near_enough():
    first, second = widths_matching([_cells("conv3"), _cells("conv7")], reference_config("C64"))
    assert first == second


def test_sizes_between_which_none_is_are_refused():
    with pytest.raises(ValueError, match=r"at widths 1 and 2, and the nearest differs by .* %: match a larger size"):
        widths_matching([_cells("conv7")], GeneratorConfig(channels=1))
    with pytest.raises(ValueError, match="--match-size 64: write C and the width"):
        reference_config("64")


def test_the_table_says_how_unequal_the_generators_are():
    sizes = [network_size(GeneratorConfig(channels=channels, blocks=0)) for channels in (2, 4)]
    text = size_table(sizes, ("a2b", "b2a"))
    assert f"{sizes[0].parameters:,}" in text
    assert f"asymmetry: b2a has {sizes[1].bytes / sizes[0].bytes:.3f} times the bytes of a2b" in text
