"""Sections train and engine of the configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velogan.engine.duration import Duration, parse_span


class TrainConfig(BaseModel):
    """Section train: length, seed, averaging, saving. Durations are in images, epochs, % of the run or minutes."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)  # normalise default durations, too

    length: Duration = Field(
        default="200 epochs", description="Run length, such as '5000 images'. --minutes, --images or --epochs set it."
    )
    accumulate: int = Field(
        default=1, ge=1, le=4096, description="Gradient accumulation: number of batches averaged in each update."
    )
    seed: int = Field(default=0, ge=0, description="Random seed.")
    ema_images: int = Field(
        default=5000, ge=1, description="Half-life of the moving average of the generators' weights, in images."
    )
    ema_rampup: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="Maximum half-life of the moving average as a share of the images seen. Larger: smoother in short "
        "runs, but lagging further behind the weights.",
    )
    process_timeout: float = Field(
        default=60, ge=2, le=86400, description="torchrun: seconds without response of a process until the run ends."
    )
    log_every: Duration = Field(default="0.5 %", description="Interval of the lines of statistics in stats.jsonl.")
    sample_every: Duration = Field(
        default="5 %",
        description="Interval of the sample grids of translated test images. A run in minutes saves them at 25, 50, 75 "
        "and 100 %.",
    )
    samples: int = Field(default=6, ge=0, le=64, description="Number of test images in a sample grid; 0: no grids.")
    checkpoint_every: Duration = Field(
        default="10 minutes",
        description="Interval of checkpoints and scores. A run in minutes saves them at 25, 50, 75 and 100 %.",
    )
    exchange_every: Duration | None = Field(
        default=None,
        description="Train the networks of each phase in a Ray process of its own, and exchange copies of them between "
        "the processes at this interval: '1 epoch', '50 images'. --modules sets it. None: one process trains all.",
    )
    start: str | None = Field(
        default=None,
        description="Run folder or weights file (velogan or reference implementation) to initialise matching networks "
        "from. --start sets it.",
    )
    patience: int = Field(
        default=0, ge=0, description="Early stopping: checkpoints without a better score until the run ends; 0: never."
    )
    keep: int = Field(default=2, ge=1, description="Number of newest checkpoints that are kept, besides the best.")
    logger: Literal["none", "tensorboard", "wandb", "mlflow"] = Field(
        default="tensorboard",
        description="Where metrics and sample images are logged, in addition to stats.jsonl. wandb and mlflow need "
        "their extras and read their own environment variables.",
    )

    @field_validator("exchange_every")
    @classmethod
    def _check_exchange_every(cls, every: str | None) -> str | None:
        if every is not None and parse_span(every).unit not in ("images", "epochs"):
            raise ValueError(f"'{every}' is not in images or epochs: write '50 images' or '1 epoch'")
        return every


class EngineConfig(BaseModel):
    """Section engine: how a step is computed. The values chosen for `auto` are printed and saved in run.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "reference", "eager", "graph", "streams"] = Field(
        default="auto",
        description="How a step runs. auto: the fastest supported mode. reference: as in the reference implementation "
        "(float32, eager, contiguous, one pass per image, plain optimizers). eager: operation by operation; auto is "
        "then plain for `kernels` and off for `compile`. graph: captured as a CUDA graph. streams: captured, with the "
        "cycles A to B to A and B to A to B on two CUDA streams.",
    )
    device: str = Field(default="auto", description="Device to train on: auto, cpu, cuda, cuda:1 or mps.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="Number type of convolutions; weights, losses and updates stay float32. fp16, with loss scaling, "
        "is for GPUs without bf16.",
    )
    kernels: Literal["auto", "winograd", "native", "plain"] = Field(
        default="auto",
        description="plain: PyTorch's layers. native: norm, activation, residual and padding as one operation, in C++ "
        "on a CPU, in Triton on CUDA (auto does not choose it there). winograd, on a CPU: as native, with "
        "velogan's convolutions, which use Winograd's algorithm in residual blocks.",
    )
    checkpoint_activations: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Recompute most activations of the generators in the backward pass: the same gradients in less "
        "memory and more time; auto is off.",
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Compile the networks by torch.compile: minutes at the first start, then faster steps on some "
        "machines.",
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="Number of CPU threads. Default: the number of cores."
    )

    @property
    def captures(self) -> bool:
        """Whether a step is captured as a CUDA graph and replayed, so that the GPU does not wait for Python."""
        return self.mode in ("graph", "streams")

    @property
    def channels_last(self) -> bool:
        """Whether images and weights are channels-last in memory, which is fastest on all devices but mps."""
        return self.mode != "reference" and not self.device.startswith("mps")
