"""Uncertainty maps: high where the model cannot give its input back, and files that take no picture's place."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from velogan.data.pictures.images import Picture
from velogan.data.sets.sources import list_images
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.translate.maps import find_map_jobs, write_maps
from velogan.translate.uncertainty import UncertaintyEstimator, UncertaintyMap

from ..models import in_memory


class GreysBlue(nn.Module):
    """Leaves all as it is but pure blue, which becomes grey."""

    def forward(self, x: Tensor) -> Tensor:
        blue = (x[:, 2:] > 0.9) & (x[:, :1] < -0.9)
        return torch.where(blue, torch.zeros_like(x), x)


def _estimator(net: nn.Module) -> UncertaintyEstimator:
    return UncertaintyEstimator(in_memory(net), lambda _images, results: results)


def _picture(size: tuple[int, int] = (40, 56)) -> np.ndarray:
    return np.random.default_rng(0).integers(40, 200, (*size, 3), dtype=np.uint8)


def test_maps_are_high_where_the_reconstruction_fails():
    pixels = _picture()
    pixels[20:30, 30:40] = (0, 0, 255)
    uncertainty = _estimator(GreysBlue()).estimate(Picture(pixels))
    planted = np.zeros(pixels.shape[:2], bool)
    planted[20:30, 30:40] = True
    assert uncertainty.map.shape == planted.shape
    assert (uncertainty.map[planted] == 255).all()
    assert not uncertainty.map[~planted].any()
    assert uncertainty.mean == pytest.approx(100 / planted.size)
    patch = uncertainty.highest
    assert (patch.x, patch.y, patch.width, patch.height, patch.mean) == (30, 20, 5, 5, 1)


def test_maps_are_high_if_results_do_not_shift_with_the_input():
    class Stripes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.clone()
            y[..., ::4] *= -1
            return y

    stripes, constant = (
        UncertaintyEstimator(in_memory(net), lambda images, _results: images).estimate(Picture(_picture()))
        for net in (Stripes(), nn.Identity())
    )
    assert stripes.map[:, ::4].mean() > 20
    assert constant.mean == 0


def test_maps_are_deterministic_at_any_size():
    maps = []
    for _ in range(2):
        torch.manual_seed(0)
        net = build_generator(GeneratorConfig(channels=4, blocks=1)).eval()
        estimator = _estimator(net)
        maps.append([estimator.estimate(Picture(_picture(size))).map for size in ((21, 34), (5, 3), (1, 1), (21, 34))])
    for one, other in zip(*maps):
        assert np.array_equal(one, other)
    assert np.array_equal(maps[0][0], maps[0][-1])
    assert maps[0][0].std() > 0


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of two pictures, and one with their translations."""
    for name in ("in/a.png", "in/deep/b.jpg", "out/a.png", "out/deep/b.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_picture()).save(tmp_path / name)
    return tmp_path / "in", tmp_path / "out"


def test_maps_are_written_beside_results_and_not_listed_as_pictures(folders: tuple[Path, Path]):
    source, target = folders
    estimator = _estimator(GreysBlue())
    results = write_maps(estimator, find_map_jobs(source, target))
    assert [result.file for result in results] == [target / "a.uncertainty.png", target / "deep/b.uncertainty.png"]
    assert list_images(target) == ("a.png", "deep/b.jpg")
    assert [result.reason for result in results] == ["", ""]
    for result in results:
        assert result.uncertainty is not None
        assert np.array_equal(np.asarray(Image.open(result.file)), result.uncertainty.map)


def test_maps_are_kept_until_the_translation_is_newer(folders: tuple[Path, Path]):
    source, target = folders
    jobs = find_map_jobs(source, target)
    write_maps(_estimator(GreysBlue()), jobs)
    old = [file.stat().st_mtime_ns for _, file in jobs]
    kept = write_maps(_estimator(GreysBlue()), jobs)
    assert [file.stat().st_mtime_ns for _, file in jobs] == old
    assert all(isinstance(one.uncertainty, UncertaintyMap) for one in kept)
    os.utime(target / "a.png", ns=(old[0] + 10, old[0] + 10))
    os.utime(jobs[0][1], ns=(old[0], old[0]))
    write_maps(_estimator(GreysBlue()), jobs)
    assert jobs[0][1].stat().st_mtime_ns > old[0]
    assert jobs[1][1].stat().st_mtime_ns == old[1]
    assert len(write_maps(_estimator(GreysBlue()), jobs, excluded=["a.png"])) == 1


def test_reports_a_picture_with_the_name_of_a_map(folders: tuple[Path, Path]):
    source, target = folders
    picture = target / "a.uncertainty.png"
    Image.fromarray(_picture()[..., 0]).save(picture)
    before = picture.read_bytes()
    results = write_maps(_estimator(GreysBlue()), find_map_jobs(source, target), overwrite=True)
    assert "is not an uncertainty map: move it" in results[0].reason
    assert results[1].reason == ""
    assert picture.read_bytes() == before


def test_reports_pictures_without_a_map(folders: tuple[Path, Path]):
    source, target = folders
    results = write_maps(_estimator(GreysBlue()), find_map_jobs(source, target), tile=32)
    assert all("translated in tiles" in result.reason and not result.file.exists() for result in results)
    (source / "a.png").write_bytes(b"no picture")
    assert write_maps(_estimator(GreysBlue()), find_map_jobs(source, target))[0].reason
    Image.fromarray(_picture()).save(source / "a.jpg")
    with pytest.raises(ValueError, match=r"a\.jpg and a\.png would both have the map .*a\.uncertainty\.png: rename"):
        find_map_jobs(source, target)
