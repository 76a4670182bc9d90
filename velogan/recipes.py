"""Named runs. Each is a function that returns a whole Config; its docstring says what it is for."""

from __future__ import annotations

from collections.abc import Callable

from velogan.config import Config


def cyclegan() -> Config:
    """The paper: 256x256 crops of 286x286, ResNet-9, 70x70 PatchGAN, 200 epochs at batch 1 (Zhu et al. 2017).

    velogan train cyclegan --data horse2zebra --out runs/horse2zebra
    """
    return Config()


def small() -> Config:
    """A start on a CPU: 128x128, a generator of half the width, an hour.

    velogan train small --data horse2zebra --out runs/small
    """
    return Config().sized("s").change(data={"crop_size": 128}, train={"length": "60 minutes"})


def demo() -> Config:
    """Apples to oranges on the built-in rendered set at 64x64, in minutes on two CPU cores.

    The generators have no norm: instance norm takes away each picture's own brightness and colour, which a network this
    small does not learn to give back in minutes (benchmarks/LOG.md).

    velogan demo
    """
    return Config().change(
        data={"crop_size": 64, "batch_size": 2},
        generator={"channels": 32, "blocks": 2, "norm": "none", "init": "kaiming"},
        discriminator={"channels": 32},
        objective={"cycle_a": 20.0, "cycle_b": 20.0, "identity": 1.0},
        optimizer={"lr": 4e-4},
        train={"length": "3 minutes", "log_every": "1 %", "sample_every": "4 %", "ema_images": 1000},
    )


RECIPES: dict[str, Callable[[], Config]] = {"cyclegan": cyclegan, "small": small, "demo": demo}
