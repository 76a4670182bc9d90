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

    velogan demo
    """
    return (
        Config()
        .sized("xs")
        .change(
            data={"crop_size": 64, "render_count": 400, "batch_size": 1},
            train={"length": "2.5 minutes", "log_every": "1 %", "sample_every": "4 %", "ema_images": 1000},
        )
    )


RECIPES: dict[str, Callable[[], Config]] = {"cyclegan": cyclegan, "small": small, "demo": demo}
