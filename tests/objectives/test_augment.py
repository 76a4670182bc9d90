from __future__ import annotations

import pytest
import torch

from velogan.objectives.augment import DRAWS, RISE, Augmentation, Augmenter, augment, draws

IMAGES = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_numbers_in_the_middle_change_no_colour_and_no_place() -> None:
    kinds: list[Augmentation] = ["colour", "shift"]
    middle = torch.full((draws(kinds), 2), 0.5)
    torch.testing.assert_close(augment(IMAGES, middle, kinds), IMAGES)


def test_each_image_is_shifted_by_its_own_numbers() -> None:
    uniform = torch.tensor([[0.0, 0.5], [0.5, 0.999]])  # rows: first image up; columns: second to the right
    found = augment(IMAGES, uniform, ["shift"])
    assert torch.equal(found[0, :, :-2], IMAGES[0, :, 2:])
    assert not found[0, :, -2:].any()
    assert torch.equal(found[1, :, :, 3:], IMAGES[1, :, :, :-3])
    assert not found[1, :, :, :3].any()


def test_a_cutout_is_a_square_of_half_the_side() -> None:
    found = augment(IMAGES, torch.tensor([[0.5, 0.0], [0.5, 0.0]]), ["cutout"])
    gone = (found == 0).all(1)
    assert gone[0].sum() == 8 * 12
    assert gone[1, :4, :6].all()  # the rest of it lies outside
    assert gone[1].sum() == 4 * 6
    assert torch.equal(found[:, :, ~gone.any(0)], IMAGES[:, :, ~gone.any(0)])


def test_colours_by_hand() -> None:
    grey = IMAGES.mean(1, keepdim=True).expand_as(IMAGES)
    found = augment(IMAGES, torch.tensor([[0.75] * 2, [0.0] * 2, [0.5] * 2]), ["colour"])
    torch.testing.assert_close(found, grey + 0.25)


@pytest.mark.parametrize("kind", list(DRAWS))
def test_gradients_reach_the_images(kind: Augmentation) -> None:
    images = IMAGES.clone().requires_grad_()
    augment(images, torch.rand(DRAWS[kind], 2, generator=torch.Generator().manual_seed(0)), [kind]).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_a_probability_of_one_is_no_probability() -> None:
    always = Augmenter(["shift"], 1.0, judges=2, threshold=0.0)
    uniform = torch.rand(always.count, 2, generator=torch.Generator().manual_seed(0))
    assert always.count == draws(["shift"])
    assert torch.equal(always(IMAGES, uniform, judge=0), augment(IMAGES, uniform, ["shift"]))
    assert not always.state_dict()
    assert not always.adapt(torch.ones(2, 1, 3, 3), judge=0)


def test_the_last_number_decides_for_each_image() -> None:
    often = Augmenter(["shift"], 0.7, judges=1, threshold=0.0)
    uniform = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.69, 0.71]])
    changed, kept = often(IMAGES, uniform, judge=0)
    assert torch.equal(changed, augment(IMAGES, uniform[:2], ["shift"])[0])
    assert torch.equal(kept, IMAGES[1])


def test_a_discriminator_that_is_too_sure_sees_more_changes() -> None:
    adaptive = Augmenter(["colour"], "adaptive", judges=2, threshold=0.5)
    uniform = torch.zeros(adaptive.count, 2)
    assert torch.equal(adaptive(IMAGES, uniform, judge=1), IMAGES)
    right, wrong = torch.full((2, 1, 2, 2), 0.6), torch.full((2, 1, 2, 2), 0.4)
    seen = [adaptive.adapt(logits, judge=1)["augment"].item() for logits in (right, right, wrong, wrong, wrong)]
    assert seen == pytest.approx([2 / RISE, 4 / RISE, 2 / RISE, 0, 0])
    adaptive.adapt([right, wrong], judge=1)  # the mean sign of the heads is 0
    assert adaptive.probabilities.tolist() == [0, 0]
    for _ in range(RISE):
        adaptive.adapt(right, judge=1)
    assert adaptive.probabilities.tolist() == [0, 1]
    assert torch.equal(adaptive(IMAGES, uniform, judge=1), augment(IMAGES, uniform[:-1], ["colour"]))


def test_logits_that_broke_leave_a_probability() -> None:
    adaptive = Augmenter(["colour"], "adaptive", judges=1, threshold=0.0)
    adaptive.adapt(torch.full((1, 1, 2, 2), torch.nan), judge=0)
    assert adaptive.probabilities.tolist() == [0]
