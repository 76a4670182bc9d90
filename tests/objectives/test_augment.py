from __future__ import annotations

import pytest
import torch

from velogan.objectives.augment import NUM_DRAWS, Augmentation, Augmenter

IMAGES = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_0_5_changes_neither_colours_nor_positions() -> None:
    augmenter = Augmenter(("colour", "shift"))
    torch.testing.assert_close(augmenter(IMAGES, torch.full((augmenter.num_uniforms, 2), 0.5)), IMAGES)


def test_shifts_each_image_by_its_own_numbers() -> None:
    uniform = torch.tensor([[0.0, 0.5], [0.5, 0.999]])  # rows: first image up; columns: second to the right
    augmented = Augmenter(("shift",))(IMAGES, uniform)
    assert torch.equal(augmented[0, :, :-2], IMAGES[0, :, 2:])
    assert not augmented[0, :, -2:].any()
    assert torch.equal(augmented[1, :, :, 3:], IMAGES[1, :, :, :-3])
    assert not augmented[1, :, :, :3].any()


def test_cuts_out_a_square_of_half_the_side() -> None:
    augmented = Augmenter(("cutout",))(IMAGES, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))
    zeroed = (augmented == 0).all(1)
    assert zeroed[0].sum() == 8 * 12
    assert zeroed[1, :4, :6].all()  # the rest of it lies outside
    assert zeroed[1].sum() == 4 * 6
    assert torch.equal(augmented[:, :, ~zeroed.any(0)], IMAGES[:, :, ~zeroed.any(0)])


def test_colours_by_hand() -> None:
    grey = IMAGES.mean(1, keepdim=True).expand_as(IMAGES)
    augmented = Augmenter(("colour",))(IMAGES, torch.tensor([[0.75] * 2, [0.0] * 2, [0.5] * 2]))
    torch.testing.assert_close(augmented, grey + 0.25)


@pytest.mark.parametrize("kind", list(NUM_DRAWS))
def test_gradients_reach_the_images(kind: Augmentation) -> None:
    images = IMAGES.clone().requires_grad_()
    uniform = torch.rand(NUM_DRAWS[kind], 2, generator=torch.Generator().manual_seed(0))
    Augmenter((kind,))(images, uniform).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_the_last_number_selects_the_augmented_images() -> None:
    augmenter = Augmenter(("shift",), 0.7)
    uniform = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.69, 0.71]])
    changed, unchanged = augmenter(IMAGES, uniform)
    assert torch.equal(changed, Augmenter(("shift",))(IMAGES, uniform[:2])[0])
    assert torch.equal(unchanged, IMAGES[1])
