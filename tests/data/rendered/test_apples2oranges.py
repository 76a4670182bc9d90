from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from velogan.data.pictures.images import read_picture
from velogan.data.rendered.apples2oranges import MANIFEST, RenderedScene, render, render_folder, render_truth


@pytest.fixture(scope="module")
def pictures() -> dict[str, list[RenderedScene]]:
    return {side: [render("test", side, i, image_size=64, seed=0) for i in range(48)] for side in ("A", "B")}


def decibels(first: np.ndarray, second: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((first.astype(float) - second) ** 2)))


def test_is_a_pure_function_of_its_arguments() -> None:
    first, again = (render("train", "A", 3, image_size=32, seed=5) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first, again))
    others = [("test", "A", 3, 5), ("train", "B", 3, 5), ("train", "A", 4, 5), ("train", "A", 3, 6)]
    for split, domain, index, seed in others:
        other = render(split, domain, index, image_size=32, seed=seed)  # type: ignore[arg-type]
        assert not np.array_equal(first.image, other.image)


def test_shapes_and_the_same_scene_at_any_size() -> None:
    small, large = (render("test", "A", 0, image_size=size, seed=0) for size in (64, 128))
    assert large.image.shape == large.truth.shape == (128, 128, 3)
    assert large.mask.shape == (128, 128)
    assert large.image.dtype == large.mask.dtype == np.uint8
    halved = large.image.reshape(64, 2, 64, 2, 3).mean(axis=(1, 3))
    assert decibels(halved, small.image) > 25


def test_only_the_object_differs_from_the_truth(pictures: dict[str, list[RenderedScene]]) -> None:
    for picture in pictures["A"] + pictures["B"]:
        inside = picture.mask == 255
        assert np.array_equal(inside, picture.mask > 0)
        assert np.array_equal(picture.image[~inside], picture.truth[~inside])
        assert 0.1 < inside.mean() < 0.6


def test_the_unchanged_input_scores_low(pictures: dict[str, list[RenderedScene]]) -> None:
    for side in "AB":
        scores = [decibels(p.image[p.mask > 0], p.truth[p.mask > 0]) for p in pictures[side]]
        assert 11 < np.mean(scores) < 14.5
        assert min(scores) > 9
        assert max(scores) < 17


def test_oranges_are_orange_and_similar(pictures: dict[str, list[RenderedScene]]) -> None:
    means = np.array([p.image[p.mask > 0].mean(axis=0) for p in pictures["B"]])
    assert (means[:, 0] > means[:, 1] + 30).all()
    assert (means[:, 1] > means[:, 2] + 40).all()
    assert means.std(axis=0).max() < 30


def test_backgrounds_come_from_one_distribution(pictures: dict[str, list[RenderedScene]]) -> None:
    means = {side: np.array([p.image[p.mask == 0].mean(axis=0) for p in pictures[side]]) for side in "AB"}
    assert means["A"].std(axis=0).min() > 20  # varied
    error = np.sqrt((means["A"].var(axis=0) + means["B"].var(axis=0)) / 48)
    assert (np.abs(means["A"].mean(axis=0) - means["B"].mean(axis=0)) < 3.5 * error).all()


def test_a_folder_holds_pictures_truth_and_masks(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    folder = render_folder(
        tmp_path / "set",
        count=64,  # so many that several processes render them
        test_count=2,
        image_size=8,
        test_size=16,
        seed=1,
        progress=lambda *step: steps.append(step),
    )
    assert steps == [(done, 132) for done in range(1, 133)]
    assert [len(list((folder / part).iterdir())) for part in ("trainA", "trainB", "testA", "truthB")] == [64, 64, 2, 2]
    for index in (0, 63):
        expected = render("train", "B", index, image_size=8, seed=1).image
        assert np.array_equal(read_picture(folder / f"trainB/orange-{index:05d}.png").pixels, expected)
    expected = render("test", "A", 1, image_size=16, seed=1)
    assert np.array_equal(read_picture(folder / "testA/apple-00001.png").pixels, expected.image)
    assert np.array_equal(read_picture(folder / "truthA/apple-00001.png").pixels, expected.truth)
    assert np.array_equal(read_picture(folder / "maskA/apple-00001.png").pixels[..., 0], expected.mask)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]  # nothing temporary is left


def test_a_folder_is_reused_replaced_or_rejected(tmp_path: Path) -> None:
    directory = tmp_path / "set"
    render_folder(directory, count=1, test_count=1, image_size=16, seed=0)
    before = (directory / MANIFEST).stat().st_mtime_ns
    render_folder(directory, count=1, test_count=1, image_size=16, seed=0)
    assert (directory / MANIFEST).stat().st_mtime_ns == before
    render_folder(directory, count=2, test_count=1, image_size=16, seed=0)
    assert len(list((directory / "trainA").iterdir())) == 2

    (directory / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"set is not empty and holds other things \(mine.txt\); name a folder"):
        render_folder(directory, count=1, test_count=1, image_size=16, seed=0)
    assert (directory / "mine.txt").read_text() == "precious"


def test_renders_the_truth_of_training_pictures(tmp_path: Path) -> None:
    made = render_folder(tmp_path / "set", count=3, test_count=3, image_size=32, seed=4)
    found = render_truth(made, {"A": ["apple-00001.png"], "B": ["orange-00002.png", "mine.png"]}, into=tmp_path)
    assert found is not None
    assert sorted(path.relative_to(found).as_posix() for path in found.rglob("*.png")) == [
        "maskA/apple-00001.png",
        "maskB/orange-00002.png",
        "truthA/apple-00001.png",
        "truthB/orange-00002.png",
    ]
    for letter, name in (("A", "apple-00001.png"), ("B", "orange-00002.png")):
        trained, truth, mask = (
            read_picture(folder / name).pixels
            for folder in (made / f"train{letter}", found / f"truth{letter}", found / f"mask{letter}")
        )
        inside = mask[..., 0] > 0
        assert np.array_equal(trained[~inside], truth[~inside])
        assert not np.array_equal(trained[inside], truth[inside])
    times = {path: path.stat().st_mtime_ns for path in found.rglob("*")}
    assert render_truth(made, {"A": ["apple-00001.png"], "B": ["orange-00002.png", "mine.png"]}, into=tmp_path)
    assert times == {path: path.stat().st_mtime_ns for path in found.rglob("*")}
    assert render_truth(tmp_path, {"A": ["apple-00001.png"]}, into=tmp_path) is None
