"""What label maps beside the pictures are worth (`data.labels_a`, `data.labels_b`): do classes keep their place?

`DATA` is Cityscapes with label maps as A and photographs as B: trainA, and testA and testB, where equal names are
pairs. Two of three pairs give photographs with label maps to train on, and the others test. The first training knows no
label maps, the second those of both domains. A judge, another segmenter that saw the labelled photographs alone, says
what classes there are in translated label maps:

    python -m benchmarks.classes DATA OUT --images 700
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import velogan
from velogan.data.config import DataConfig
from velogan.data.sets.cache import open_domain
from velogan.data.sets.loader import PairLoader, classes_of, normalise
from velogan.data.sets.pair import Data, open_data
from velogan.data.sets.sources import Folder, LabelMaps
from velogan.metrics.labels import intersection_over_union
from velogan.networks.build import build_network
from velogan.objectives.classes import wrong_classes
from velogan.store.checkpoint import find_checkpoint, load_weights
from velogan.translate.model import load_translator

SIDE = 64
STEPS = 400
"""Of the judge, with four photographs each."""


def link(files: list[Path], folder: Path) -> Path:
    """Links to files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def divide(data: Path, out: Path) -> dict[str, str]:
    """Makes trainA, trainB, testA, testB and labelsB of links; gives the fields of the labels."""
    names = sorted(one.name for one in (data / "testA").iterdir())
    parts = {"train": [n for i, n in enumerate(names) if i % 3], "test": names[::3]}
    maps = link(sorted((data / "trainA").iterdir()), out / "trainA")
    link([data / "testB" / name for name in parts["train"]], out / "trainB")
    labels = link([data / "testA" / name for name in parts["train"]], out / "labelsB")
    for letter in "AB":
        link([data / f"test{letter}" / name for name in parts["test"]], out / f"test{letter}")
    return {"labels_a": str(maps), "labels_b": str(labels)}


def judge(data: Data, config: DataConfig) -> nn.Module:
    """A segmenter of photographs, B."""
    torch.manual_seed(1)
    assert data.colours is not None
    header = {"network": "segmenter", "in_channels": 3, "classes": len(data.colours), "channels": 32}
    net, loader = build_network(header), PairLoader(data.a, data.b, config, seed=1, device="cpu", beside=data.beside)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = loader.batch(step * config.batch)
        optimizer.zero_grad()
        labels = batch["label_b"]
        wrong_classes(net(batch["B"]), labels, (labels >= 0).float()).backward()
        optimizer.step()
    return net.eval()


def pictures(folder: Path, config: DataConfig, kind: type[Folder] = Folder) -> Tensor:
    """The pictures of a folder, `(N, H, W, C)` uint8."""
    names = tuple(sorted(one.name for one in folder.iterdir()))
    domain = open_domain(kind(folder, names), config, test=True)
    return torch.from_numpy(domain.image(0)[None]).new_tensor([domain.image(n).tolist() for n in range(len(domain))])


@torch.no_grad()
def agreement(logits: Tensor, classes: Tensor) -> str:
    """Mean IoU over the classes that there are, and the share of pixels that are right."""
    count, there = logits.shape[1], classes >= 0
    pairs = (classes * count + logits.argmax(1))[there]
    whole = torch.bincount(pairs, minlength=count**2).view(count, count).double()
    iou = intersection_over_union(whole)[whole.sum(1) > 0].nanmean().item()
    return f"mIoU {iou:.3f}, pixels {(whole.diagonal().sum() / whole.sum()).item():.3f}"


def main() -> None:
    """Trains both, and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=700)
    parser.add_argument("--only", choices=["without", "with", "judge"], nargs="+", default=["without", "with", "judge"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    labels = divide(asked.data, asked.out / "set")
    fields = {"path": (str(asked.out / "set"),), "crop_size": SIDE, "validation": 0}
    for name, more in (("without", {}), ("with", labels)):
        if name not in asked.only:
            continue
        config = (
            velogan.preset("cyclegan")
            .sized("xs")
            .change(
                data=fields | more,
                train={"length": f"{asked.images} images", "samples": 0, "tensorboard": False},
                schedule={"kind": "constant"},
                optimizer={"rules": ("S:lr=1e-3",) if more else ()},
                engine={"threads": 1},
            )
        )
        velogan.train(config, asked.out / name)
    if "judge" not in asked.only:
        return
    config = DataConfig(**fields, **labels, batch_size=4)  # pyright: ignore[reportArgumentType]
    data = open_data(config, task=lambda name: lambda done, total: None, say=print)
    colours = data.colours
    assert colours is not None
    net = judge(data, config)
    maps = pictures(asked.out / "set/testA", config, LabelMaps)
    classes = classes_of(maps.float(), colours)
    given, photos = (normalise(pictures(asked.out / f"set/test{letter}", config)) for letter in "AB")
    print(f"real photographs, by the judge: {agreement(net(photos), classes)}")
    for name in ("without", "with"):
        there = load_translator(asked.out / name, direction="a2b", weights="raw")(given)
        back = load_translator(asked.out / name, direction="b2a", weights="raw")(photos)
        print(f"{name} labels, translated maps, by the judge: {agreement(net(there), classes)}")
        levels = (back.movedim(1, -1) + 1) * 127.5
        nearest = (levels[..., None, :] - colours).square().sum(-1).neg().movedim(-1, 1)
        print(f"{name} labels, translated photographs, by the nearest colour: {agreement(nearest, classes)}")
        if name == "with":
            header, weights = load_weights(find_checkpoint(asked.out / name, "last") / "S.safetensors")
            own = build_network(header)
            own.load_state_dict(weights)
            print(f"{name} labels, translated maps, by its own segmenter: {agreement(own(there), classes)}")
            print(f"real photographs, by its own segmenter: {agreement(own(photos), classes)}")
            print(f"real maps, by its own segmenter: {agreement(own(given), classes)}")


if __name__ == "__main__":
    main()
