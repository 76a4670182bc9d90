"""Instance norm with the statistics of a whole picture, for networks that see it tile by tile.

Without this, each tile would be normalised by its own mean and variance, and neighbours would differ. Here the whole
picture's statistics are measured first and folded into the weights: one network without norms serves all tiles.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.types import Marks, forward_kind_of, layers_of, walk

Moments = tuple[Tensor, Tensor]
"""Mean and variance of each channel, `(C,)` float32."""

_SMALL = 64
"""The side of a picture, in pixels, that any network of no greater multiple can take."""

Core = tuple[float, float, float, float]
"""The part of a tile that is measured: top, bottom, left and right as shares of its sides."""


@dataclass(frozen=True)
class Piece:
    """A tile to measure: `read` gives its `(1, C, h, w)` in [-1, 1]."""

    read: Callable[[], Tensor]
    core: Core = (0, 1, 0, 1)


def has_per_image_norms(net: nn.Module) -> bool:
    """Whether tiles of one picture would be normalised differently."""
    return any(_is_by_picture(layer) for layer in net.modules())


@torch.inference_mode()
def measure_moments(
    net: nn.Module,
    pieces: Sequence[Piece],
    *,
    scratch: Path,
    dtype: torch.dtype = torch.float32,
    before_piece: Callable[[], object] = lambda: None,
) -> list[Moments]:
    """The moments of each instance norm's input, in the order of `net`'s layers, over all `pieces` together.

    All pieces are computed up to a norm before any goes further, so earlier norms already use the statistics of all.
    Between norms the pieces wait in files in the folder `scratch`; while they are still as large as the picture, they
    are computed again instead. `dtype` is the type of the convolutions. `before_piece` is called before each step with
    a piece, and may raise.
    Raises `ValueError` if a norm of `net` cannot be measured, since it or a module around it has no form
    (`types.forward_kind_of`).
    """
    steps = _measurable(net)
    found: dict[nn.Module, Moments] = {}
    begin = 0
    for stop, norm in enumerate(steps):
        if not _is_shared(norm):
            continue
        total, smaller = _Total(), True
        for i, piece in enumerate(pieces):
            before_piece()
            file = scratch / f"{i}.npy"
            state = _fetched(file, _device(net)) if begin else _State(piece.read())
            with torch.autocast(state.x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                _advance(state, steps[begin:stop], found)
            total.add(_cut(state.x, piece.core))
            smaller = state.x.shape[-1] < state.width
            if smaller:
                _put(state, file)
        begin = stop if smaller else begin
        found[norm] = total.moments()
    return list(found.values())


@torch.inference_mode()
def max_spilled_values(net: nn.Module, channels: int) -> float:
    """The most values per pixel that `measure_moments` keeps in files. Raises `ValueError` as it does."""
    side = max(4 * getattr(net, "multiple", 1), _SMALL)
    state, most = _State(torch.zeros(1, channels, side, side, device=_device(net))), 0
    for step in _measurable(net):
        if _is_shared(step):
            if state.x.shape[-1] < side:
                most = max(most, sum(value.numel() for value in (state.x, *state.aside)))
        else:
            _advance(state, [step], {})
    return most / side**2


def fold_norms(net: nn.Module, moments: Sequence[Moments] = ()) -> nn.Module:
    """A copy of `net` (in eval mode) without norms: their effect is in the convolutions before them.

    `moments` are those of the instance norms, in order; batch norms bring their own. Without `moments`, instance
    norms stay. A norm that follows no convolution becomes a batch norm with its moments.
    """
    net, shared = copy.deepcopy(net), iter(moments)
    stand_ins: dict[nn.Module, nn.Module] = {}
    for before, norm in pairwise([_SAVE, *_steps(net)]):
        if moments and _is_shared(norm):
            fixed = _with_moments(norm, *next(shared))
        elif _is_fixed(norm):
            fixed = norm
        else:
            continue
        stand_ins[norm] = fixed
        if isinstance(before, (nn.Conv2d, nn.ConvTranspose2d)) and forward_kind_of(before) is not None:
            _fold(before, fixed)
            stand_ins[norm] = nn.Identity()
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if child in stand_ins:
                setattr(parent, name, stand_ins[child])
    return net


def _is_by_picture(layer: nn.Module) -> bool:
    """Whether `layer` normalises by the statistics of its input."""
    if isinstance(layer, (nn.InstanceNorm2d, nn.BatchNorm2d)):
        return not layer.track_running_stats
    return isinstance(layer, nn.GroupNorm)


def _is_shared(step: nn.Module) -> TypeGuard[nn.InstanceNorm2d]:
    """Whether `step` is a norm that can use the statistics of the whole picture."""
    return isinstance(step, nn.InstanceNorm2d) and _is_by_picture(step) and forward_kind_of(step) is not None


def _is_fixed(step: nn.Module) -> TypeGuard[nn.BatchNorm2d | nn.SyncBatchNorm]:
    """Whether `step` is a norm with stored statistics."""
    kind = isinstance(step, (nn.BatchNorm2d, nn.SyncBatchNorm))
    return kind and step.running_mean is not None and forward_kind_of(step) is not None


def _measurable(net: nn.Module) -> list[nn.Module]:
    steps = _steps(net)
    shared = {step for step in steps if _is_shared(step)}
    for name, layer in net.named_modules():
        if _is_by_picture(layer) and layer not in shared:
            raise ValueError(
                f"{name} ({type(layer).__name__}) would normalise each tile by itself, and its statistics cannot be "
                "measured over the whole picture, since it or a module around it does not declare what it computes: "
                "set tile=0, or declare its form (velogan.types.ForwardKind)"
            )
    return steps


def _with_moments(norm: nn.InstanceNorm2d, mean: Tensor, variance: Tensor) -> nn.BatchNorm2d:
    """A batch norm that computes what `norm` does with these statistics."""
    fixed = nn.BatchNorm2d(len(mean), eps=norm.eps, affine=norm.affine, device=mean.device).eval()
    fixed.running_mean, fixed.running_var = mean, variance
    fixed.weight, fixed.bias = norm.weight, norm.bias
    return fixed.requires_grad_(False)


@torch.no_grad()
def _fold(layer: nn.Conv2d | nn.ConvTranspose2d, norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> None:
    """Change `layer` so that it computes what `norm` does after it: scale (layer(x) - mean) + shift."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = (variance + norm.eps).rsqrt() * (norm.weight if norm.affine else 1)
    shift = norm.bias if norm.affine else 0
    bias = 0 if layer.bias is None else layer.bias
    sides = (1, -1) if isinstance(layer, nn.ConvTranspose2d) else (-1, 1)  # output channels are its second axis
    layer.weight.mul_(scale.view(*sides, 1, 1))
    layer.bias = nn.Parameter((bias - mean) * scale + shift, requires_grad=False)


@dataclass
class _State:
    """A piece between two layers: `aside` are the values that a later step adds or appends."""

    x: Tensor
    aside: list[Tensor] = field(default_factory=list)
    width: int = 0

    def __post_init__(self) -> None:
        self.width = self.width or self.x.shape[-1]


def _put(state: _State, file: Path) -> None:
    """Write a state as arrays, one after another; NumPy has no bfloat16, so its bits go as int16."""
    with file.open("wb") as out:
        np.save(out, np.int64(state.width))
        for value in (state.x, *state.aside):
            np.save(out, (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).cpu().numpy())


def _fetched(file: Path, device: torch.device) -> _State:
    """Read on `device` what `_put` wrote."""
    values, size = [], file.stat().st_size
    with file.open("rb") as source:
        width = int(np.load(source, allow_pickle=False))
        while source.tell() < size:
            value = torch.from_numpy(np.load(source, allow_pickle=False)).to(device)
            values.append(value.view(torch.bfloat16) if value.dtype == torch.int16 else value)
    return _State(values[0], values[1:], width)


class _Total:
    """Mean and variance of values that come in parts, combined as in Chan et al. 1979."""

    def __init__(self) -> None:
        self._count, self._mean, self._spread = 0, torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        variance, mean = (part.double() for part in torch.var_mean(x.float(), (0, 2, 3), correction=0))
        count = x.numel() // x.shape[1]
        delta, whole = mean - self._mean, self._count + count
        self._spread = self._spread + variance * count + delta**2 * (self._count * count / whole)
        self._mean = self._mean + delta * (count / whole)
        self._count = whole

    def moments(self) -> Moments:
        return self._mean.float(), (self._spread / self._count).float()


_SAVE, _ADD, _APPEND = nn.Identity(), nn.Identity(), nn.Identity()  # marks around branches
_MARKS: Marks = {"sequence": ((), ()), "residual": ((_SAVE,), (_ADD,)), "skip": ((_SAVE,), (_APPEND,))}
_MEET = nn.Identity()  # marks a value that several later layers use


def _steps(net: nn.Module) -> list[nn.Module]:
    """The layers in the order in which they run, with marks for values that are kept, and used later.

    A module without a form is one step. In a network of the form "change" or "mask", the steps lead from the input to
    the decoded translation, through every norm.
    """
    if forward_kind_of(net) in ("change", "mask"):
        return [step for stage in layers_of(net) for step in (*_steps(stage), _MEET)]
    return list(walk(net, _MARKS))


def _advance(state: _State, steps: Sequence[nn.Module], found: Mapping[nn.Module, Moments]) -> None:
    for step in steps:
        if step is _SAVE:
            state.aside.append(state.x)
        elif step is _ADD:
            state.x = state.aside.pop() + state.x
        elif step is _APPEND:
            state.x = torch.cat([state.aside.pop(), state.x], 1)
        elif _is_shared(step):
            state.x = F.batch_norm(state.x, *found[step], step.weight, step.bias, eps=step.eps)
        else:
            state.x = step(state.x)


def _cut(x: Tensor, core: Core) -> Tensor:
    height, width = x.shape[2:]
    top, bottom, left, right = (round(share * side) for share, side in zip(core, (height, height, width, width)))
    return x[:, :, top:bottom, left:right]


def _device(net: nn.Module) -> torch.device:
    return next((value.device for value in net.parameters()), torch.device("cpu"))
