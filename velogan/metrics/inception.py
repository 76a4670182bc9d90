"""The Inception network whose features define published FID and KID."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from velogan.metrics.resize import resize_for_features

SIDE = 299  # pixels of a square input

_A = {"branch1x1": "64@1x1", "branch5x5": "48@1x1 64@5x5", "branch3x3dbl": "64@1x1 96@3x3 96@3x3"}
_B = {"branch3x3": "384@3x3/2", "branch3x3dbl": "64@1x1 96@3x3 96@3x3/2"}
_C = {
    "branch1x1": "192@1x1",
    "branch7x7": "{0}@1x1 {0}@1x7 192@7x1",
    "branch7x7dbl": "{0}@1x1 {0}@7x1 {0}@1x7 {0}@7x1 192@1x7",
}
_D = {"branch3x3": "192@1x1 320@3x3/2", "branch7x7x3": "192@1x1 192@1x7 192@7x1 192@3x3/2"}
_E = {
    "branch1x1": "320@1x1",
    "branch3x3": "384@1x1 384@1x3|384@3x1",
    "branch3x3dbl": "448@1x1 384@3x3 384@1x3|384@3x1",
}
_BLOCKS: dict[str, tuple[int, dict[str, str], int, int]] = {  # input channels, branches, width for `{0}`, pool channels
    "Mixed_5b": (192, _A, 0, 32),
    "Mixed_5c": (256, _A, 0, 64),
    "Mixed_5d": (288, _A, 0, 64),
    "Mixed_6a": (288, _B, 0, 0),
    "Mixed_6b": (768, _C, 128, 192),
    "Mixed_6c": (768, _C, 160, 192),
    "Mixed_6d": (768, _C, 160, 192),
    "Mixed_6e": (768, _C, 192, 192),
    "Mixed_7a": (768, _D, 0, 0),
    "Mixed_7b": (1280, _E, 0, 192),
    "Mixed_7c": (2048, _E, 0, 192),
}


class Inception(nn.Module):
    """Inception v3 (Szegedy et al. 2016) as FID uses it (Heusel et al. 2017), frozen, in eval mode.

    It is the graph that TensorFlow released on 2015-12-05, not torchvision's: average pooling excludes padding,
    the last block uses maximum pooling, and the head has 1008 classes. Submodules have the names in the ported
    weights that pytorch-fid and torch-fidelity use.

    `state`: the weights by name. Raises ValueError if names or shapes differ.
    """

    num_features = 2048

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        with torch.device("meta"):  # no random initial values for 24 million weights
            self.Conv2d_1a_3x3 = _InceptionConv(3, 32, (3, 3), stride=2)
            self.Conv2d_2a_3x3 = _InceptionConv(32, 32, (3, 3))
            self.Conv2d_2b_3x3 = _InceptionConv(32, 64, (3, 3), padding=(1, 1))
            self.Conv2d_3b_1x1 = _InceptionConv(64, 80, (1, 1))
            self.Conv2d_4a_3x3 = _InceptionConv(80, 192, (3, 3))
            for name, (inputs, branches, width, pooled) in _BLOCKS.items():
                self.add_module(name, _Mixed(inputs, branches, width, pooled, is_max=name == "Mixed_7c"))
            self.fc = nn.Linear(self.num_features, 1008)
        counters = {name: torch.zeros((), dtype=torch.long) for name in self.state_dict() if name.endswith("_tracked")}
        try:  # counts of batches matter only in training, and some versions of the file lack them
            self.load_state_dict(counters | dict(state), assign=True)
        except (RuntimeError, AttributeError) as error:
            raise ValueError(
                f"these are not the weights of the FID Inception network: {' '.join(str(error).split())[:500]}"
            ) from None
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return features `(B, 2048)` of `(B, 3, 299, 299)` in [-1, 1]: the spatial mean of the last block's output."""
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(images)))
        x = functional.max_pool2d(x, 3, stride=2)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))
        x = functional.max_pool2d(x, 3, stride=2)
        for name in _BLOCKS:
            x = self.get_submodule(name)(x)
        return x.mean(dim=(2, 3))

    def extract_features(self, images: Tensor) -> Tensor:
        """Return features `(B, 2048)` of `(B, 1 or 3, H, W)` in [-1, 1], resized and scaled as clean-fid does."""
        return self((resize_for_features(images, SIDE) - 128) / 128)


class _InceptionConv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: tuple[int, int], **settings: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **settings)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class _Mixed(nn.Module):
    """Parallel branches, each a chain like `48@1x1 64@5x5/2` (channels@kernel/stride); `|` marks parallel layers."""

    def __init__(self, inputs: int, branches: Mapping[str, str], width: int, pooled: int, *, is_max: bool) -> None:
        super().__init__()
        self.chains = [self._add_chain(name, chain.format(width), inputs) for name, chain in branches.items()]
        self.is_max = is_max
        self.branch_pool = _InceptionConv(inputs, pooled, (1, 1)) if pooled else None

    def _add_chain(self, branch: str, chain: str, inputs: int) -> list[list[str]]:
        """Add the convolutions of one branch as submodules; return their names, grouped by position in the chain."""
        names: list[list[str]] = []
        links = chain.split()
        for number, link in enumerate(links, start=1):
            names.append([])
            outputs = 0
            for letter, fork in zip("ab", link.split("|")):
                size, _, stride = fork.partition("/")
                outputs, rows, columns = (int(part) for part in re.split("[@x]", size))
                padding = (0, 0) if stride else (rows // 2, columns // 2)
                name = branch if len(links) == 1 else f"{branch}_{number}{letter if '|' in link else ''}"
                self.add_module(
                    name, _InceptionConv(inputs, outputs, (rows, columns), stride=int(stride or 1), padding=padding)
                )
                names[-1].append(name)
            inputs = outputs
        return names

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for chain in self.chains:
            forks = [x]
            for link in chain:
                forks = [self.get_submodule(name)(forks[0]) for name in link]
            outputs += forks
        if self.branch_pool is None:
            return torch.cat([*outputs, functional.max_pool2d(x, 3, stride=2)], dim=1)
        if self.is_max:
            pooled = functional.max_pool2d(x, 3, stride=1, padding=1)
        else:
            pooled = functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        return torch.cat([*outputs, self.branch_pool(pooled)], dim=1)
