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
from velogan.kernels.shared_casts import SharedCastConvolutions


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


def test_passes_on_different_streams_share_no_cast(net: _Net, monkeypatch: pytest.MonkeyPatch):
    streams = iter((1, 1, 1, 2, 2, 2))
    monkeypatch.setattr(shared_casts, "_stream", lambda weights: next(streams))
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        first, second = net(_image()), net(_image(1))
    assert casts.together == 2
    (first.float().sum() + second.float().sum()).backward()


def _image(seed: int = 0) -> Tensor:
    x = torch.randn(2, 3, 8, 10, generator=torch.Generator().manual_seed(seed))
    return x.contiguous(memory_format=torch.channels_last)


def _gradients(net: _Net, compute: Any, *, passes: int = 2) -> tuple[list[Tensor], Tensor]:
    """Return the gradients of the weights after some passes, and that of the first image."""
    net.zero_grad()
    images = [_image(seed).requires_grad_() for seed in range(passes)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs = [compute(x) for x in images]
        assert all(out.dtype == torch.bfloat16 for out in outs)
        total = sum((out.float() ** 2).mean() for out in outs)
    total.backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert images[0].grad is not None
    return [p.grad for p in net.parameters() if p.grad is not None], images[0].grad


def test_gradients_equal_autocast_s_in_the_type_and_layout_of_the_weights(net: _Net):
    (actual, image), (expected, expected_image) = _gradients(net, net), _gradients(net, net.plain)
    assert len(actual) == len(expected) == 3
    for grad, other, weight in zip(actual, expected, net.parameters()):
        torch.testing.assert_close(grad, other, rtol=0.01, atol=1e-3)
        assert (grad.dtype, grad.stride()) == (torch.float32, weight.stride())
    torch.testing.assert_close(image, expected_image, rtol=0.02, atol=1e-3)


def test_sums_gradients_of_passes_in_float32(net: _Net):
    for number in (1, 3):
        singles = []
        for seed in range(number):
            net.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                (net(_image(seed)).float() ** 2).mean().backward()
            singles.append([p.grad for p in net.parameters()])
        together, _ = _gradients(net, net, passes=number)
        for grad, parts in zip(together, zip(*singles)):
            assert torch.equal(grad, torch.stack([part for part in parts if part is not None]).sum(0))


def test_passes_share_one_cast_and_one_operation_casts_gradients_back(net: _Net):
    x = _image().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        first, second = net(x), net(x)
        assert (casts.together, casts.alone) == (1, 0)
    total = first.float().sum() + second.float().sum()
    with _Casts() as casts:
        total.backward()
    assert casts.together == 2  # one for each pass
    assert casts.alone == 2  # of the gradients of the two results


def test_an_update_needs_a_new_cast_and_casts_end_with_their_graph(net: _Net, monkeypatch: pytest.MonkeyPatch):
    casts: list[Any] = []
    init = shared_casts._Cast.__init__

    def record(self: Any, *args: Any) -> None:
        casts.append(weakref.ref(self))
        init(self, *args)

    monkeypatch.setattr(shared_casts._Cast, "__init__", record)
    gc.disable()  # its end must not wait for the collector
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(_image())
            assert casts[0]() is not None
            with torch.no_grad():
                net.down.weight.mul_(2)
            assert not torch.equal(net(_image()), out)  # while the first graph is still there
            before = len(casts)
            with torch.no_grad():
                net(_image())
                net(_image())
            assert len(casts) == before + 2  # each ends with its pass
        out.float().sum().backward()
        del out
        assert [cast() for cast in casts] == [None] * len(casts)
    finally:
        gc.enable()


def test_without_autocast_s_cache_casts_are_not_shared(net: _Net):
    x = _image()
    with torch.autocast("cpu", dtype=torch.bfloat16), _Casts() as casts:
        torch.set_autocast_cache_enabled(False)
        try:
            results = net(x), net(x)
        finally:
            torch.set_autocast_cache_enabled(True)
        assert casts.together == len(results) == 2
    net.requires_grad_(False)
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(x).float().sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


def test_without_autocast_it_equals_the_layers(net: _Net):
    other = deepcopy(net.down), deepcopy(net.up)
    net(_image()).square().sum().backward()
    other[1](other[0](_image())).square().sum().backward()
    for layer, expected in ((net.down, other[0]), (net.up, other[1])):
        torch.testing.assert_close(layer.weight.grad, expected.weight.grad)
