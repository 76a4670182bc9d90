from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.layers import spectrally_normalise
from velogan.networks.pretrained import find_lite, frozen_features, register_features
from velogan.networks.projected import ProjectedDiscriminator
from velogan.networks.sizes import count_parameters

pytestmark = pytest.mark.skipif(find_lite("lite0") is None, reason="the extra `features` is not installed")


def made(network: str = "projected", *, channels: int = 3, feature_size: int | None = None) -> ProjectedDiscriminator:
    torch.manual_seed(0)
    config = DiscriminatorConfig.model_validate({"network": network, "channels": 2, "feature_size": feature_size})
    net = build_discriminator(config, in_channels=channels)
    assert isinstance(net, ProjectedDiscriminator)
    return net


@pytest.mark.parametrize(
    ("shape", "sides"),
    [((64, 64), [(8, 8), (4, 4), (2, 2), (1, 1)]), ((100, 36), [(13, 5), (7, 3), (4, 2), (2, 1)])],
)
def test_a_head_halves_each_stride_of_the_features(shape: tuple[int, int], sides: list[tuple[int, int]]) -> None:
    found = made()(torch.zeros(2, 3, *shape))
    assert [tuple(logits.shape) for logits in found] == [(2, 1, *side) for side in sides]


def test_the_patchgan_stands_beside() -> None:
    *heads, patch = made("projected+basic")(torch.zeros(1, 3, 64, 64))
    assert len(heads) == 4
    assert patch.shape == (1, 1, 6, 6)


def test_gradients_reach_heads_and_images_but_no_feature() -> None:
    net, images = made(), torch.rand(1, 3, 32, 32).requires_grad_()
    torch.stack([logits.mean() for logits in net(images)]).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert len(list(net.parameters())) == 4 * 4  # weight and bias of two convolutions a head, and no feature


def test_features_belong_to_no_weights_file() -> None:
    net = made("projected+basic")
    assert sum(value.numel() for value in net.state_dict().values()) < 30_000  # the features have 3.4 million
    assert frozen_features("lite0", torch.device("cpu")) is frozen_features("lite0", torch.device("cpu"))
    config = {"network": "projected+basic", "channels": 2}
    again = build_network({"network": "discriminator", "config": config, "in_channels": 3})
    again.load_state_dict(net.state_dict())
    images = torch.rand(1, 3, 32, 32)
    for one, other in zip(net.eval()(images), again.eval()(images)):
        assert torch.equal(one, other)


def test_heads_are_spectrally_normalised() -> None:
    net = made().train()
    for _ in range(30):
        net(torch.rand(1, 3, 32, 32))
    for head in net.heads:
        weight = head[0].weight  # pyright: ignore[reportIndexIssue]
        assert torch.linalg.matrix_norm(weight.flatten(1), 2).item() == pytest.approx(1, abs=0.05)


def test_without_contents_nothing_is_iterated() -> None:
    net, empty = nn.Conv2d(3, 5, 3), nn.Conv2d(3, 5, 3, device="meta")
    assert is_parametrized(spectrally_normalise(net))
    assert not is_parametrized(spectrally_normalise(empty))
    assert count_parameters(net) == count_parameters(empty)


def _eyes(seed: int) -> tuple[nn.Module, list[str]]:
    torch.manual_seed(seed)
    convs = [nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 3, stride=2, padding=1)]
    return nn.Sequential(*convs), ["1", "2"]


def test_a_network_of_one_s_own_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    register_features("eyes", lambda: _eyes(0))
    config = DiscriminatorConfig.model_validate({"network": "projected", "channels": 2, "features": "eyes"})
    net = build_discriminator(config)
    assert [tuple(logits.shape) for logits in net(torch.zeros(1, 3, 32, 32))] == [(1, 1, 8, 8), (1, 1, 4, 4)]
    images = torch.rand(1, 3, 32, 32)
    plain, tapped = _eyes(0)
    for map_, name in zip(frozen_features("eyes", images.device).maps(images), tapped):
        torch.testing.assert_close(map_, plain[: int(name) + 1](images))  # pyright: ignore[reportIndexIssue]
    assert isinstance(net, ProjectedDiscriminator)
    others: list[nn.Module] = []
    again = net.eval().map_parts(lambda part: others.append(part) or part)
    assert all(map(torch.equal, again(images), net(images)))
    assert {type(part).__name__ for part in others} == {"Mix", "Sequential"}  # the network itself is called as it is
    saved = net.state_dict()
    register_features("eyes", lambda: _eyes(1))
    with pytest.raises(RuntimeError, match="features=eyes has other weights here"):
        build_discriminator(config).load_state_dict(saved)
    register_features("eyes", lambda: (nn.Sequential(nn.Conv2d(3, 5, 3)), ["last"]))
    with pytest.raises(ValueError, match="no layer last"):
        build_discriminator(config)


class _Twice(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (super().forward(input),) * 2


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (nn.Sequential(nn.ReLU()), "has no weights"),
        (nn.Sequential(_Twice(3, 5, 3)), "layer 0 of discriminator.features returns a tuple"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2)), r"layer 0 .* returns a tensor \(1, 12288\)"),
    ],
)
def test_a_network_that_cannot_be_looked_into_is_refused(
    net: nn.Module, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    register_features("odd", lambda: (net, ["0"]))
    with pytest.raises(ValueError, match=why):
        frozen_features("odd", torch.device("cpu"))


def test_a_layer_is_seen_before_the_next_one_writes_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    conv = nn.Conv2d(3, 5, 3)
    register_features("vgg", lambda: (nn.Sequential(conv, nn.ReLU(inplace=True)), ["0"]))
    (seen,) = frozen_features("vgg", torch.device("cpu")).maps(images := torch.rand(1, 3, 64, 64))
    torch.testing.assert_close(seen, conv(images))


def test_features_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features=lite9: unknown name; choose lite0, lite1, lite2"):
        build_discriminator(DiscriminatorConfig(network="projected", features="lite9"))


@pytest.mark.parametrize(
    ("shape", "seen"), [((72, 96), (96, 128)), ((64, 48), (128, 96)), ((32, 40), (64, 80)), ((100, 96), (100, 96))]
)
def test_small_pictures_are_seen_enlarged(shape: tuple[int, int], seen: tuple[int, int]) -> None:
    plain, large = made(), made(feature_size=96)
    images = torch.rand(2, 3, *shape)
    wanted = plain.mixed(torch.nn.functional.interpolate(images, size=seen, mode="bilinear"))
    for one, other in zip(large.mixed(images), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_patchgan_sees_them_as_they_are() -> None:
    *heads, patch = made("projected+basic", feature_size=96)(torch.zeros(1, 3, 64, 64))
    assert heads[0].shape == (1, 1, 12, 12)
    assert patch.shape == (1, 1, 6, 6)


def _traced(part: nn.Module) -> nn.Module:
    """As torch.compile takes it apart; PyTorch computes it, since compiling takes minutes."""
    return torch.compile(part, backend="eager")  # pyright: ignore[reportReturnType]


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("other", [lambda part: part, _traced])
def test_the_fast_one_sees_the_same(other: Callable[[nn.Module], nn.Module]) -> None:
    net, images = made("projected+basic", feature_size=96).eval(), torch.rand(1, 3, 64, 64)
    for one, wanted in zip(net.map_parts(other)(images), net(images), strict=True):
        assert torch.equal(one, wanted)


def test_grey_pictures_are_seen_as_colour_ones() -> None:
    net, grey = made(channels=1).eval(), torch.rand(1, 1, 32, 32)
    assert torch.equal(net(grey)[0], net(grey.repeat(1, 3, 1, 1))[0])


@pytest.mark.parametrize(
    ("count", "thirds"),
    [(2, [[0], [0, 1], [1]]), (4, [[0, 1], [1, 2], [2, 3]]), (7, [[0, 1, 2], [2, 3, 4], [4, 5, 6]])],
)
def test_of_other_channels_features_see_thirds(count: int, thirds: list[list[int]]) -> None:
    net, images = made(channels=count).eval(), torch.rand(1, count, 32, 32)
    seen = torch.stack([images[:, third].mean(1) for third in thirds], dim=1)
    assert torch.equal(net(images)[0], net(seen)[0])
