"""Named runs. Each is a function that returns a whole Config; its docstring says what it is for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from velogan.config import RESNET_ONLY_DEFAULTS, Config
from velogan.search.method import Searched


def cyclegan() -> Config:
    """The paper: 256x256 crops of 286x286, ResNet-9, 70x70 PatchGAN, 200 epochs at batch 1 (Zhu et al. 2017).

    velogan train cyclegan --data horse2zebra --out runs/horse2zebra
    """
    return Config()


def fast() -> Config:
    """Good pictures in minutes: 128x128, small generators with a mask, judged by trained features.

    The mask, where A and B have as many channels, keeps what need not change, so no identity loss asks for it, and
    the cycle weighs little: that edges stay where they were keeps shapes. The trained features see small pictures
    enlarged, up to the size that they were trained with. Strokes and colours change with every few hundred images,
    so a step sees four of them, the average is long, and the discriminators learn at half the rate. Rates do not
    fall: with falling ones changes became fewer. Squares cut out keep the discriminators from knowing their
    pictures by heart, and untranslated pictures among the translations keep the PatchGANs from taking the input's
    domain for their own. Features are mirrored at borders, so that no lines appear there.
    docs/training.md has the figures.

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
    """What `velogan train` does where no preset is named: `fast`, at a size that the machine bears.

    Where CUDA is, ten minutes of pictures of 256x256 by networks of size s; else forty minutes at 128x128 by size xs.

    velogan train --data horse2zebra --out runs/zebras
    """
    if not torch.cuda.is_available():
        return fast()
    return fast().with_size("s").change(data={"crop_size": 256}, train={"length": "10 minutes"})


def demo() -> Config:
    """Apples to oranges on the built-in rendered set at 64x64, in minutes on two CPU cores.

    The generators have no norm: instance norm takes away each picture's own brightness and colour, which a network this
    small does not learn to give back in minutes. So their blocks begin as the identity: activations would double in
    each. They keep what they hardly change. The hinge loss pushes small generators further in so short a time than
    least squares do (docs/training.md, benchmarks/LOG.md).

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
    """One Adam over all four networks at 2e-4; each descends its own loss alone (docs/training.md, as the next two).

    velogan train adam-joint --data horse2zebra --out runs/joint
    """
    return cyclegan().change(schedule={"kind": "constant"})


def adam_each_decay() -> Config:
    """An Adam for each network; the rate of all falls from 2e-4, times 0.9 in every 10,000 images.

    velogan train adam-each-decay --data horse2zebra --out runs/each-decay
    """
    return cyclegan().change(schedule={"kind": "exponential", "gamma": 0.9, "every": "10000 images"})


def adam_each_rates() -> Config:
    """An Adam for each network at a constant rate of its own: 1e-4, 5e-4, and 2e-4 for the discriminators.

    velogan train adam-each-rates --data horse2zebra --out runs/each-rates
    """
    return adam_joint().change(optimizer={"rules": ("G_A:lr=1e-4", "G_B:lr=5e-4", "D_*:lr=2e-4")})


def keras() -> Config:
    """The Keras CycleGAN example (A_K_Nain, 2020): its networks, losses and rates, and the 90 epochs of its weights.

    Its instance norms have weights, it keeps no pool of past fakes, its rates do not fall, and Adam's epsilon is 1e-7.
    docs/keras.md says where it still differs.

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
    """One autoencoder, one translator of its encodings, as "Improving Cycle-GAN using Intel AI DevCloud" (2018) has it.

    But for its "less-complex decoder", which lost 2.6 dB: generator.decoder=simple is such a one.

    velogan train onepair --data apple2orange --out runs/oranges
    """
    return Config().change(method="onepair")


def onepair_plus() -> Config:
    """The same, made good enough to choose: what its translator leaves alone stays as it was (docs/onepair.md).

    velogan train onepair-plus --data apple2orange --out runs/oranges
    """
    return onepair().change(
        generator={"norm": "none", "init": "identity", "output": "change"},
        method={"scale": 1.0},
        optimizer={"lr": 4e-4},
    )


def demo_onepair() -> Config:
    """The demo by the one-pair method.

    velogan demo demo-onepair
    """
    common = demo()
    return onepair_plus().change(
        data={"crop_size": 64, "batch_size": 2},
        generator={"channels": 16, "blocks": 3},
        discriminator={"channels": 32},
        train=common.train.model_dump(),
    )


def contrast() -> Config:
    """CUT: A to B alone, by one generator and one discriminator, whose patches stay themselves (Park et al. 2020).

    velogan train contrast --data horse2zebra --out runs/zebras
    """
    return Config().change(
        method="contrast",
        generator={"antialias": "both", "init": "xavier"},
        discriminator={"antialias": True, "init": "xavier"},
        train={"length": "400 epochs"},
    )


def to_search(config: Config, *, inner: str | None = None) -> Config:
    """`config` as a search of its method's architectures, one-step, as section 3 of CycleGANAS has it.

    `inner` is another method. The networks to build have the width of the generators in `config`.

    Its generators, and its discriminators where they have no trained features, become supernets of cells; the
    encodings a quarter as wide, 64 feature maps for 256. Rates stay as they are all the time.
    """
    if isinstance(config.method, Searched):
        return config.change(method={} if inner is None else {"inner": inner})
    generator, discriminator = config.generator, config.discriminator
    wrapped = config.method.model_dump() if inner in (None, config.method.kind) else inner
    hidden = generator.encoding if generator.has_stages else 4 * generator.channels
    cells = {"network": "cells", "operations": (), **RESNET_ONLY_DEFAULTS, "channels": max(hidden // 4, 4)}
    judged = {} if "projected" in discriminator.network else {"network": "cells", "operations": (), "antialias": False}
    return config.change(
        method={"kind": Searched.kind, "inner": wrapped, "hidden": hidden},
        generator=cells,
        discriminator=judged,
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
"""The recipe of somebody who trains and names none. What it is depends on the machine."""

DEFAULT = "cyclegan"
"""The recipe that others are measured against, and that of commands which measure."""

DEMOS = ("demo", "demo-onepair")
"""Those that come with their data."""
