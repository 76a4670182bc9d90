"""A trained generator, found by path and ready to be called."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from velogan.engine.checkpoint import find_checkpoint, load_weights
from velogan.networks.generators import GeneratorConfig, build_generator

Direction = Literal["a2b", "b2a"]
Weights = Literal["ema", "raw"]
Which = Literal["last", "best"]

_ROLES: dict[Direction, str] = {"a2b": "G_A", "b2a": "G_B"}
_SMALLEST_SIDE = 8  # a residual block pads by reflection at a quarter of the side, and needs two pixels there


@dataclass(frozen=True)
class Translator:
    """A generator in eval mode; call it with images of any size.

    `multiple`: what image sides must be divisible by, in pixels; `header`: what the file says of itself.
    """

    net: nn.Module
    multiple: int
    device: torch.device
    file: Path | None = None
    header: dict[str, Any] = field(default_factory=dict)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Translate `(B, C, H, W)` in [-1, 1] on any device into the same size, range and device.

        Sides are extended by reflection at the right and the bottom to what the network takes, and cut back.
        """
        height, width = images.shape[-2:]
        rows, columns = (_reflected(side, self.multiple, images.device) for side in (height, width))
        padded = images[..., rows, :][..., columns].to(self.device)
        return self.net(padded)[..., :height, :width].to(images.device)


def load_translator(
    path: Path,
    *,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: Which = "last",
    device: torch.device | str = "cpu",
) -> Translator:
    """Load the generator that `path` holds: a run folder, a checkpoint folder, or one `.safetensors` file.

    `direction`: None stands for a2b in a folder, and for whatever a single file was trained for. `weights`:
    None stands for the exponential moving average where it was kept, else the raw weights; a single file is
    taken as it is. `checkpoint` chooses within a run folder.
    Raises `ValueError` with the mend where there is no such generator.
    """
    path, device = Path(path), torch.device(device)
    file = path if path.is_file() else _generator_file(path, direction or "a2b", weights, checkpoint)
    header, state = load_weights(file)
    if header.get("role") not in _ROLES.values():
        raise ValueError(
            f"{file} holds {header.get('role', 'no network')!r}, which does not translate: name G_A or G_B"
        )
    if direction and header["role"] != _ROLES[direction]:
        raise ValueError(
            f"direction={direction} needs {_ROLES[direction]}, but {file} holds {header['role']}: "
            "name the other file or leave the direction out"
        )
    net = build_generator(GeneratorConfig(**header["config"]))
    net.load_state_dict(state)
    net.requires_grad_(False).eval()
    return Translator(net.to(device), multiple=net.multiple, device=device, file=file, header=header)


def _generator_file(path: Path, direction: Direction, weights: Weights | None, checkpoint: Which) -> Path:
    if not path.exists():
        raise ValueError(f"{path} does not exist: name a run folder, a checkpoint folder or a .safetensors file")
    folder = path if (path / "manifest.json").is_file() else find_checkpoint(path, checkpoint)
    role = _ROLES[direction]
    averaged, raw = folder / f"{role}.ema.safetensors", folder / f"{role}.safetensors"
    file = raw if weights == "raw" or (weights is None and not averaged.is_file()) else averaged
    if not file.is_file():
        other = "raw" if file is averaged and raw.is_file() else None
        mend = (
            f"ask for weights={other}" if other else f"it holds {sorted(f.name for f in folder.glob('*.safetensors'))}"
        )
        raise ValueError(f"{folder} has no {file.name}: {mend}")
    return file


def _reflected(side: int, multiple: int, device: torch.device) -> Tensor:
    """Indices into a side that extend it by reflection, over and over where it is short."""
    wanted = max(-(-side // multiple) * multiple, _SMALLEST_SIDE)
    period = max(2 * (side - 1), 1)
    index = torch.arange(wanted, device=device) % period
    return torch.minimum(index, period - index) if side > 1 else torch.zeros_like(index)
