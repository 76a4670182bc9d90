from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from velogan.kernels import shared_casts
from velogan.kernels.shared_casts import SharedCastConvolutions, fits_shared_cast


class _Net(nn.Module):
    """Two convolutions, one of them transposed and with a bias, by steps that share casts."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 20, 3, stride=2, padding=1, bias=False)
        self.up = nn.ConvTranspose2d(20, 5, 3, stride=2, padding=1, output_padding=1)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.shared = SharedCastConvolutions()
        self.steps = [self.shared.step(self.down, has_bias=False), self.shared.step(self.up, has_bias=True)]

    def forward(self, x: Tensor) -> Tensor:
        with self.shared.hold_casts(x):
            for step in self.steps:
                x = step(x)
        return x

    def plain(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class _Casts(TorchDispatchMode):
    """Counts operations that change a number's type."""

    def __init__(self) -> None:
        super().__init__()
        self.together = self.alone = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.together += func is torch.ops.aten._foreach_copy_.default
        self.alone += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def net() -> _Net:
    torch.manual_seed(0)
    return _Net()


def test_passes_on_other_streams_share_no_cast(net: _Net, monkeypatch: pytest.MonkeyPatch):
    streams = iter((1, 1, 1, 2, 2, 2))
    monkeypatch.setattr(shared_casts, "_stream", lambda weights: next(streams))
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        first, second = net(_image()), net(_image(1))
    assert casts.together == 2
    (first.float().sum() + second.float().sum()).backward()


def _image(seed: int = 0) -> Tensor:
    x = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last)


def _trained(net: _Net, compute: Any, *, passes: int = 2) -> tuple[list[Tensor], Tensor]:
    """Gradients of the weights after some passes, and that of the first image."""
    net.zero_grad()
    images = [_image(seed).requires_grad_() for seed in range(passes)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs = [compute(x) for x in images]
        assert all(out.dtype == torch.bfloat16 for out in outs)
        total = sum((out.float() ** 2).mean() for out in outs)
    total.backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert images[0].grad is not None
    return [p.grad for p in net.parameters() if p.grad is not None], images[0].grad


def test_gradients_are_those_of_autocast_in_float32_and_laid_out_like_the_weights(net: _Net):
    (seen, image), (wanted, image_wanted) = _trained(net, net), _trained(net, net.plain)
    assert len(seen) == len(wanted) == 3
    for mine, other, weight in zip(seen, wanted, net.parameters()):
        torch.testing.assert_close(mine, other, rtol=0.01, atol=1e-3)
        assert (mine.dtype, mine.stride()) == (torch.float32, weight.stride())
    torch.testing.assert_close(image, image_wanted, rtol=0.02, atol=1e-3)


def test_gradients_of_several_passes_add_up_in_float32(net: _Net):
    for number in (1, 3):
        singles = []
        for seed in range(number):
            net.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                (net(_image(seed)).float() ** 2).mean().backward()
            singles.append([p.grad for p in net.parameters()])
        together, _ = _trained(net, net, passes=number)
        for mine, parts in zip(together, zip(*singles)):
            assert torch.equal(mine, torch.stack([part for part in parts if part is not None]).sum(0))


def test_passes_of_a_phase_share_one_cast_and_gradients_become_float32_by_one_operation(net: _Net):
    x = _image().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        first, second = net(x), net(x)
        assert (casts.together, casts.alone) == (1, 0)
    total = first.float().sum() + second.float().sum()
    with _Casts() as casts:
        total.backward()
    assert casts.together == 2  # one for each pass
    assert casts.alone == 2  # of the gradients of the two results


def test_an_update_is_seen_and_no_cast_outlives_its_graph(net: _Net, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    init = shared_casts._Cast.__init__

    def counted(self: Any, *args: Any) -> None:
        made.append(weakref.ref(self))
        init(self, *args)

    monkeypatch.setattr(shared_casts._Cast, "__init__", counted)
    gc.disable()  # its end must not wait for the collector
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(_image())
            assert made[0]() is not None
            with torch.no_grad():
                net.down.weight.mul_(2)
            assert not torch.equal(net(_image()), out)  # while the first graph is still there
            before = len(made)
            with torch.no_grad():
                net(_image())
                net(_image())
            assert len(made) == before + 2  # each ends with its pass
        out.float().sum().backward()
        del out
        assert [one() for one in made] == [None] * len(made)
    finally:
        gc.enable()


def test_streams_do_not_share_casts_and_frozen_weights_get_no_gradient(net: _Net):
    x = _image()
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        torch.set_autocast_cache_enabled(False)
        try:
            kept = net(x), net(x)
        finally:
            torch.set_autocast_cache_enabled(True)
        assert casts.together == len(kept) == 2
    net.requires_grad_(False)
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x).float().sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


def test_without_autocast_it_is_the_layer(net: _Net):
    other = deepcopy(net.down), deepcopy(net.up)
    net(_image()).square().sum().backward()
    other[1](other[0](_image())).square().sum().backward()
    for mine, wanted in ((net.down, other[0]), (net.up, other[1])):
        torch.testing.assert_close(mine.weight.grad, wanted.weight.grad)


def test_what_is_no_plain_convolution_is_left_alone():
    normalised = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    others = [nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(3, 4, 3, padding="same"), nn.ReLU()]
    assert not any(map(fits_shared_cast, (normalised, *others)))
    assert fits_shared_cast(nn.Conv2d(3, 4, 3))
