"""Load a trained generator by path, ready to be called."""

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
from velogan.files import pluralize
from velogan.kernels.inference import Accelerator
from velogan.networks.build import build_network
from velogan.networks.generators import Generator
from velogan.networks.outputs import ChangeGenerator, MaskGenerator
from velogan.store.checkpoint import default_checkpoint, find_checkpoint, list_checkpoints, load_weights
from velogan.translate.norm_statistics import fold_norms
from velogan.translate.tiles import reflect_indices
from velogan.translate.weights import load_reference_file
from velogan.types import GENERATOR_FILES, Direction

Weights = Literal["ema", "raw"]
CheckpointChoice = Literal["last", "best"]
Pages = Literal["channels", "slices"]

_MIN_SIDE = 8  # a residual block pads by reflection at a quarter of the side, and needs two pixels there


@dataclass(frozen=True)
class Translator:
    """A generator in eval mode; call it with images of any size.

    net: the network
    multiple: image sides are padded to multiples of this number of pixels
    device: the device that it computes on
    file: its weights file, or None
    header: the metadata of the file
    accelerate: converts networks to a faster form, or None
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
        """The pixel format of its inputs in training."""
        return PixelFormat(**self.header.get("input", {}))

    @property
    def output(self) -> PixelFormat:
        """The pixel format of its targets in training."""
        return PixelFormat(**self.header.get("output", {}))

    @property
    def direction(self) -> Direction:
        """The direction of the translation, a2b or b2a."""
        return next(direction for direction, role in GENERATOR_FILES.items() if role == self.header["role"])

    @property
    def domains(self) -> tuple[str, str]:
        """The names of its source and target data; A and B if its header names none."""
        data = self.header.get("data")
        a, b = (str(data.get("a") or "A"), str(data.get("b") or "B")) if isinstance(data, Mapping) else ("A", "B")
        return (a, b) if self.direction == "a2b" else (b, a)

    @property
    def pages_are_channels(self) -> bool:
        """Whether the pages of a TIFF are channels: an argument of `read_picture`."""
        return self.input.pages == "channels"

    def with_pages(self, pages: Pages | None) -> Translator:
        """Return a copy that interprets the pages of a TIFF as `pages`; None: as in training."""
        if pages is None:
            return self
        return replace(self, header={**self.header, "input": {**self.header.get("input", {}), "pages": pages}})

    def __call__(self, images: Tensor) -> Tensor:
        """Translate `(B, C, H, W)` in [-1, 1] on any device into the same size, range and device.

        Uses the plain network. Images are padded by reflection at the right and the bottom to sides that are
        multiples of `multiple`, and the result is cropped.
        """
        return self._run(self.net, images, rounded=False)

    def translate_fast(self, images: Tensor, *, rounded: bool) -> Tensor:
        """Translate by the accelerated network, else by `net`. `rounded`: the result will be rounded to 8 bits."""
        if self.accelerate is None:
            return self(images)
        if rounded not in self._accelerated_nets:
            self._accelerated_nets[rounded] = self.accelerate(fold_norms(self.net), rounded=rounded)
        return self._run(self._accelerated_nets[rounded], images, rounded=rounded)

    def maybe_accelerate(self, net: nn.Module, *, rounded: bool) -> nn.Module:
        """Return `net` in its faster form if this translator has `accelerate`, else `net`."""
        return net if self.accelerate is None else self.accelerate(net, rounded=rounded)

    def dtype(self, *, rounded: bool) -> torch.dtype:
        """Return the dtype in which `translate_fast` computes convolutions."""
        return torch.float32 if self.accelerate is None else self.accelerate.dtype(rounded=rounded)

    def tf32_disabled(self, *, rounded: bool) -> AbstractContextManager[object]:
        """Disable TF32 convolutions (PyTorch's default) in this context, unless results are `rounded` to 8 bits."""
        if rounded or self.device.type != "cuda":
            return nullcontext()
        cudnn = torch.backends.cudnn
        return cudnn.flags(enabled=True, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False)

    @torch.inference_mode()
    def _run(self, net: nn.Module, images: Tensor, *, rounded: bool) -> Tensor:
        height, width = images.shape[-2:]
        rows, columns = (_padded_indices(side, self.multiple, images.device) for side in (height, width))
        padded = images[..., rows, :][..., columns].to(self.device)
        with self.tf32_disabled(rounded=rounded):
            return net(padded)[..., :height, :width].clamp(-1, 1).to(images.device)


def load_translator(
    path: Path,
    *,
    direction: Direction | None = None,
    weights: Weights | None = None,
    checkpoint: CheckpointChoice | None = None,
    device: torch.device | str = "cpu",
    fast: bool = False,
) -> Translator:
    """Load a generator.

    path: a run folder, a checkpoint folder, a `.safetensors` file, or a `.pth` file of the reference implementation
    direction: a2b or b2a; None: a2b for a folder, the file's own direction for a file
    weights: the exponential moving average (ema) or raw; None: ema if it exists. Ignored for a file
    checkpoint: last or best of a run folder; None: last, or best if the last is much worse
    device: where to compute
    fast: also prepare the accelerated network, see `Translator.translate_fast`

    Raises ValueError, with the fix, if there is no such generator.
    """
    path, device = Path(path), torch.device(device)
    file = path if path.is_file() else _find_generator_file(path, direction or "a2b", weights, checkpoint)
    header, state = _read_weights(file)
    if header.get("role") not in GENERATOR_FILES.values():
        raise ValueError(
            f"{file} contains {header.get('role', 'no network')!r}, which is not a generator: name G_A or G_B"
        )
    if direction and header["role"] != GENERATOR_FILES[direction]:
        raise ValueError(
            f"direction={direction} needs {GENERATOR_FILES[direction]}, but {file} contains {header['role']}: "
            "name the other file or leave the direction out"
        )
    net = _build_generator(file, header, state)
    net.requires_grad_(False).eval()
    accelerate = _get_accelerator(device, code_directory() / "kernels") if fast else None
    return Translator(
        net.to(device), multiple=net.multiple, device=device, file=file, header=header, accelerate=accelerate
    )


def describe_default_checkpoint(run: Path, model: Translator) -> list[str]:
    """Return a line on the checkpoint that `load_translator` chose by default; empty if `run` is not a run folder."""
    if model.file is None or not list_checkpoints(run):
        return []
    checkpoint = default_checkpoint(run)
    reason = " (the last one is much worse on held-out pictures)" if checkpoint == "best" else ""
    return [f"using the {checkpoint} checkpoint, at {pluralize(int(model.file.parent.name), 'image')}{reason}"]


@cache
def _get_accelerator(device: torch.device, folder: Path) -> Accelerator:
    """Return the accelerator of a device, shared by all generators since it measures which operations are faster."""
    return Accelerator(device, folder)


def _read_weights(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
    """Build the network that the header describes, with the weights `state`.

    Sizes are compared before memory is allocated. Raises ValueError if they differ, or if the header does not describe
    a generator.
    """
    try:
        if header.get("network") == "supernet":
            raise ValueError("a supernet of a search; train its result: velogan train --genotype RUN/genotype.json")
        if header.get("network") != "generator":
            raise ValueError(f"it holds {str(header.get('network'))[:40]}")
        for side in ("input", "output"):
            PixelFormat(**header.get(side, {}))
        with torch.device("meta"):  # no initial weights, whose computation would start threads: a fork would hang
            net = build_network(header)
        assert isinstance(net, (Generator, ChangeGenerator, MaskGenerator))
        expected_state = net.state_dict()
        for name in sorted({*expected_state, *state}):
            expected, actual = (
                tuple(tensors[name].shape) if name in tensors else None for tensors in (expected_state, state)
            )
            if expected != actual:
                raise ValueError(f"{name} should be {expected or 'absent'} and is {actual or 'absent'}")
        net.load_state_dict({name: state[name].to(value.dtype) for name, value in expected_state.items()}, assign=True)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{file} does not contain a usable generator: {reason}; name another file") from None
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
    ema, raw = folder / f"{role}.ema.safetensors", folder / f"{role}.safetensors"
    file = raw if weights == "raw" or (weights is None and not ema.is_file()) else ema
    if role == "G_B" and not ema.is_file() and not raw.is_file() and (folder / "G_A.safetensors").is_file():
        raise ValueError(
            f"direction=b2a: {folder} translates a2b only; train with a method or settings that learn both directions"
        )
    if not file.is_file():
        existing = ", ".join(sorted(path.name for path in folder.glob("*.safetensors")))
        fix = "use weights=raw" if file is ema and raw.is_file() else "name another"
        raise ValueError(f"{folder} has no {file.name}, only {existing}: {fix}")
    return file


def _padded_indices(side: int, multiple: int, device: torch.device) -> Tensor:
    """Return indices that extend `side` pixels by reflection to a multiple of `multiple`, at least `_MIN_SIDE`."""
    padded = max(-(-side // multiple) * multiple, _MIN_SIDE)
    return torch.from_numpy(reflect_indices(0, padded, side)).to(device)
