"""A trained generator, found by path and ready to be called."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from velogan.data.pictures.values import PixelFormat
from velogan.data.sets.sources import code_directory
from velogan.kernels.inference import Accelerator
from velogan.networks.build import build_network
from velogan.networks.generators import Generator
from velogan.networks.outputs import ChangeGenerator, MaskGenerator
from velogan.store.checkpoint import find_checkpoint, load_weights
from velogan.translate.norm_statistics import fold_norms
from velogan.translate.tiles import reflect_indices
from velogan.translate.weights import load_reference_file
from velogan.types import GENERATOR_FILES, Direction

Weights = Literal["ema", "raw"]
CheckpointChoice = Literal["last", "best"]
Pages = Literal["channels", "slices"]

_SMALLEST_SIDE = 8  # a residual block pads by reflection at a quarter of the side, and needs two pixels there


@dataclass(frozen=True)
class Translator:
    """A generator in eval mode; call it with images of any size.

    `multiple`: what image sides must be divisible by, in pixels; `header`: the file's metadata;
    `accelerate`: how to make networks faster, or None.
    """

    net: nn.Module
    multiple: int
    device: torch.device
    file: Path | None = None
    header: dict[str, Any] = field(default_factory=dict)
    accelerate: Accelerator | None = None
    _accelerated_nets: dict[bool, nn.Module] = field(default_factory=dict, init=False, repr=False)

    @property
    def input(self) -> PixelFormat:
        """The format of the pictures that it was trained to read."""
        return PixelFormat(**self.header.get("input", {}))

    @property
    def output(self) -> PixelFormat:
        """The format of the pictures that it was trained to write."""
        return PixelFormat(**self.header.get("output", {}))

    @property
    def direction(self) -> Direction:
        """The way that it translates."""
        return next(way for way, role in GENERATOR_FILES.items() if role == self.header["role"])

    @property
    def domains(self) -> tuple[str, str]:
        """The names of the data that it leads from and to; A and B where its header says none."""
        data = self.header.get("data")
        a, b = (str(data.get("a") or "A"), str(data.get("b") or "B")) if isinstance(data, Mapping) else ("A", "B")
        return (a, b) if self.direction == "a2b" else (b, a)

    @property
    def pages_are_channels(self) -> bool:
        """What `read_picture` is told of the pictures that it translates."""
        return self.input.pages == "channels"

    def with_pages(self, pages: Pages | None) -> Translator:
        """The same where `pages` is what several pages of a TIFF are; None: as in training."""
        if pages is None:
            return self
        return replace(self, header={**self.header, "input": {**self.header.get("input", {}), "pages": pages}})

    def __call__(self, images: Tensor) -> Tensor:
        """Translate `(B, C, H, W)` in [-1, 1] on any device into the same size, range and device.

        The plain network computes it. Sides are extended by reflection at the right and the bottom to what the network
        takes, and the result is cut back.
        """
        return self._run(self.net, images, rounded=False)

    def translate_fast(self, images: Tensor, *, rounded: bool) -> Tensor:
        """As `__call__`, by the accelerated network. `rounded`: the result will be rounded to 8 bits."""
        if self.accelerate is None:
            return self(images)
        if rounded not in self._accelerated_nets:
            self._accelerated_nets[rounded] = self.accelerate(fold_norms(self.net), rounded=rounded)
        return self._run(self._accelerated_nets[rounded], images, rounded=rounded)

    def accelerated(self, net: nn.Module, *, rounded: bool) -> nn.Module:
        """`net`, made faster if this translator has `accelerate`."""
        return net if self.accelerate is None else self.accelerate(net, rounded=rounded)

    def dtype(self, *, rounded: bool) -> torch.dtype:
        """The type that accelerated convolutions are computed in."""
        return torch.float32 if self.accelerate is None else self.accelerate.dtype(rounded=rounded)

    def tf32_disabled(self, *, rounded: bool) -> AbstractContextManager[object]:
        """Around networks: unless `rounded`, GPUs compute float32 as it is, not in TF32, PyTorch's default there."""
        if rounded or self.device.type != "cuda":
            return nullcontext()
        now = torch.backends.cudnn
        return now.flags(enabled=True, benchmark=now.benchmark, deterministic=now.deterministic, allow_tf32=False)

    @torch.inference_mode()
    def _run(self, net: nn.Module, images: Tensor, *, rounded: bool) -> Tensor:
        height, width = images.shape[-2:]
        rows, columns = (_padded_indices(side, self.multiple, images.device) for side in (height, width))
        padded = images[..., rows, :][..., columns].to(self.device)
        with self.tf32_disabled(rounded=rounded):
            return net(padded)[..., :height, :width].to(images.device)


def load_translator(
    path: Path,
    *,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: CheckpointChoice | None = None,
    device: torch.device | str = "cpu",
    fast: bool = False,
) -> Translator:
    """Load the generator that `path` holds: a run folder, a checkpoint folder, or one file, ours (`.safetensors`) or of
    the reference implementation (`.pth`).

    `direction`: None means a2b for a folder, and the file's own direction for a single file. `weights`: None means the
    exponential moving average if there is one, else the raw weights; a single file is taken as it is. `checkpoint`
    chooses within a run folder; None means the last, or the best where the last is much worse. `fast`: with the
    accelerated network that `Translator.translate_fast` uses.
    Raises `ValueError` with the mend if there is no such generator.
    """
    path, device = Path(path), torch.device(device)
    file = path if path.is_file() else _find_generator_file(path, direction or "a2b", weights, checkpoint)
    header, state = _read_weights(file)
    if header.get("role") not in GENERATOR_FILES.values():
        raise ValueError(
            f"{file} holds {header.get('role', 'no network')!r}, which does not translate: name G_A or G_B"
        )
    if direction and header["role"] != GENERATOR_FILES[direction]:
        raise ValueError(
            f"direction={direction} needs {GENERATOR_FILES[direction]}, but {file} holds {header['role']}: "
            "name the other file or leave the direction out"
        )
    net = _build_generator(file, header, state)
    net.requires_grad_(False).eval()
    accelerate = _get_accelerator(device, code_directory() / "kernels") if fast else None
    return Translator(
        net.to(device), multiple=net.multiple, device=device, file=file, header=header, accelerate=accelerate
    )


@cache
def _get_accelerator(device: torch.device, folder: Path) -> Accelerator:
    """One for all generators of a device, since it measures what is faster there."""
    return Accelerator(device, folder)


def _read_weights(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the weights of a file."""
    if file.suffix != ".pth":
        return load_weights(file)
    ((role, network),) = load_reference_file(file).items()
    formats = {
        side: asdict(PixelFormat(channels=network.header[f"{side[:-3]}_channels"]))
        for side in ("input", "output")
        if f"{side[:-3]}_channels" in network.header
    }
    return {**network.header, **formats, "role": role, "method": "imported"}, network.state


def _build_generator(
    file: Path, header: dict[str, Any], state: dict[str, Tensor]
) -> Generator | ChangeGenerator | MaskGenerator:
    """The network that the header describes, with the weights `state`.

    Sizes are compared before memory is taken. Raises `ValueError` if they differ, or the header describes no network.
    """
    try:
        if header.get("network") == "supernet":
            raise ValueError("it is of a search; train what that found: velogan train --genotype RUN/genotype.json")
        if header.get("network") != "generator":
            raise ValueError(f"it holds {str(header.get('network'))[:40]}")
        for side in ("input", "output"):
            PixelFormat(**header.get(side, {}))
        with torch.device("meta"):
            described = build_network(header).state_dict()
        for name in sorted({*described, *state}):
            told, found = (tuple(of[name].shape) if name in of else None for of in (described, state))
            if told != found:
                raise ValueError(f"{name} should be {told or 'absent'} and is {found or 'absent'}")
        net = build_network(header)
        assert isinstance(net, (Generator, ChangeGenerator, MaskGenerator))
        net.load_state_dict(state)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{file} holds no generator that can be built: {reason}; name another file") from None
    return net


def _find_generator_file(
    path: Path, direction: Direction, weights: Weights | None, checkpoint: CheckpointChoice | None
) -> Path:
    if direction not in GENERATOR_FILES:
        raise ValueError(f"direction={direction}: choose {' or '.join(GENERATOR_FILES)}")
    if weights not in (None, *get_args(Weights)):
        raise ValueError(f"weights={weights}: choose {' or '.join(get_args(Weights))}")
    if not path.exists():
        raise ValueError(f"{path} does not exist: name a run folder, a checkpoint folder or a .safetensors file")
    folder = path if (path / "manifest.json").is_file() else find_checkpoint(path, checkpoint)
    role = GENERATOR_FILES[direction]
    averaged, raw = folder / f"{role}.ema.safetensors", folder / f"{role}.safetensors"
    file = raw if weights == "raw" or (weights is None and not averaged.is_file()) else averaged
    if role == "G_B" and not averaged.is_file() and not raw.is_file() and (folder / "G_A.safetensors").is_file():
        raise ValueError(
            f"direction=b2a: {folder} translates a2b alone; train with a method or settings that learn both directions"
        )
    if not file.is_file():
        there = ", ".join(sorted(one.name for one in folder.glob("*.safetensors")))
        mend = "ask for weights=raw" if file is averaged and raw.is_file() else "name another"
        raise ValueError(f"{folder} has no {file.name}, it holds {there}: {mend}")
    return file


def _padded_indices(side: int, multiple: int, device: torch.device) -> Tensor:
    wanted = max(-(-side // multiple) * multiple, _SMALLEST_SIDE)
    return torch.from_numpy(reflect_indices(0, wanted, side)).to(device)
