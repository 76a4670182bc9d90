"""The user's configuration of training, and of how the engine computes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from velogan.engine.duration import Duration, parse_span


class TrainConfig(BaseModel):
    """Length, seed and what is kept. A duration is in images, epochs, percent of the run or minutes."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)  # one spelling of durations

    length: Duration = Field(
        default="200 epochs",
        description="How long to train: '60 minutes', '5000 images', '200 epochs'; --minutes, --images and --epochs "
        "set it.",
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="Batches whose gradients are averaged before each update: the update of so many times more images, "
        "in the memory of one batch.",
    )
    seed: int = Field(default=0, ge=0, description="Every random choice follows from it.")
    ema_images: int = Field(
        default=5000,
        ge=1,
        description="Half-life, in images, of the generators' moving average; shorter early in a run.",
    )
    ema_rampup: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="The half-life is at most this share of the images seen so far. More is steadier in short runs, "
        "and later to show what is new.",
    )
    process_timeout: float = Field(
        default=60,
        ge=2,
        le=86400,
        description="With several processes (torchrun): seconds without a sign of life from one of them after which "
        "the run ends.",
    )
    log_every: Duration = Field(
        default="0.5 %", description="How often a line of statistics is written to stats.jsonl."
    )
    sample_every: Duration = Field(
        default="5 %",
        description="How often a grid of translated test pictures is saved. A run in minutes saves at 25, 50, 75 and "
        "100 %.",
    )
    samples: int = Field(default=6, ge=0, le=64, description="Test pictures in a sample grid.")
    checkpoint_every: Duration = Field(
        default="10 minutes",
        description="How often a checkpoint is saved and scored. A run in minutes saves at 25, 50, 75 and 100 %.",
    )
    exchange_every: Duration | None = Field(
        default=None,
        description="Each module of the method, the networks that a phase trains, on a node of its own under Ray, "
        "with copies of the other networks that are exchanged so often: '1 epoch', '50 images'. --modules sets it. "
        "None: one process trains all, with no old copies.",
    )
    start: str | None = Field(
        default=None,
        description="A run, or a file of weights, ours or of the reference implementation, whose networks this run "
        "begins with where it has such. --start sets it.",
    )
    patience: int = Field(
        default=0,
        ge=0,
        description="End the run when so many checkpoints in a row did not score better than the best; 0: never.",
    )
    keep: int = Field(default=2, ge=1, description="Newest checkpoints that are kept, besides the best.")
    logger: Literal["none", "tensorboard", "wandb", "mlflow"] = Field(
        default="tensorboard",
        description="Where metrics and sample images go while training, besides stats.jsonl: wandb and mlflow need "
        "their extras and read their own environment variables.",
    )

    @field_validator("exchange_every")
    @classmethod
    def _exchanges_are_counted(cls, every: str | None) -> str | None:
        if every is not None and parse_span(every).unit not in ("images", "epochs"):
            raise ValueError(f"'{every}' is neither in images nor in epochs: write '50 images' or '1 epoch'")
        return every


class EngineConfig(BaseModel):
    """How a step is computed. What `auto` became is printed at the start of a run and kept in its run.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "reference", "eager", "graph", "streams"] = Field(
        default="auto",
        description="How a step runs. auto: the fastest way here. reference: as in the reference implementation "
        "(float32, eager, contiguous, one pass per image, plain optimizers). eager: operation by operation, with plain "
        "layers where `kernels` and `compile` are auto. graph: captured as a CUDA graph. streams: so, and the two "
        "cycles, A to B to A and B to A to B, run on two streams.",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps: where to train.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto",
        description="Number type of convolutions; weights, losses and updates stay float32. fp16 is for GPUs without "
        "bf16: losses are scaled, and an update whose gradients overflow is skipped.",
    )
    kernels: Literal["auto", "winograd", "native", "plain"] = Field(
        default="auto",
        description="plain: PyTorch's own layers; native: norm, activation, residual and padding as one operation, "
        "compiled C++ on a CPU, Triton on CUDA, where auto does not choose it; winograd, on a CPU: native, and the "
        "residual blocks' convolutions by Winograd's algorithm and the other convolutions' gradients.",
    )
    checkpoint_activations: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Keep few of the generators' activations for the backward pass and compute the others again there: "
        "the same gradients in less memory and more time; auto is off.",
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="torch.compile the networks: minutes of start-up the first time, then faster steps on some "
        "machines.",
    )
    threads: int | None = Field(
        default=None, ge=1, le=4096, description="CPU threads. Default: as many as the machine has cores."
    )

    @property
    def captures(self) -> bool:
        """Whether a step is recorded once as a CUDA graph and replayed, so that the GPU does not wait for Python."""
        return self.mode in ("graph", "streams")

    @property
    def channels_last(self) -> bool:
        """Whether images lie channels-last in memory, the layout in which convolutions are fastest, but for Metal's."""
        return self.mode != "reference" and not self.device.startswith("mps")
