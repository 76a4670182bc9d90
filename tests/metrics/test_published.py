"""Network, resize and distance of FID equal those of pytorch-fid and clean-fid, with the same random weights.

Both packages import torchvision, which must fit torch; if it does not, or one of them is missing, the tests skip.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from velogan.metrics.distances import frechet_distance
from velogan.metrics.inception import SIDE, Inception
from velogan.metrics.resize import resize_for_features

from .test_inception import random_state


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # torchvision of another torch has no operators
        pytest.skip(f"{name} cannot be imported: {str(error).splitlines()[0]}")


def _pictures(seed: int, *, count: int) -> np.ndarray:
    """Smooth pictures with edges, `(count, 70, 90, 3)` uint8."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (count, 7, 9, 3)).astype(np.uint8)
    return small.repeat(10, axis=1).repeat(10, axis=2)


def _to_tensor(pictures: np.ndarray) -> Tensor:
    return torch.from_numpy(pictures).permute(0, 3, 1, 2) / 127.5 - 1


def _resize_by_clean_fid(pictures: np.ndarray) -> Tensor:
    """Resize and scale as clean-fid does."""
    resize = _package("cleanfid.resize").build_resizer("clean")
    resized = np.stack([resize(picture) for picture in pictures])
    return (torch.from_numpy(resized).permute(0, 3, 1, 2) - 128) / 128


@pytest.fixture(scope="module")
def networks() -> tuple[Inception, torch.nn.Module]:
    """Ours and pytorch-fid's, with the same random weights."""
    module, state = _package("pytorch_fid.inception"), random_state()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_state_dict_from_url", lambda *_, **__: state)
        other = module.InceptionV3([3], resize_input=False, normalize_input=False).eval()
    return Inception(state), other


@torch.inference_mode()
def test_the_network_is_that_of_pytorch_fid(networks: tuple[Inception, torch.nn.Module]) -> None:
    net, other = networks
    images = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1)) * 2 - 1
    torch.testing.assert_close(net(images), other(images)[0].flatten(1), rtol=1e-4, atol=1e-5)


def test_the_resize_is_that_of_clean_fid() -> None:
    pictures = _pictures(0, count=2)
    ours = (resize_for_features(_to_tensor(pictures), SIDE) - 128) / 128
    torch.testing.assert_close(ours, _resize_by_clean_fid(pictures), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_the_fid_of_two_sets_is_that_of_both_packages(networks: tuple[Inception, torch.nn.Module]) -> None:
    net, other = networks
    sets = [_pictures(1, count=6), _pictures(2, count=7) // 2]
    ours = frechet_distance(*(net.extract_features(_to_tensor(pictures)) for pictures in sets))
    features = [other(_resize_by_clean_fid(pictures))[0].flatten(1).double().numpy() for pictures in sets]
    moments = [moment for values in features for moment in (values.mean(axis=0), np.cov(values, rowvar=False))]
    for name, function in (
        ("pytorch_fid.fid_score", "calculate_frechet_distance"),
        ("cleanfid.fid", "frechet_distance"),
    ):
        expected = float(getattr(_package(name), function)(*moments))
        assert ours == pytest.approx(expected, rel=1e-3), name
