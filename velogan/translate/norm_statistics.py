"""Instance norm with the statistics of a complete picture, for networks that process it tile by tile.

Otherwise each tile would be normalised by its own mean and variance, and adjacent tiles would differ. The algorithm:

1. `_steps` lists the layers in the order in which they run, with marks where branches start and join.
2. `measure_moments` runs all tiles up to a norm, measures its input over all of them, and continues with these
   moments to the next norm; between norms the activations of the tiles are spilled to files.
3. `fold_norms` folds the moments into the convolutions: one network without norms serves all tiles.
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
"""Mean and variance of each channel, each `(C,)` float32."""

_MIN_SIDE = 64
"""Minimum side in pixels of the image on which `max_spilled_values` measures."""

Core = tuple[float, float, float, float]
"""The measured part of a tile: top, bottom, left and right as fractions of its sides."""


@dataclass(frozen=True)
class Piece:
    """A tile to measure: `read` returns its image, `(1, C, h, w)` in [-1, 1]."""

    read: Callable[[], Tensor]
    core: Core = (0, 1, 0, 1)


def has_per_image_norms(net: nn.Module) -> bool:
    """Return whether `net` would normalise each tile of a picture by the tile's own statistics."""
    return any(_is_per_image(layer) for layer in net.modules())


@torch.inference_mode()
def measure_moments(
    net: nn.Module,
    pieces: Sequence[Piece],
    *,
    scratch: Path,
    dtype: torch.dtype = torch.float32,
    before_piece: Callable[[], object] = lambda: None,
) -> list[Moments]:
    """Return the moments of each instance norm's input over all `pieces`, in the order of the layers of `net`.

    scratch: folder for the activations between norms; activations as wide as their tile are recomputed instead
    dtype: the dtype in which convolutions compute
    before_piece: called each time before a piece is computed; it may raise

    All pieces are computed up to a norm before any continues, so each norm uses the statistics of the complete picture.
    Raises ValueError if a norm cannot be measured because it, or a module around it, does not declare what it computes
    (`types.forward_kind_of`).
    """
    steps = _measurable_steps(net)
    moments: dict[nn.Module, Moments] = {}
    begin = 0
    for stop, norm in enumerate(steps):
        if not _is_measurable(norm):
            continue
        total, is_smaller = _RunningMoments(), True
        for i, piece in enumerate(pieces):
            before_piece()
            file = scratch / f"{i}.npy"
            state = _load(file, _device(net)) if begin else _State(piece.read())
            with torch.autocast(state.x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                _advance(state, steps[begin:stop], moments)
            total.add(_crop(state.x, piece.core))
            is_smaller = state.x.shape[-1] < state.width
            if is_smaller:
                _save(state, file)
        begin = stop if is_smaller else begin
        moments[norm] = total.moments()
    return list(moments.values())


@torch.inference_mode()
def max_spilled_values(net: nn.Module, channels: int) -> float:
    """Return the highest number of values per pixel that `measure_moments` writes. Raises the same ValueError."""
    side = max(4 * getattr(net, "multiple", 1), _MIN_SIDE)
    state = _State(torch.zeros(1, channels, side, side, device=_device(net)))
    max_values = 0
    for step in _measurable_steps(net):
        if _is_measurable(step):
            if state.x.shape[-1] < side:
                max_values = max(max_values, sum(value.numel() for value in (state.x, *state.branches)))
        else:
            _advance(state, [step], {})
    return max_values / side**2


def fold_norms(net: nn.Module, moments: Sequence[Moments] = ()) -> nn.Module:
    """Return a copy of `net` (in eval mode) whose norms are folded into the convolutions before them.

    `moments`: one for each instance norm, in the order of the layers; if empty, instance norms stay. Batch norms use
    their running statistics. A norm that does not follow a convolution becomes a batch norm with its moments.
    """
    net, remaining = copy.deepcopy(net), iter(moments)
    replacements: dict[nn.Module, nn.Module] = {}
    for previous, norm in pairwise([_SAVE, *_steps(net)]):
        if moments and _is_measurable(norm):
            batch_norm = _with_moments(norm, *next(remaining))
        elif _is_batch_norm(norm):
            batch_norm = norm
        else:
            continue
        replacements[norm] = batch_norm
        if isinstance(previous, (nn.Conv2d, nn.ConvTranspose2d)) and forward_kind_of(previous) is not None:
            _fold(previous, batch_norm)
            replacements[norm] = nn.Identity()
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if child in replacements:
                setattr(parent, name, replacements[child])
    return net


def _is_per_image(layer: nn.Module) -> bool:
    """Return whether `layer` normalises by the statistics of its input."""
    if isinstance(layer, (nn.InstanceNorm2d, nn.BatchNorm2d)):
        return not layer.track_running_stats
    return isinstance(layer, nn.GroupNorm)


def _is_measurable(step: nn.Module) -> TypeGuard[nn.InstanceNorm2d]:
    """Return whether `step` is an instance norm whose statistics can be measured over the complete picture."""
    return isinstance(step, nn.InstanceNorm2d) and _is_per_image(step) and forward_kind_of(step) is not None


def _is_batch_norm(step: nn.Module) -> TypeGuard[nn.BatchNorm2d | nn.SyncBatchNorm]:
    is_batch_norm = isinstance(step, (nn.BatchNorm2d, nn.SyncBatchNorm))
    return is_batch_norm and step.running_mean is not None and forward_kind_of(step) is not None


def _measurable_steps(net: nn.Module) -> list[nn.Module]:
    """Return the steps of `net`. Raises ValueError if a norm among its modules is not a step."""
    steps = _steps(net)
    measurable = {step for step in steps if _is_measurable(step)}
    for name, layer in net.named_modules():
        if _is_per_image(layer) and layer not in measurable:
            raise ValueError(
                f"{name} ({type(layer).__name__}) would normalise each tile by itself, and its statistics cannot be "
                "measured over the complete picture, since it or a module around it does not declare what it computes: "
                "set tile=0, or declare its kind of forward pass (velogan.types.ForwardKind)"
            )
    return steps


def _with_moments(norm: nn.InstanceNorm2d, mean: Tensor, variance: Tensor) -> nn.BatchNorm2d:
    """Return a batch norm equal to `norm` with these statistics."""
    batch_norm = nn.BatchNorm2d(len(mean), eps=norm.eps, affine=norm.affine, device=mean.device).eval()
    batch_norm.running_mean, batch_norm.running_var = mean, variance
    batch_norm.weight, batch_norm.bias = norm.weight, norm.bias
    return batch_norm.requires_grad_(False)


@torch.no_grad()
def _fold(layer: nn.Conv2d | nn.ConvTranspose2d, norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> None:
    """Fold `norm` into the `layer` before it, which then computes scale * (layer(x) - mean) + shift."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = (variance + norm.eps).rsqrt() * (norm.weight if norm.affine else 1)
    shift = norm.bias if norm.affine else 0
    bias = 0 if layer.bias is None else layer.bias
    sides = (1, -1) if isinstance(layer, nn.ConvTranspose2d) else (-1, 1)  # output channels are the second axis
    layer.weight.mul_(scale.view(*sides, 1, 1))
    layer.bias = nn.Parameter((bias - mean) * scale + shift, requires_grad=False)


@dataclass
class _State:
    """The activations of a piece, `width` pixels wide, between two layers; a later step joins the `branches` to `x`."""

    x: Tensor
    branches: list[Tensor] = field(default_factory=list)
    width: int = 0

    def __post_init__(self) -> None:
        self.width = self.width or self.x.shape[-1]


def _save(state: _State, file: Path) -> None:
    """Write a state as consecutive arrays; NumPy has no bfloat16, so its bits are stored as int16."""
    with file.open("wb") as out:
        np.save(out, np.int64(state.width))
        for value in (state.x, *state.branches):
            np.save(out, (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).cpu().numpy())


def _load(file: Path, device: torch.device) -> _State:
    """Read a state that `_save` wrote."""
    values, size = [], file.stat().st_size
    with file.open("rb") as source:
        width = int(np.load(source, allow_pickle=False))
        while source.tell() < size:
            value = torch.from_numpy(np.load(source, allow_pickle=False)).to(device)
            values.append(value.view(torch.bfloat16) if value.dtype == torch.int16 else value)
    return _State(values[0], values[1:], width)


class _RunningMoments:
    """Computes the mean and variance of values that arrive in parts (Chan et al. 1979)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean, self._spread = torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add the values `(B, C, h, w)`."""
        variance, mean = (part.double() for part in torch.var_mean(x.float(), (0, 2, 3), correction=0))
        count = x.numel() // x.shape[1]
        delta, total = mean - self._mean, self._count + count
        self._spread = self._spread + variance * count + delta**2 * (self._count * count / total)
        self._mean = self._mean + delta * (count / total)
        self._count = total

    def moments(self) -> Moments:
        """Return the mean and variance of each channel."""
        return self._mean.float(), (self._spread / self._count).float()


_SAVE, _ADD = nn.Identity(), nn.Identity()
_APPEND = nn.Identity()  # marks where branches start and join
_MARKS: Marks = {"sequence": ((), ()), "residual": ((_SAVE,), (_ADD,)), "skip": ((_SAVE,), (_APPEND,))}
_END_OF_STAGE = nn.Identity()  # marks a value that several later layers use


def _steps(net: nn.Module) -> list[nn.Module]:
    """Return the layers in the order in which they run, with marks for values that are used again later.

    Modules whose `types.ForwardKind` has no marks are single steps. For "change" and "mask", steps end at the decoded
    translation, with a mark after each child.
    """
    if forward_kind_of(net) in ("change", "mask"):
        return [step for stage in layers_of(net) for step in (*_steps(stage), _END_OF_STAGE)]
    return list(walk(net, _MARKS))


def _advance(state: _State, steps: Sequence[nn.Module], moments: Mapping[nn.Module, Moments]) -> None:
    """Run `steps` on a state, with the given moments of instance norms."""
    for step in steps:
        if step is _SAVE:
            state.branches.append(state.x)
        elif step is _ADD:
            state.x = state.branches.pop() + state.x
        elif step is _APPEND:
            state.x = torch.cat([state.branches.pop(), state.x], 1)
        elif _is_measurable(step):
            state.x = F.batch_norm(state.x, *moments[step], step.weight, step.bias, eps=step.eps)
        else:
            state.x = step(state.x)


def _crop(x: Tensor, core: Core) -> Tensor:
    height, width = x.shape[2:]
    top, bottom, left, right = (round(fraction * side) for fraction, side in zip(core, (height, height, width, width)))
    return x[:, :, top:bottom, left:right]


def _device(net: nn.Module) -> torch.device:
    return next((value.device for value in net.parameters()), torch.device("cpu"))
