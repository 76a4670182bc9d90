"""Cases of the benchmark: methods, networks, image sizes, and modes of a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from velogan.config import Config
from velogan.files import did_you_mean
from velogan.recipes import DEFAULT, RECIPES

METHODS = ("cyclegan", "onepair", "onepair-plus")
"""Presets whose steps are measured."""

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
"""Values of `engine.mode`; default is auto, as in a run without settings."""

_SIZE, _BATCH = 256, 1
_BATCHES = (1, 16)


@dataclass(frozen=True)
class Case:
    """A method, networks and pictures; one step of them is measured."""

    network: str
    discriminator: str
    image_size: int
    batch_size: int
    method: str = DEFAULT

    @property
    def config(self) -> Config:
        """The method's preset with these networks and pictures."""
        return RECIPES[self.method]().change(
            generator=NETWORKS[self.network],
            discriminator=DISCRIMINATORS[self.discriminator],
            data={"crop_size": self.image_size, "batch_size": self.batch_size},
        )

    @property
    def possible(self) -> bool:
        """Whether the method can use this network: some need an encoder, which a U-Net does not have."""
        try:
            return bool(self.config)
        except ValueError:
            return False

    @property
    def label(self) -> str:
        """For display: the method, and `resnet_9, basic, 256x256, batch 1`."""
        return f"{self.method}, {self.setting}"

    @property
    def setting(self) -> str:
        """The same without the method. Cases with one setting are measured together."""
        size = f"{self.image_size}x{self.image_size}"
        return f"{self.network}, {self.discriminator}, {size}, batch {self.batch_size}"


Modes = Mapping[str, Mapping[str, Any]]
"""Engine settings by name."""

Plan = Mapping[Case, Modes]
"""The modes to measure for each case; each becomes a row."""


def make_plan(only: str | None, *, everything: bool, device: torch.device) -> Plan:
    """The usual rows for `device`, or all rows with `everything`; `only` names a part.

    `only` is a list of words with commas, in any order: methods, networks, discriminators, modes, `batch=N`, `size=N`.
    Several words of a kind are all measured; kinds without a word keep their usual values. Impossible combinations are
    left out. ValueError for an unknown word, and if no row is left.
    """
    words = _parse(only or "")
    cuda = device.type == "cuda"
    usual = MODES[:5] if cuda else ("reference", "eager", "default")
    possible = MODES if cuda else ("reference", "eager", "compiled", "default")
    requested = ("reference", *words["mode"]) if words["mode"] else ()  # ratios are to the reference
    modes = requested or (possible if everything else usual)
    brief = not (cuda or requested or everything or words["method"])  # steps on a CPU take seconds
    cases = [case for case in _cases(words, everything=everything) if case.possible]
    if not cases:
        raise ValueError(f"--only {only}: {words['method'][0]} takes only resnets; name resnet_9 or resnet_6")
    return {case: _modes(("default",) if brief and case.method != DEFAULT else modes) for case in cases}


def _cases(words: Mapping[str, Sequence[Any]], *, everything: bool) -> list[Case]:
    combinations = itertools.product(
        words["network"] or (NETWORKS if everything else ("resnet_9", "unet_256")),
        words["discriminator"] or (DISCRIMINATORS if everything else ("basic",)),
        words["size"] or (_SIZE,),
        words["batch"] or (_BATCHES if everything else (_BATCH,)),
        words["method"] or METHODS,
    )
    return [Case(*product) for product in combinations]


def _modes(modes: Iterable[str]) -> Modes:
    """Return engine settings by mode."""
    special = {"default": {"mode": "auto"}, "compiled": {"mode": "eager", "compile": "on"}}
    return {mode: special.get(mode, {"mode": mode}) for mode in MODES if mode in modes}


def _parse(only: str) -> dict[str, list[Any]]:
    kinds: dict[str, Sequence[str]] = {
        "method": METHODS,
        "network": list(NETWORKS),
        "discriminator": list(DISCRIMINATORS),
        "mode": list(MODES),
    }
    parsed: dict[str, list[Any]] = {kind: [] for kind in (*kinds, "batch", "size")}
    for word in filter(None, map(str.strip, only.split(","))):
        name, equals, value = word.partition("=")
        kind = next((kind for kind, known in kinds.items() if word in known), None)
        if kind:
            parsed[kind].append(word)
        elif equals and name in ("batch", "size"):
            if not value.isdecimal() or not int(value):
                raise ValueError(f"--only {word}: {name} takes a whole number from 1 on, such as {name}=16")
            parsed[name].append(int(value))
        else:
            known = [word for words in kinds.values() for word in words]
            lists = "; ".join(f"{kind}s {', '.join(words)}" for kind, words in kinds.items())
            raise ValueError(
                f"--only {word}: unknown word{did_you_mean(word, known)}; there are {lists}; batch=N; size=N (pixels)"
            )
    return parsed
