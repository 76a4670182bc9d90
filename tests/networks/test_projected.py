from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from velogan.networks.build import build_network
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.pretrained import find_lite, frozen_features, register_features
from velogan.networks.projected import ProjectedDiscriminator

pytestmark = pytest.mark.skipif(find_lite("lite0") is None, reason="the extra `features` is not installed")


def build(network: str = "projected", *, channels: int = 3, feature_size: int | None = None) -> ProjectedDiscriminator:
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
    outputs = build()(torch.zeros(2, 3, *shape))
    assert [tuple(logits.shape) for logits in outputs] == [(2, 1, *side) for side in sides]


def test_gradients_reach_heads_and_images_but_not_features() -> None:
    net, images = build(), torch.rand(1, 3, 32, 32).requires_grad_()
    torch.stack([logits.mean() for logits in net(images)]).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert len(list(net.parameters())) == 4 * 4  # weight and bias of two convolutions per head
    convolutions = [layer for layer in net.heads.modules() if isinstance(layer, nn.Conv2d)]
    assert all(is_parametrized(layer, "weight") for layer in convolutions), "spectral norm"


def test_features_are_shared_and_not_saved() -> None:
    net = build("projected+basic")
    assert sum(value.numel() for value in net.state_dict().values()) < 30_000  # the features have 3.4 million
    assert frozen_features("lite0", torch.device("cpu")) is frozen_features("lite0", torch.device("cpu"))
    config = {"network": "projected+basic", "channels": 2}
    rebuilt = build_network({"network": "discriminator", "config": config, "in_channels": 3})
    rebuilt.load_state_dict(net.state_dict())
    images = torch.rand(1, 3, 32, 32)
    assert all(map(torch.equal, net.eval()(images), rebuilt.eval()(images)))


def _custom(seed: int) -> tuple[nn.Module, list[str]]:
    torch.manual_seed(seed)
    convs = [nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(5, 7, 3, stride=2, padding=1)]
    return nn.Sequential(*convs), ["1", "2"]


def test_registered_feature_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    register_features("custom", lambda: _custom(0))
    config = DiscriminatorConfig.model_validate({"network": "projected", "channels": 2, "features": "custom"})
    net = build_discriminator(config)
    assert [tuple(logits.shape) for logits in net(torch.zeros(1, 3, 32, 32))] == [(1, 1, 8, 8), (1, 1, 4, 4)]
    images = torch.rand(1, 3, 32, 32)
    plain, layers = _custom(0)
    for features, name in zip(frozen_features("custom", images.device).maps(images), layers):
        torch.testing.assert_close(features, plain[: int(name) + 1](images))  # pyright: ignore[reportIndexIssue]
    assert isinstance(net, ProjectedDiscriminator)
    parts: list[nn.Module] = []
    mapped = net.eval().map_parts(lambda part: parts.append(part) or part)
    assert all(map(torch.equal, mapped(images), net(images)))
    assert {type(part).__name__ for part in parts} == {"Mix", "Sequential"}  # not the feature network, which is unknown
    saved = net.state_dict()
    register_features("custom", lambda: _custom(1))
    with pytest.raises(RuntimeError, match="features=custom has other weights here"):
        build_discriminator(config).load_state_dict(saved)
    register_features("custom", lambda: (nn.Sequential(nn.Conv2d(3, 5, 3)), ["last"]))
    with pytest.raises(ValueError, match="no layer last"):
        build_discriminator(config)


class _TwoOutputs(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (super().forward(input),) * 2


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.ReLU()), "has no weights"),
        (nn.Sequential(_TwoOutputs(3, 5, 3)), "layer 0 of discriminator.features returns a tuple"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2)), r"layer 0 .* returns a tensor \(1, 12288\)"),
    ],
)
def test_rejects_feature_networks_without_maps(net: nn.Module, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    register_features("custom", lambda: (net, ["0"]))
    with pytest.raises(ValueError, match=message):
        frozen_features("custom", torch.device("cpu"))


def test_rejects_unknown_features() -> None:
    with pytest.raises(ValueError, match=r"features=lite9: unknown name; choose lite0, lite1, lite2"):
        build_discriminator(DiscriminatorConfig(network="projected", features="lite9"))


@pytest.mark.parametrize(
    ("shape", "enlarged"), [((72, 96), (96, 128)), ((64, 48), (128, 96)), ((32, 40), (64, 80)), ((100, 96), (100, 96))]
)
def test_enlarges_small_images_for_the_features(shape: tuple[int, int], enlarged: tuple[int, int]) -> None:
    plain, large = build(), build(feature_size=96)
    images = torch.rand(2, 3, *shape)
    expected = plain.mix_features(torch.nn.functional.interpolate(images, size=enlarged, mode="bilinear"))
    for features, target in zip(large.mix_features(images), expected, strict=True):
        torch.testing.assert_close(features, target, rtol=1e-4, atol=1e-4)


def _traced(part: nn.Module) -> nn.Module:
    """Traced by torch.compile, but run in eager mode: compilation takes minutes."""
    return torch.compile(part, backend="eager")  # pyright: ignore[reportReturnType]


@pytest.mark.filterwarnings("ignore")  # torch.compile's own
@pytest.mark.parametrize("function", [lambda part: part, _traced])
def test_mapped_parts_compute_the_same(function: Callable[[nn.Module], nn.Module]) -> None:
    net, images = build("projected+basic", feature_size=96).eval(), torch.rand(1, 3, 64, 64)
    assert all(map(torch.equal, net.map_parts(function)(images), net(images)))


@pytest.mark.parametrize(
    ("count", "thirds"),
    [
        (1, [[0], [0], [0]]),
        (2, [[0], [0, 1], [1]]),
        (4, [[0, 1], [1, 2], [2, 3]]),
        (7, [[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
    ],
)
def test_features_get_means_of_thirds_of_the_channels(count: int, thirds: list[list[int]]) -> None:
    net, images = build(channels=count).eval(), torch.rand(1, count, 32, 32)
    three = torch.stack([images[:, third].mean(1) for third in thirds], dim=1)
    assert torch.equal(net(images)[0], net(three)[0])


def test_spectral_norms_of_heads_are_1() -> None:
    net = build().train()
    for _ in range(30):
        net(torch.rand(1, 3, 32, 32))
    for head in net.heads:
        weight = head[0].weight  # pyright: ignore[reportIndexIssue]
        assert torch.linalg.matrix_norm(weight.flatten(1), 2).item() == pytest.approx(1, abs=0.05)


def test_the_output_of_a_layer_is_not_changed_by_the_next_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velogan.networks.pretrained._BUILDERS", {})
    conv = nn.Conv2d(3, 5, 3)
    register_features("vgg", lambda: (nn.Sequential(conv, nn.ReLU(inplace=True)), ["0"]))
    (features,) = frozen_features("vgg", torch.device("cpu")).maps(images := torch.rand(1, 3, 64, 64))
    torch.testing.assert_close(features, conv(images))
