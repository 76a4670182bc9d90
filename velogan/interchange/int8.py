"""A generator as ONNX in 8 bits, for CPUs: weights of convolutions by output channel, activations by ranges seen.

Norms and activations between them stay float32, as do transposed convolutions, which ONNX Runtime has in no other type.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from velogan.data.pictures.images import read_picture
from velogan.data.sets.sources import list_images
from velogan.translate.model import Translator
from velogan.translate.pictures import to_images

MOST_PICTURES = 32
"""Of a folder, evenly spread; every fourth judges, the others calibrate."""

LEAST = 30.0
"""dB of PSNR to float32, below which a file is refused."""

_ROUNDS = 5


@dataclass(frozen=True)
class Quantised:
    """What 8 bits cost and gave on `pictures` of `side` x `side` that had no part in the calibration.

    `psnr`: to float32 in dB, the mean over pictures, of results in 8 bits; `max_difference`: the largest, in [-1, 1];
    `faster`: how many times as fast as float32 in ONNX Runtime, with one thread on this machine.
    """

    psnr: float
    max_difference: float
    faster: float
    pictures: int
    side: int


def quantise(model: Translator, file: Path, pictures: Path) -> Quantised:
    """Puts in place of the float32 ONNX `file` of `model` one of 8 bits, by the `pictures` of a folder.

    ValueError where there are too few pictures, or results are farther from float32 than `LEAST`.
    """
    from onnxruntime.quantization import QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    seen = _pictures(model, pictures)
    judged = seen[::4]
    calibrating = [one for place, one in enumerate(seen) if place % 4]
    ready, made = (file.with_name(f"{file.stem}-{part}.onnx") for part in ("ready", "int8"))
    try:
        with _quiet():
            quant_pre_process(str(file), str(ready), skip_symbolic_shape=True)
            quantize_static(
                str(ready),
                str(made),
                _reader(calibrating),
                op_types_to_quantize=["Conv"],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        told = _compared(_session(file), _session(made), judged)
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
    """Pictures as the network takes them, `(1, C, side, side)`, at the size of its training."""
    names = list_images(folder) if folder.is_dir() else ()
    if len(names) < 2:
        raise ValueError(
            f"int8={folder} holds {len(names)} pictures: name a folder with 2 or more, better 32, to translate"
        )
    chosen = sorted({round(place * (len(names) - 1) / (MOST_PICTURES - 1)) for place in range(MOST_PICTURES)})
    multiple = model.multiple
    side = -(-max(64, int(model.header.get("image_size") or 256)) // multiple) * multiple
    read = (to_images(model, read_picture(folder / names[place])).float() for place in chosen)
    return [F.interpolate(one, (side, side), mode="bilinear", antialias=True).clamp(-1, 1) for one in read]


def _reader(pictures: Sequence[Tensor]) -> Any:
    """What ONNX Runtime's calibration takes its inputs from."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self):
            self._left = iter(pictures)

        def get_next(self) -> Any:
            picture = next(self._left, None)
            return None if picture is None else {"image": picture.numpy()}

    return Reader()


def _session(file: Path) -> Callable[[Tensor], Tensor]:
    """Runs a file with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def _compared(plain: Callable[[Tensor], Tensor], small: Callable[[Tensor], Tensor], judged: list[Tensor]) -> Quantised:
    ratios, far, took = [], 0.0, ([], [])
    for picture in judged:
        exact, made = plain(picture), small(picture)
        far = max(far, float((made - exact).abs().max()))
        wrong = (((made + 1) * 127.5).round() - ((exact + 1) * 127.5).round()).square().mean()
        ratios.append(float(10 * torch.log10(255**2 / wrong.clamp(min=1e-6))))
    for number in range(_ROUNDS):
        for way, times in zip((plain, small), took):
            began = time.thread_time()  # of this thread, which is the only one
            way(judged[number % len(judged)])
            times.append(time.thread_time() - began)
    faster = median(took[0]) / max(median(took[1]), 1e-9)
    return Quantised(sum(ratios) / len(ratios), far, faster, len(judged), judged[0].shape[-1])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the library tells the root logger."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(level)
