"""Is an 8-bit ONNX file worth having on a CPU? Against float32 in ONNX Runtime, and against velogan's own translation.

    python benchmarks/int8.py --rounds 10 --threads 1 RUN TRAIN_FOLDER TEST_FOLDER [...]

For each run: its a2b generator as ONNX in float32 and quantised statically (QDQ, per channel, calibrated on pictures
of TRAIN_FOLDER), by turns in one process with `velogan translate`'s network in bfloat16, on pictures of
TEST_FOLDER at 256x256. Times are medians, of processor time with one thread; PSNR is between results of int8 or bf16
and of float32, all rounded to 8 bits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from PIL import Image

from velogan.interchange.export import export
from velogan.translate.model import load_translator

SIDE = 256


def pictures(folder: Path, count: int) -> Iterator[np.ndarray]:
    """`(1, 3, SIDE, SIDE)` float32 in [-1, 1], spread over the folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for file in files[:: max(1, len(files) // count)][:count]:
        picture = Image.open(file).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        yield (np.asarray(picture, np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]


class Reader(CalibrationDataReader):
    """Pictures for the calibration."""

    def __init__(self, folder: Path, count: int):
        self._left = iter([{"image": picture} for picture in pictures(folder, count)])

    def get_next(self) -> Any:
        return next(self._left, None)


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Of two results in [-1, 1], after rounding to 8 bits, in dB."""
    first, second = (((made + 1) * 127.5).round().clip(0, 255) for made in (one, other))
    return float(10 * np.log10(255**2 / max(((first - second) ** 2).mean(), 1e-9)))


def session(file: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    made = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda picture: np.asarray(made.run(None, {"image": picture})[0])


def measure(run: Path, train: Path, test: Path, *, threads: int, rounds: int, count: int) -> None:
    model = load_translator(run, fast=True)
    config = model.header["config"]
    print(f"{run.name}: {config['network']}, {config['blocks']} blocks, width {config['channels']}", flush=True)

    def own(rounded: bool) -> Callable[[np.ndarray], np.ndarray]:
        return lambda picture: model.quickly(torch.from_numpy(picture), rounded=rounded).numpy()

    with tempfile.TemporaryDirectory() as folder:
        plain, ready = Path(folder) / "net.onnx", Path(folder) / "ready.onnx"
        export(model, plain, format="onnx")
        quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
        ways = {"ONNX float32": session(plain, threads)}
        for name, kinds in (("convolutions", ["Conv"]), ("everything", None)):
            file = Path(folder) / f"{name}.onnx"
            quantize_static(
                str(ready),
                str(file),
                Reader(train, count),
                op_types_to_quantize=kinds,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            ways[f"ONNX int8, {name}"] = session(file, threads)
        ways |= {"velogan float32": own(False), "velogan bf16": own(True)}
        seen = list(pictures(test, count))
        exact = [ways["ONNX float32"](picture) for picture in seen]
        agree = {name: np.mean([psnr(way(x), y) for x, y in zip(seen, exact)]) for name, way in ways.items()}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            for name, way in ways.items():
                began = time.thread_time() if threads == 1 else time.perf_counter()
                way(seen[number % len(seen)])
                times[name].append((time.thread_time() if threads == 1 else time.perf_counter()) - began)
        first = np.median(times["ONNX float32"])
        for name, took in times.items():
            ms = np.median(took)
            print(f"  {name:40} {1000 * ms:8.1f} ms  {first / ms:5.2f}x  PSNR {agree[name]:6.2f} dB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUN TRAIN TEST")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for run, train, test in zip(*[iter(asked.paths)] * 3):
        measure(run, train, test, threads=asked.threads, rounds=asked.rounds, count=asked.pictures)


if __name__ == "__main__":
    main()
