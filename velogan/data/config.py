"""The configuration of the data: which images to train on, and their preprocessing."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velogan.data.pictures.values import Range
from velogan.types import Letter

BUILT_IN = "apples2oranges"

WindowName = Literal["CT-soft-tissue", "CT-lung", "CT-bone", "CT-brain", "percentiles"]

WINDOWS: dict[str, Range | None] = {
    "CT-soft-tissue": (-160, 240),
    "CT-lung": (-1350, 150),
    "CT-bone": (-500, 1300),
    "CT-brain": (0, 80),
    "percentiles": None,
}
"""The darkest and the brightest value of each window, in HU; None: percentiles of each volume."""

Preprocess = Literal["resize_and_crop", "crop", "scale_width", "scale_width_and_crop", "none"]


class ReadOptions(TypedDict):
    """Keyword arguments of `sets.cache.open_domain` that differ between domains; None if not configured."""

    channels: int | None
    value_range: Range | None


class DataConfig(BaseModel):
    """The images to train on and their preprocessing. Sizes are in pixels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: tuple[str, ...] = Field(
        default=(BUILT_IN,),
        min_length=1,
        max_length=2,
        description="A folder with trainA, trainB and, if you have them, testA and testB; or two folders of pictures, "
        "domain A then domain B; or apples2oranges, the built-in rendered set. Folders are read recursively: "
        "pictures (formats: docs/formats.md) or, if there are none, DICOM and NIfTI files.",
    )
    preprocess: Preprocess = Field(
        default="resize_and_crop",
        description="resize_and_crop: resize to load_size x load_size (changes the aspect ratio), then cut a random "
        "crop_size square. crop: only cut the square. scale_width: resize to width load_size, with the aspect ratio. "
        "scale_width_and_crop: both. none: complete pictures. Without a crop, sides are rounded to a multiple of 4.",
    )
    crop_size: int = Field(
        default=256, ge=4, le=2**15, multiple_of=4, description="Side of the square the networks see."
    )
    load_size: int | None = Field(
        default=None,
        ge=4,
        le=2**16,
        description="Side (or width) to resize pictures to before the crop. Default: crop_size x 286/256.",
    )
    channels_a: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Channels of domain A's images, without alpha: 3 converts grey pictures to RGB, 1 converts RGB to "
        "grey. Default: as in the files.",
    )
    channels_b: int | None = Field(default=None, ge=1, le=4096, description="The same for domain B.")
    range_a: Range | None = Field(
        default=None,
        description="The darkest and the brightest pixel value of domain A; values outside are clipped. Examples: "
        "-1000 1000 for a CT window in HU, 0 4095 for 12 bits in a 16-bit file. Needed for floating-point and signed "
        "pixels. Default: the full range of 8 or 16 bits.",
    )
    range_b: Range | None = Field(default=None, description="The same for domain B.")
    window: tuple[WindowName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="DICOM and NIfTI: the range of values, for both domains or for A then B. CT, in HU: soft tissue "
        "-160 to 240, lung -1350 to 150, bone -500 to 1300, brain 0 to 80. percentiles: 0.5 to 99.5 of each volume, "
        "for values without a unit, as in MR. Numbers: range_a, range_b. Default: CT-soft-tissue for CT, else "
        "percentiles.",
    )
    context_slices: int = Field(
        default=0,
        ge=0,
        le=16,
        description="DICOM and NIfTI: number of slices below, and as many above, that are added to each slice as "
        "channels. A translated slice is the mean of its predictions, so volumes are smoother from slice to slice.",
    )
    pages: Literal["channels", "slices"] | None = Field(
        default=None,
        description="TIFF: the meaning of several pages. channels: channels of one image, if the file states nothing "
        "else. slices: each page is an image, as slices of NIfTI are. Default: as the file states, else rejected.",
    )
    flip: bool = Field(default=True, description="Flip each image left to right with probability 0.5.")
    flip_vertical: bool = Field(
        default=False,
        description="Flip each image top to bottom with probability 0.5: for images without an up direction, as in "
        "microscopy and aerial photographs.",
    )
    rotate90: bool = Field(
        default=False,
        description="Rotate each image by 0, 90, 180 or 270 degrees, at random: for images without an up direction. "
        "Needs a preprocess that crops to squares.",
    )
    serial_batches: bool = Field(
        default=False, description="Use the images in the order of their names, A and B in parallel, not at random."
    )
    batch_size: int | Literal["auto"] = Field(
        default=1,
        description="Images of each domain per forward pass and process; a step has train.accumulate passes. auto: the "
        "largest power of two that fits into memory, found by trial at the start of a run.",
    )
    validation: int = Field(
        default=32,
        ge=0,
        description="Training images of each domain that are held out to choose the best checkpoint, at most a tenth "
        "of them; none if a domain has fewer than 20. 0: none.",
    )
    group: str | None = Field(
        default=None,
        description="Regular expression that finds a picture's group in its path below the domain's folder: its first "
        "parentheses, else the complete match. Pictures of one group (a patient, a video, a scene) are either all held "
        "out for validation or all trained on. Example: '^patient[0-9]+'. Default, and without a match: each picture "
        "is a group of its own.",
    )
    masks_a: str | None = Field(
        default=None,
        description="Folder with masks of domain A's training pictures, with the same names: white may change, black "
        "must not. A picture without a mask may change everywhere.",
    )
    masks_b: str | None = Field(default=None, description="The same for domain B.")
    masks_keep: Literal["outside", "inside"] = Field(
        default="outside",
        description="What `masks_a` and `masks_b` leave unchanged: outside, what is black; inside, what is white.",
    )
    labels_a: str | None = Field(
        default=None,
        description="Folder with label maps of domain A's training pictures, with the same names: flat colours, or "
        "class numbers in one channel, of which 255 is no class. A small segmenter is trained on them, and "
        "translations keep the classes of their inputs, in both directions.",
    )
    labels_b: str | None = Field(default=None, description="The same for domain B, with the same classes.")
    cache_dir: str | None = Field(
        default=None,
        description="Folder for decoded pictures, shared by all runs and safe to delete; several users may share it. "
        "Default: $VELOGAN_CACHE, else ~/.cache/velogan, where compiled code is cached too.",
    )
    workers: int | None = Field(
        default=None, ge=1, le=1024, description="Threads that decode pictures. Default: one per processor core."
    )
    render_count: int = Field(default=400, ge=1, description="apples2oranges: training images of each domain.")
    render_test: int = Field(default=48, ge=1, description="apples2oranges: test images of each domain.")

    @property
    def batch(self) -> int:
        """`batch_size` as a number. Raises ValueError if it is auto and was not determined yet."""
        if self.batch_size == "auto":
            raise ValueError("data.batch_size=auto is determined when `velogan train` starts a run: give a number here")
        return self.batch_size

    @property
    def load_side(self) -> int:
        """The resolved `load_size`, in pixels."""
        return self.load_size or round(self.crop_size * 286 / 256)

    @property
    def crop(self) -> tuple[int, int] | None:
        """The size `(h, w)` of training crops; None if images are not cropped."""
        return (self.crop_size, self.crop_size) if "crop" in self.preprocess else None

    @property
    def annotations(self) -> tuple[str, ...]:
        """The names of the configured annotations in a batch, such as `mask_a` and `label_b`."""
        names = ("mask_a", "mask_b", "label_a", "label_b")
        return tuple(name for name in names if getattr(self, name.replace("_", "s_")) is not None)

    def read_options(self, letter: Letter) -> ReadOptions:
        """Return the channels and the range of values with which the pictures of a domain are read."""
        if letter == "A":
            return {"channels": self.channels_a, "value_range": self.range_a}
        return {"channels": self.channels_b, "value_range": self.range_b}

    def requested_range(self, letter: Letter) -> Range | WindowName | None:
        """Return the range of values requested for a domain's scans: two numbers, the name of a window, or None."""
        window = self.window[0 if letter == "A" else -1] if self.window else None
        return (self.range_a if letter == "A" else self.range_b) or window

    @field_validator("batch_size", mode="before")
    @classmethod
    def _check_batch_size(cls, value: Any) -> Any:
        if value != "auto" and not (str(value).isdecimal() and int(value)):
            raise ValueError("give a positive integer, or auto")
        return value

    @field_validator("path", mode="before")
    @classmethod
    def _check_path(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, (tuple, list)) and "" in value:
            raise ValueError("a path is empty: name a folder")
        if isinstance(value, (tuple, list)) and len(value) > 2:
            raise ValueError(f"{len(value)} paths, but there are two domains: name two folders")
        return value

    @field_validator("range_a", "range_b")
    @classmethod
    def _check_range(cls, value: Range | None) -> Range | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError(f"{value[0]:g} {value[1]:g}: give two finite values, the smaller one first")
        return value

    @field_validator("group")
    @classmethod
    def _check_group(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(
                f"{value!r} is not a regular expression: {error}; write one like '^patient[0-9]+'"
            ) from None
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> DataConfig:
        total = 1 + 2 * self.context_slices
        for name, channels in (("channels_a", self.channels_a), ("channels_b", self.channels_b)):
            if self.context_slices and channels not in (None, total):
                raise ValueError(
                    f"context_slices={self.context_slices} makes {total} channels of each slice, and "
                    f"{name}={channels} is another number: leave one of the two out"
                )
        if self.masks_keep != "outside" and self.masks_a is None and self.masks_b is None:
            raise ValueError(f"masks_keep={self.masks_keep} needs masks: add masks_a or masks_b, or leave it out")
        if self.rotate90 and self.crop is None:
            raise ValueError(
                f"rotate90=true needs squares, but preprocess={self.preprocess} keeps the shape of pictures: set a "
                "preprocess that crops, or rotate90=false"
            )
        if self.preprocess in ("resize_and_crop", "scale_width_and_crop") and self.crop_size > self.load_side:
            raise ValueError(
                f"crop_size={self.crop_size} is larger than load_size={self.load_side}: a crop must fit into "
                f"the resized picture; set load_size to at least {self.crop_size} or leave it out"
            )
        return self
