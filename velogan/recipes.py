"""Presets: functions that return a complete Config. Their docstrings are their descriptions in help texts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from velogan.config import RESNET_ONLY_DEFAULTS, Config


def cyclegan() -> Config:
    """The CycleGAN paper (Zhu et al. 2017): ResNet-9, 70x70 PatchGAN, 256x256 crops of 286x286, 200 epochs, batch 1.

    velogan train cyclegan --data horse2zebra --out runs/horse2zebra
    """
    return Config()


def fast() -> Config:
    """Good translations in minutes: 128x128, small generators with a mask, discriminators on pretrained features.

    If A and B have the same number of channels, the mask preserves unchanged regions, so there is no identity loss and
    only a weak cycle loss; the edge loss preserves shapes. Small images are enlarged for the pretrained features, up to
    the size that these were trained with. Textures and colours of translations fluctuate within a few hundred training
    images, so the batch size is four, the moving average of weights is long, and the discriminators learn at half the
    rate. Learning rates are constant, because with decay translations changed less. Cutout keeps the discriminators
    from memorising their images, and untranslated inputs among the fakes keep the PatchGANs from accepting the input's
    domain. Reflection padding avoids lines at the borders. docs/training.md has the measurements.

    velogan train fast --data horse2zebra --out runs/zebras
    """
    return (
        Config()
        .with_size("xs")
        .change(
            data={"crop_size": 128, "batch_size": 4},
            generator={"output": "auto", "decoder": "resize", "padding": "reflect"},
            discriminator={"network": "projected+basic", "feature_size": 224},
            method={"gan": "hinge", "augment": ("shift", "cutout")}
            | {"cycle_a": 2.0, "cycle_b": 2.0, "identity": 0.0}
            | {"edges": 20.0, "source_as_fake_fraction": 0.25},
            optimizer={"rules": ("D_*:lr=1e-4",)},
            schedule={"kind": "constant"},
            train={"length": "40 minutes", "checkpoint_every": "10 %", "ema_rampup": 0.2},
        )
    )


def recommended() -> Config:
    """The default of `velogan train`: `fast` in a size for this machine.

    With CUDA, ten minutes at 256x256 with networks of size s; otherwise forty minutes at 128x128 with size xs.

    velogan train --data horse2zebra --out runs/zebras
    """
    if not torch.cuda.is_available():
        return fast()
    return fast().with_size("s").change(data={"crop_size": 256}, train={"length": "10 minutes"})


def demo() -> Config:
    """Apples to oranges, on the built-in set of rendered images, at 64x64, in minutes on two CPU cores.

    The generators have no norm: instance norm removes each image's brightness and colour, which a network this small
    does not learn to restore in minutes. The blocks are initialised as the identity, because without a norm each block
    would double the activations. Pixels that hardly change keep the input's values. In so short a time the hinge
    loss trains small generators further than least squares (docs/training.md, benchmarks/LOG.md).

    velogan demo
    """
    return Config().change(
        data={"crop_size": 64, "batch_size": 2},
        generator={"channels": 32, "blocks": 2, "norm": "none", "init": "identity", "output": "keep"},
        discriminator={"channels": 32},
        method={"gan": "hinge", "cycle_a": 10.0, "cycle_b": 10.0, "identity": 1.0},
        optimizer={"lr": 6e-4, "rules": ("D_*:lr=3e-4",)},
        schedule={"kind": "constant"},
        train={"length": "3000 images", "log_every": "1 %", "sample_every": "4 %", "ema_images": 1000},
    )


def adam_joint() -> Config:
    """One Adam for all four networks, with learning rate 2e-4; each network minimises its own loss (docs/training.md).

    velogan train adam-joint --data horse2zebra --out runs/joint
    """
    return cyclegan().change(schedule={"kind": "constant"})


def adam_each_decay() -> Config:
    """One Adam per network; all learning rates start at 2e-4 and are multiplied by 0.9 every 10,000 images.

    velogan train adam-each-decay --data horse2zebra --out runs/each-decay
    """
    return cyclegan().change(schedule={"kind": "exponential", "gamma": 0.9, "every": "10000 images"})


def adam_each_rates() -> Config:
    """One Adam per network with constant learning rates: G_A 1e-4, G_B 5e-4, the discriminators 2e-4.

    velogan train adam-each-rates --data horse2zebra --out runs/each-rates
    """
    return adam_joint().change(optimizer={"rules": ("G_A:lr=1e-4", "G_B:lr=5e-4", "D_*:lr=2e-4")})


def keras() -> Config:
    """The Keras CycleGAN example (A_K_Nain, 2020): its networks, losses, learning rates and 90 epochs.

    Instance norms have weights, there is no image pool, learning rates are constant, and Adam's epsilon is 1e-7.
    docs/keras.md lists the remaining differences.

    velogan train keras --data horse2zebra --out runs/zebras
    """
    return Config().change(
        generator={"norm": "instance_affine"},
        discriminator={"norm": "instance_affine"},
        method={"pool_size": 0},
        optimizer={"epsilon": 1e-7},
        schedule={"kind": "constant"},
        train={"length": "90 epochs"},
    )


def onepair() -> Config:
    """One autoencoder and one translator of its encodings, as in "Improving Cycle-GAN using Intel AI DevCloud" (2018).

    The paper's "less-complex decoder" is not the default, because it cost 2.6 dB: generator.decoder=simple selects it.

    velogan train onepair --data apple2orange --out runs/oranges
    """
    return Config().change(method="onepair")


def onepair_plus() -> Config:
    """An improved `onepair`: an image changes only where the translator changes its encoding (docs/onepair.md).

    velogan train onepair-plus --data apple2orange --out runs/oranges
    """
    return onepair().change(
        generator={"norm": "none", "init": "identity", "output": "change"},
        method={"scale": 1.0},
        optimizer={"lr": 4e-4},
    )


def demo_onepair() -> Config:
    """The demo with the one-pair method.

    velogan demo demo-onepair
    """
    base = demo()
    return onepair_plus().change(
        data={"crop_size": 64, "batch_size": 2},
        generator={"channels": 16, "blocks": 3},
        discriminator={"channels": 32},
        train=base.train.model_dump(),
    )


def contrast() -> Config:
    """CUT: only A to B, by one generator and one discriminator with a contrastive patch loss (Park et al. 2020).

    velogan train contrast --data horse2zebra --out runs/zebras
    """
    return Config().change(
        method="contrast",
        generator={"antialias": "both", "init": "xavier"},
        discriminator={"antialias": True, "init": "xavier"},
        train={"length": "400 epochs"},
    )


def to_search(config: Config, *, inner: str | None = None) -> Config:
    """Return the configuration of a one-step architecture search (CycleGANAS, section 3) with the method of `config`.

    The generators, and the discriminators unless they use pretrained features, become supernets of cells, with
    encodings a quarter as wide (64 feature maps if `config` has 256); networks built from the genotype have the full
    width. Learning rates are constant. `inner`: another method, by kind; if `config` is a search, only this changes.
    """
    if config.method.kind == "searched":
        return config.change(method={} if inner is None else {"inner": inner})
    generator, discriminator = config.generator, config.discriminator
    inner_method = config.method.model_dump() if inner in (None, config.method.kind) else inner
    hidden = generator.encoding_channels if generator.has_stages else 4 * generator.channels
    cells = {"network": "cells", "operations": ()}
    return config.change(
        method={"kind": "searched", "inner": inner_method, "hidden": hidden},
        generator={**cells, **RESNET_ONLY_DEFAULTS, "channels": max(hidden // 4, 4)},
        discriminator={} if "projected" in discriminator.network else {**cells, "antialias": False},
        schedule={"kind": "constant"},
    )


RECIPES: dict[str, Callable[[], Config]] = {
    "auto": recommended,
    "cyclegan": cyclegan,
    "fast": fast,
    "demo": demo,
    "adam-joint": adam_joint,
    "adam-each-decay": adam_each_decay,
    "adam-each-rates": adam_each_rates,
    "contrast": contrast,
    "keras": keras,
    "onepair": onepair,
    "onepair-plus": onepair_plus,
    "demo-onepair": demo_onepair,
}

RECOMMENDED = "auto"
"""The preset of `velogan train` if none is named; it depends on the machine."""

DEFAULT = "cyclegan"
"""The baseline preset, and the default of the commands that profile, search and compare."""

DEMOS = ("demo", "demo-onepair")
"""The presets that include their data."""
