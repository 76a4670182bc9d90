"""What `velogan bench` measures: networks, pictures, and the ways of computing one step of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from velogan.config import Config, nearest
from velogan.engine.resolve import REFERENCE

NETWORKS: dict[str, dict[str, Any]] = {
    "resnet_9": {"network": "resnet", "blocks": 9},
    "resnet_6": {"network": "resnet", "blocks": 6},
    "unet_256": {"network": "unet_256"},
    "unet_128": {"network": "unet_128"},
}
DISCRIMINATORS: dict[str, dict[str, Any]] = {
    "basic": {"network": "basic"},
    "n_layers": {"network": "n_layers", "layers": 4},
    "pixel": {"network": "pixel"},
}
"""n_layers is one layer deeper than basic: of equal depth it would be the same network."""

MODES = ("reference", "eager", "compiled", "graph", "streams", "default")
"""Values of `engine.mode`; default is auto, what a run takes that says nothing."""

_SIZE, _BATCH = 256, 1
_BATCHES = (1, 16)


@dataclass(frozen=True)
class Case:
    """Networks and pictures whose step is measured."""

    network: str
    discriminator: str
    image_size: int
    batch_size: int

    @property
    def config(self) -> Config:
        """The default configuration with these networks and pictures."""
        return Config().change(
            generator=NETWORKS[self.network],
            discriminator=DISCRIMINATORS[self.discriminator],
            data={"crop_size": self.image_size, "batch_size": self.batch_size},
        )

    @property
    def label(self) -> str:
        """For people: `resnet_9, basic, 256x256, batch 1`."""
        return f"{self.network}, {self.discriminator}, {self.image_size}x{self.image_size}, batch {self.batch_size}"


@dataclass(frozen=True)
class Plan:
    """Cases, and engine settings by name, the reference first: each way of each case is a row."""

    cases: tuple[Case, ...]
    ways: Mapping[str, Mapping[str, Any]]


def make_plan(only: str | None, *, everything: bool, device: torch.device) -> Plan:
    """The rows a person needs on `device`, or, with `everything`, all there are; `only` names a part.

    `only` is words between commas, in any order: networks, discriminators, modes, `batch=N`, `size=N`. Several of a
    kind are measured each; kinds that are not named stay as they are without it. ValueError for an unknown word.
    """
    words = _parse(only or "")
    cuda = device.type == "cuda"
    usual = MODES[:5] if cuda else ("reference", "eager", "default")
    possible = MODES if cuda else ("reference", "eager", "compiled", "default")
    modes = words["mode"] or (possible if everything else usual)
    cases = itertools.product(
        words["network"] or (NETWORKS if everything else ("resnet_9", "unet_256")),
        words["discriminator"] or (DISCRIMINATORS if everything else ("basic",)),
        words["size"] or (_SIZE,),
        words["batch"] or (_BATCHES if everything else (_BATCH,)),
    )
    return Plan(tuple(Case(*case) for case in cases), _ways(modes))


def make_chain(only: str | None, *, device: torch.device) -> Plan:
    """The reference and, one upon the other, the changes that make the default of `device` faster.

    `only` as in `make_plan`, without modes. ValueError for what does not fit.
    """
    words = _parse(only or "")
    if words["mode"]:
        raise ValueError(f"--only {only}: --waterfall measures its own chain of changes; leave {words['mode'][0]} out")
    steps: list[tuple[str, dict[str, Any]]] = [
        ("reference", {"mode": "reference"}),
        ("passes together, fused Adam", {"mode": "auto", "batched": "on", "fused_optimizer": "on"}),
        ("channels-last", {"layout": "channels_last"}),
        ("bf16", {"precision": "bf16"}),
    ]
    if device.type == "cuda":
        steps += [("compile", {"compile": "on"}), ("capture", {"capture": "on"})]
    else:
        steps += [("native kernels", {"kernels": "native"}), ("Winograd", {"kernels": "winograd"})]
    engine: dict[str, Any] = dict(REFERENCE)
    ways = {name: dict(engine := engine | change) for name, change in steps}
    plan = make_plan(only, everything=False, device=device)
    return Plan(plan.cases, ways)


def _ways(modes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Engine settings by mode. The reference is always among them: ratios are to it."""
    return {mode: {"mode": "auto" if mode == "default" else mode} for mode in MODES if mode in {"reference", *modes}}


def _parse(only: str) -> dict[str, list[Any]]:
    kinds: dict[str, Sequence[str]] = {
        "network": list(NETWORKS),
        "discriminator": list(DISCRIMINATORS),
        "mode": list(MODES),
    }
    found: dict[str, list[Any]] = {kind: [] for kind in (*kinds, "batch", "size")}
    for word in filter(None, map(str.strip, only.split(","))):
        name, equals, value = word.partition("=")
        kind = next((kind for kind, known in kinds.items() if word in known), None)
        if kind:
            found[kind].append(word)
        elif equals and name in ("batch", "size"):
            if not value.isdecimal() or not int(value):
                raise ValueError(f"--only {word}: {name} takes a whole number from 1 on, such as {name}=16")
            found[name].append(int(value))
        else:
            known = [one for words in kinds.values() for one in words]
            lists = "; ".join(f"{kind}s {', '.join(words)}" for kind, words in kinds.items())
            raise ValueError(
                f"--only {word}: there is no such thing to measure{nearest(word, known)}; there are {lists}; batch=N; "
                "size=N (pixels)"
            )
    return found
