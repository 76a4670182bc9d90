"""SqueezeNet v1.0 as a judge that no training uses: FID, KID and class shares over its features.

python -m benchmarks.squeezenet RUN --weights squeezenet1_0.npz --classes zebra=340 [--data DIR] [--json]
python -m benchmarks.squeezenet DIR --weights squeezenet1_0.npz --against DIR
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from velogan.engine.device import resolve_device
from velogan.evaluation.compare import compare
from velogan.evaluation.evaluate import evaluate
from velogan.evaluation.features import FeatureNetwork
from velogan.evaluation.table import render_table
from velogan.files import sha256
from velogan.metrics.resize import to_rgb
from velogan.observe.progress import Display

RESIZE = "to 8 bits, then antialiased bicubic to 227x227 in integer arithmetic, as Pillow"
"""Resizing of images for the network; part of every metric computed over it."""

SCALE = 16.0
"""Divisor of fire9's averages, near their root mean square over photographs. It makes distances readable."""

_SIDE = 227
_BGR_MEAN = (104.0, 117.0, 123.0)
_FIRES = {  # name: (inputs, squeeze, expand of each size)
    "fire2": (96, 16, 64),
    "fire3": (128, 16, 64),
    "fire4": (128, 32, 128),
    "fire5": (256, 32, 128),
    "fire6": (256, 48, 192),
    "fire7": (384, 48, 192),
    "fire8": (384, 64, 256),
    "fire9": (512, 64, 256),
}


class SqueezeNet(nn.Module):
    """SqueezeNet v1.0 (Iandola et al. 2016, table 1) with its 1000-class ImageNet head, frozen, in eval mode.

    `arrays`: the published weights by name, `conv1.weight` ... `conv_final.bias`, fp32 in OIHW order; the
    first layer takes BGR in 0..255 minus the mean. Raises `ValueError` if names or shapes differ.
    """

    mean: Tensor

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, 7, stride=2)
        for name, channels in _FIRES.items():
            self.add_module(name, _Fire(*channels))
        self.conv_final = nn.Conv2d(512, 1000, 1, padding=1)
        self.register_buffer("mean", torch.tensor(_BGR_MEAN).view(1, 3, 1, 1), persistent=False)
        state = {name: torch.from_numpy(np.array(array, dtype=np.float32)) for name, array in arrays.items()}
        try:
            self.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(
                f"these are not the weights of SqueezeNet v1.0 with its 1000-class head: {error}"
            ) from None
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features `(B, 512)`, the average of fire9 over space by `SCALE`, and class logits `(B, 1000)`.

        `images`: `(B, 3, H, W)`, or `(B, 1, H, W)` in grey, in [-1, 1]; resized as `RESIZE` says.
        Raises `ValueError` for other channels.
        """
        # Integer resizing exists on the CPU alone; it gives equal input everywhere and follows Pillow's.
        small = ((to_rgb(images).float() + 1) * 127.5).round().clamp(0, 255).byte().cpu()
        if small.shape[-2:] != (_SIDE, _SIDE):
            small = functional.interpolate(small, size=(_SIDE, _SIDE), mode="bicubic", antialias=True)
        bgr = small.flip(1).to(images.device)
        x = functional.relu(self.conv1(bgr.float() - self.mean))
        for name in _FIRES:
            if name in ("fire2", "fire5", "fire9"):
                x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)
            x = self.get_submodule(name)(x)
        logits = functional.relu(self.conv_final(x)).mean(dim=(2, 3))
        return x.mean(dim=(2, 3)) / SCALE, logits


class _Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        return functional.relu(torch.cat([self.expand1x1(x), self.expand3x3(x)], dim=1))


def load_squeezenet(file: Path, device: torch.device | str) -> FeatureNetwork:
    """Load the network from an `.npz` file of its weights; its metrics are `squeeze_fid` and so on.

    Raises ValueError if the file is missing or holds something else.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            net = SqueezeNet(dict(arrays)).to(device)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} cannot be used: {error}; name the .npz file of SqueezeNet's weights") from error

    def extract_features(images: Tensor) -> dict[str, Tensor]:
        features, logits = net(images.to(device))
        return {"squeeze": features.cpu(), "squeeze_logits": logits.cpu()}

    description = f"SqueezeNet v1.0, mean of fire9 over space, divided by {SCALE:g}; not comparable with published FID"
    return FeatureNetwork(extract_features, {"squeeze": description, "sha256": sha256(file), "resize": RESIZE})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder; with --against, a folder of images")
    parser.add_argument("--weights", type=Path, required=True, help="SqueezeNet 1.0 weights (.npz)")
    parser.add_argument("--against", type=Path, help="compare two folders of images; no run is needed")
    parser.add_argument("--data", nargs="*", default=(), help="score on this data instead of the run's own")
    parser.add_argument("--classes", nargs="*", default=[], metavar="NAME=NUMBER", help="ImageNet classes to count")
    parser.add_argument("--checkpoint", choices=["last", "best"])
    parser.add_argument("--limit", type=int, help="score at most this many test images of each domain")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    classes = {name: int(number) for name, _, number in (word.partition("=") for word in args.classes)}
    try:
        judges, device = [load_squeezenet(args.weights, resolve_device("auto"))], resolve_device("auto")
        with Display() as display:
            common: Any = {"judges": judges, "classes": classes, "limit": args.limit, "task": display.task}
            if args.against is not None:
                result = compare(args.run, args.against, device=device, **common)
            else:
                options = {"data": args.data, "checkpoint": args.checkpoint, "device": device}
                result = evaluate(args.run, **options, **common)
    except ValueError as error:
        parser.error(str(error))
    Console(stderr=args.json).print(render_table(result))
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
