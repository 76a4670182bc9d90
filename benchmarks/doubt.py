"""How well a map of doubt says where a translation is wrong, on the rendered set, whose true translations are known.

    python -m benchmarks.doubt OUT.json RUN ...

Every RUN is trained on apples2oranges. Beside what `velogan translate --doubt` writes stand the amount of change and
the edges of the result; what else was tried is in LOG.md, and in this file at 98415e2. A map's figures:

    pixels    Spearman's rank correlation with the true absolute error over the pixels of the object and `AROUND` pixels
              around it, mean over pictures; `smooth`: both maps blurred first, by a Gaussian of `SIGMA` pixels
    object    the same over the object's own pixels
    pictures  the correlation over pictures of the means over these pixels; `whole`: over all their pixels
    planted   the share of the pixels of an object that neither domain has, planted at a random place of each picture,
              among the picture's most doubtful tenth; chance is 0.1. By kind of object too
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from velogan.config import read_config
from velogan.data.rendered.apples2oranges import render
from velogan.evaluation.doubt import doubter_of
from velogan.translate.model import Translator, load_translator
from velogan.types import Direction, Letter

AROUND = 6
"""Pixels around the object that count too, about a tenth of the side."""

SIGMA = 2.0
"""Of the blur in pixels."""

PICTURES = 48
"""Those that the set tests on."""


@dataclass(frozen=True)
class Scenes:
    """Pictures and true translations `(B, 3, H, W)` in [-1, 1]; `mask` of the object and `around` `(B, H, W)`."""

    images: Tensor
    truths: Tensor
    mask: Tensor
    around: Tensor


def scenes(way: Direction, *, size: int) -> Scenes:
    """`PICTURES` scenes of the domain that `way` leads from."""
    letter: Letter = "A" if way == "a2b" else "B"
    made = [render("test", letter, index, image_size=size, seed=0) for index in range(PICTURES)]
    images, truths = (
        torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2) / 127.5 - 1
        for arrays in ([one.image for one in made], [one.truth for one in made])
    )
    mask = torch.from_numpy(np.stack([one.mask for one in made])) > 0
    around = functional.max_pool2d(mask[:, None].float(), 2 * AROUND + 1, stride=1, padding=AROUND)[:, 0] > 0
    return Scenes(images, truths, mask, around)


def maps_of(net: Translator, x: Tensor) -> dict[str, Tensor]:
    """Every map by name, `(B, H, W)`, of pictures `(B, 3, H, W)`."""
    y = net(x)
    built = doubter_of(net)(x)
    return {"what velogan translate --doubt writes": built, "change": far(y, x), "edges of the result": edges(y)}


def far(one: Tensor, other: Tensor) -> Tensor:
    """The absolute difference, mean over channels, `(B, H, W)`."""
    return (one - other).abs().mean(dim=1)


def edges(x: Tensor) -> Tensor:
    """The gradient's length, mean over channels: what knows nothing of the translation."""
    across = functional.pad(x, (1, 1, 0, 0), mode="replicate").diff(n=1, dim=3)
    down = functional.pad(x, (0, 0, 1, 1), mode="replicate").diff(n=1, dim=2)
    across, down = across[..., 1:] + across[..., :-1], down[..., 1:, :] + down[..., :-1, :]
    return (across.square() + down.square()).sqrt().mean(dim=1)


def smooth(maps: Tensor) -> Tensor:
    """`(B, H, W)` blurred by a Gaussian of `SIGMA`, by reflection at the sides."""
    reach = int(3 * SIGMA)
    offsets = torch.arange(-reach, reach + 1, dtype=maps.dtype)
    kernel = torch.exp(-offsets.square() / (2 * SIGMA**2))
    kernel = kernel / kernel.sum()
    padded = functional.pad(maps[:, None], (reach,) * 4, mode="reflect")
    return functional.conv2d(functional.conv2d(padded, kernel[None, None, :, None]), kernel[None, None, None])[:, 0]


def spearman(one: Tensor, other: Tensor) -> float:
    """The rank correlation of two vectors; ties, of which floats have few, in the order they come in."""
    ranks = torch.stack([values.argsort(stable=True).argsort(stable=True).double() for values in (one, other)])
    return float(torch.corrcoef(ranks)[0, 1])


def agreement(doubt: Tensor, error: Tensor, scene: Scenes) -> dict[str, float]:
    """The figures of one map against the true error, both `(B, H, W)`."""
    blurred, blurred_error = smooth(doubt), smooth(error)

    def over(map: Tensor, wrong: Tensor, where: Tensor) -> float:
        return float(np.mean([spearman(m[w], e[w]) for m, e, w in zip(map, wrong, where)]))

    def means(map: Tensor) -> Tensor:
        return (map * scene.around).sum(dim=(1, 2)) / scene.around.sum(dim=(1, 2))

    return {
        "pixels": over(doubt, error, scene.around),
        "pixels, smooth": over(blurred, blurred_error, scene.around),
        "object": over(doubt, error, scene.mask),
        "object, smooth": over(blurred, blurred_error, scene.mask),
        "pictures": spearman(means(doubt), means(error)),
        "pictures, whole": spearman(doubt.mean(dim=(1, 2)), error.mean(dim=(1, 2))),
    }


COLOURS = {"blue square": (0.1, 0.25, 0.9), "magenta disc": (0.85, 0.1, 0.75), "cyan leaf": (0.1, 0.8, 0.85)}
"""The planted objects and their colours in [0, 1], which neither domain has."""


def plant(images: Tensor) -> tuple[Tensor, Tensor]:
    """The pictures with an object each, the kinds by turns, an eighth of the side wide, and where it is `(B, H, W)`."""
    draw = np.random.default_rng(0)
    side = images.shape[-1]
    half = side / 16
    rows, columns = np.mgrid[:side, :side] + 0.5
    where, colours = [], []
    for number in range(len(images)):
        down, right = draw.uniform(half + 1, side - half - 1, size=2)
        y, x = (rows - down) / half, (columns - right) / half
        kind = list(COLOURS)[number % len(COLOURS)]
        shapes = {
            "blue square": np.maximum(abs(x), abs(y)),
            "magenta disc": np.hypot(x, y),
            "cyan leaf": np.hypot((x + y) / 2, x - y),
        }
        where.append(shapes[kind] < 1)
        colours.append(COLOURS[kind])
    inside = torch.from_numpy(np.stack(where))
    return torch.where(inside[:, None], torch.tensor(colours)[:, :, None, None] * 2 - 1, images), inside


def found_planted(doubt: Tensor, inside: Tensor) -> dict[str, float]:
    """The share of the pixels `inside` that are among each picture's most doubtful tenth; mean over pictures."""
    flat = doubt.flatten(1)
    top = torch.zeros_like(flat, dtype=torch.bool).scatter(1, flat.topk(flat.shape[1] // 10, dim=1).indices, True)
    shares = np.array([float(t[i].float().mean()) for t, i in zip(top, inside.flatten(1))])
    kinds = {f"planted, {kind}": float(shares[number :: len(COLOURS)].mean()) for number, kind in enumerate(COLOURS)}
    return {"planted": float(shares.mean()), **kinds}


@torch.inference_mode()
def measure(run: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Figures of every map by direction."""
    config = read_config(run)
    found = {}
    for way in config.method.directions:
        scene = scenes(way, size=config.data.crop_size)
        net = load_translator(run, direction=way)
        error = far(net(scene.images), scene.truths)
        figures = {name: agreement(map, error, scene) for name, map in maps_of(net, scene.images).items()}
        figures["the error itself"] = {
            "mean": float(error.mean()),
            "mean on the object": float(error[scene.mask].mean()),
            "mean around it": float(error[scene.around & ~scene.mask].mean()),
        }
        images, inside = plant(scene.images)
        wrong = far(net(images), torch.where(inside[:, None], images, scene.truths))
        figures["the error itself"] |= {"mean on planted": float(wrong[inside].mean()), **found_planted(wrong, inside)}
        for name, map in maps_of(net, images).items():
            figures[name] |= found_planted(map, inside)
            figures[name]["planted, smooth"] = found_planted(smooth(map), inside)["planted"]
        found[way] = figures
    return found


def table(measured: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    """Mean over runs of a method, by direction: a row for each map, best first."""
    columns = (
        "pixels",
        "pixels, smooth",
        "object",
        "object, smooth",
        "pictures",
        "pictures, whole",
        "planted",
        "planted, smooth",
    )
    kinds: dict[tuple[str, str], list[Mapping[str, Mapping[str, float]]]] = {}
    for run, ways in measured.items():
        for way, figures in ways.items():
            kinds.setdefault((read_config(Path(run)).method.kind, way), []).append(figures)
    lines = []
    for (kind, way), runs in kinds.items():
        names = sorted(runs[0], key=lambda name: -np.mean([run[name].get("pixels", 2) for run in runs]))
        lines += [f"{kind} {way}, {len(runs)} runs", f"{'':44}" + " ".join(f"{one:>15}" for one in columns)]
        for name in names:
            cells = (np.mean([run[name].get(one, np.nan) for run in runs]) for one in columns)
            lines.append(f"{name:44}" + " ".join(f"{cell:15.3f}" for cell in cells))
        means = {key: np.mean([run["the error itself"][key] for run in runs]) for key in runs[0]["the error itself"]}
        lines.append("  ".join(f"{key} {value:.3f}" for key, value in means.items()) + "\n")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    asked = parser.parse_args()
    result = {str(run): measure(run) for run in asked.runs}
    print(table(result))
    asked.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
