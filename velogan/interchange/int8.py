"""Quantisation of a generator's ONNX file to 8 bits, for CPUs: static, convolutions only, weights per output channel.

Norms and activations between them stay float32, as do transposed convolutions, which ONNX Runtime has in no other type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.data.pictures.images import read_picture
from velogan.data.sets.sources import list_images
from velogan.files import counted
from velogan.translate.model import Translator
from velogan.translate.pictures import to_images

MOST_PICTURES = 32
"""The pictures of a folder that are used, evenly spread: every fourth for the comparison, the others to calibrate."""

LEAST = 30.0
"""The least PSNR to float32, in dB; a file below it is refused."""


@dataclass(frozen=True)
class Quantised:
    """The distance of results in 8 bits from those in float32, over `pictures` of `side` x `side`.

    The calibration did not use these pictures. `psnr`: in dB, the mean over pictures, of results rounded to 8 bits;
    `max_difference`: the largest, in [-1, 1].
    """

    psnr: float
    max_difference: float
    pictures: int
    side: int


def quantise(model: Translator, file: Path, pictures: Path) -> Quantised:
    """Replaces the float32 ONNX `file` of `model` by one of 8 bits, calibrated on the `pictures` of a folder.

    ValueError where there are too few pictures, or results are farther from float32 than `LEAST`.
    """
    from onnxruntime.quantization import QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    seen = _pictures(model, pictures)
    judged = seen[::4]
    calibrating = [one for place, one in enumerate(seen) if place % 4]
    ready, made = (file.with_name(f"{file.stem}-{part}.onnx") for part in ("ready", "int8"))
    try:
        quant_pre_process(str(file), str(ready), skip_symbolic_shape=True)
        quantize_static(
            str(ready),
            str(made),
            _Reader(calibrating),  # pyright: ignore[reportArgumentType]
            op_types_to_quantize=["Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        told = _compared(run_onnx(file), run_onnx(made), judged)
        if not told.psnr >= LEAST:
            raise ValueError(
                f"in 8 bits its results are {told.psnr:.1f} dB from float32's, less than {LEAST:.0f}: leave int8 out"
            )
        made.replace(file)
    finally:
        for path in (ready, made):
            path.unlink(missing_ok=True)
    return told


def _pictures(model: Translator, folder: Path) -> list[Tensor]:
    """The pictures as inputs of the network, `(1, C, side, side)` in [-1, 1], at the size of its training."""
    names = list_images(folder) if folder.is_dir() else ()
    if len(names) < 2:
        raise ValueError(
            f"int8={folder} holds {counted(len(names), 'picture')}: name a folder with 2 or more, better 32, to "
            "translate"
        )
    chosen = sorted({round(place * (len(names) - 1) / (MOST_PICTURES - 1)) for place in range(MOST_PICTURES)})
    multiple = model.multiple
    side = -(-max(64, int(model.header.get("image_size") or 256)) // multiple) * multiple
    read = (
        to_images(model, read_picture(folder / names[place], pages_are_channels=model.pages_are_channels)).float()
        for place in chosen
    )
    return [F.interpolate(one, (side, side), mode="bilinear", antialias=True).clamp(-1, 1) for one in read]


class _Reader:
    """The inputs of ONNX Runtime's calibration, one after another."""

    def __init__(self, pictures: Sequence[Tensor]):
        self._left = iter(pictures)

    def get_next(self) -> dict[str, np.ndarray] | None:
        picture = next(self._left, None)
        return None if picture is None else {"image": picture.numpy()}


def run_onnx(file: Path) -> Callable[[Tensor], Tensor]:
    """The network of a file, computed by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def _compared(plain: Callable[[Tensor], Tensor], small: Callable[[Tensor], Tensor], judged: list[Tensor]) -> Quantised:
    ratios, far = [], 0.0
    for picture in judged:
        exact, made = plain(picture), small(picture)
        far = max(far, float((made - exact).abs().max()))
        wrong = (((made + 1) * 127.5).round() - ((exact + 1) * 127.5).round()).square().mean()
        ratios.append(float(10 * torch.log10(255**2 / wrong.clamp(min=1e-6))))
    return Quantised(sum(ratios) / len(ratios), far, len(judged), judged[0].shape[-1])
