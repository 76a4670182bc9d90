"""The settings of the data."""

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
"""The values, in HU, that are darkest and brightest; None: each volume's own percentiles."""

Preprocess = Literal["resize_and_crop", "crop", "scale_width", "scale_width_and_crop", "none"]


class ReadOptions(TypedDict):
    """Arguments of `sets.cache.open_domain`: channels, range of values, window of scans; None if not set."""

    channels: int | None
    value_range: Range | None


class DataConfig(BaseModel):
    """Where the pictures come from and how they are prepared. Sizes are in pixels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: tuple[str, ...] = Field(
        default=(BUILT_IN,),
        min_length=1,
        max_length=2,
        description="One folder that holds trainA, trainB and, if you have them, testA and testB; or two "
        "folders of pictures, domain A then domain B; or apples2oranges, the built-in rendered set. Folders "
        "are looked through, with all folders in them, for pictures (docs/formats.md names the kinds), "
        "and where there are none, for DICOM and NIfTI.",
    )
    preprocess: Preprocess = Field(
        default="resize_and_crop",
        description="resize_and_crop: resize to load_size x load_size (aspect not kept), then cut a random "
        "crop_size square. crop: only cut the square. scale_width: resize to width load_size, aspect kept. "
        "scale_width_and_crop: both. none: whole pictures as they are. Without a crop, sides are rounded to "
        "a multiple of 4.",
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
        description="Channels of domain A's pictures, alpha not counted. Default: as many as they have (grey 1, "
        "RGB 3). 3 turns grey pictures into RGB, 1 turns RGB into grey.",
    )
    channels_b: int | None = Field(default=None, ge=1, le=4096, description="The same for domain B.")
    range_a: Range | None = Field(
        default=None,
        description="The pixel values of domain A that are darkest and brightest; values beyond them are clipped. "
        "Examples: -1000 1000 for a CT window in HU, 0 4095 for 12 bits in a 16-bit file. Needed if pixels are "
        "floating-point or signed. Default: the whole range of 8 or 16 bits.",
    )
    range_b: Range | None = Field(default=None, description="The same for domain B.")
    window: tuple[WindowName, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=2,
        description="DICOM and NIfTI: the values that training sees, for both domains, or for A then B. CT, in HU: "
        "soft tissue -160 to 240, lung -1350 to 150, bone -500 to 1300, brain 0 to 80. percentiles: each volume's own, "
        "0.5 to 99.5, for scales that mean nothing, as of MR. Numbers: range_a, range_b. Default: CT-soft-tissue for "
        "CT, else percentiles.",
    )
    context_slices: int = Field(
        default=0,
        ge=0,
        le=16,
        description="DICOM and NIfTI: so many slices below and as many above are further channels of each slice, and a "
        "translated slice is the mean of all that were computed of it: volumes become smoother from slice to slice.",
    )
    pages: Literal["channels", "slices"] | None = Field(
        default=None,
        description="TIFF: what several pages are. channels: of one picture, where the file does not say what they "
        "are. slices: each page is trained on alone, as slices of NIfTI are. Default: what the file says, else it is "
        "refused.",
    )
    flip: bool = Field(default=True, description="Mirror each picture left to right with probability one half.")
    flip_vertical: bool = Field(
        default=False,
        description="Mirror each picture top to bottom with probability one half: for domains that have no up, like "
        "microscopy and pictures from above.",
    )
    rotate90: bool = Field(
        default=False,
        description="Turn each picture by 0, 90, 180 or 270 degrees, at random; for the same domains. Needs a "
        "preprocess that crops, to squares.",
    )
    serial_batches: bool = Field(
        default=False, description="Take the pictures in order, A and B side by side, instead of at random."
    )
    batch_size: int | Literal["auto"] = Field(
        default=1,
        description="Pictures of each domain in one step, in each process. auto: as many as memory bears, a power of "
        "two, found by trying when a run begins.",
    )
    validation: int = Field(
        default=32,
        ge=0,
        description="Training pictures of each domain that are held out to choose the best checkpoint by, at most a "
        "tenth of them; none if a domain has fewer than 20. 0: none.",
    )
    group: str | None = Field(
        default=None,
        description="A regular expression that finds a picture's group in its path within the domain's folder: the "
        "match of its first parentheses, else the whole match. Pictures of one group (a patient, a video, a scene) "
        "are either all held out for validation or all trained on. A picture without a match is a group of its own. "
        "Example: '^patient[0-9]+'. Default: each picture is a group of its own.",
    )
    masks_a: str | None = Field(
        default=None,
        description="A folder with masks of the training pictures of domain A, under their names: white on what may "
        "change, black on what the translation must leave as it is. A picture without one may change everywhere.",
    )
    masks_b: str | None = Field(default=None, description="The same for domain B.")
    masks_keep: Literal["outside", "inside"] = Field(
        default="outside",
        description="`masks_a`, `masks_b`: what stays as it is: outside, what is black; inside, what is white.",
    )
    labels_a: str | None = Field(
        default=None,
        description="A folder with label maps of the training pictures of domain A, under their names: flat colours, "
        "or in one channel the numbers of classes, of which 255 is none. A small segmenter learns from them, and "
        "translations keep the classes of their inputs, in both directions.",
    )
    labels_b: str | None = Field(default=None, description="The same for domain B, with the same classes.")
    cache_dir: str | None = Field(
        default=None,
        description="Folder for decoded pictures, shared by all runs and safe to delete; several users may share it. "
        "Default: $VELOGAN_CACHE, else ~/.cache/velogan, where compiled code is kept too.",
    )
    workers: int | None = Field(
        default=None, ge=1, le=1024, description="Threads that decode pictures. Default: one for each processor core."
    )
    render_count: int = Field(default=400, ge=1, description="apples2oranges: training pictures in each domain.")
    render_test: int = Field(default=48, ge=1, description="apples2oranges: test pictures in each domain.")

    @property
    def batch(self) -> int:
        """`batch_size`, which is a number once a run has begun. ValueError before that where it is auto."""
        if self.batch_size == "auto":
            raise ValueError("data.batch_size=auto is found when `velogan train` begins a run: give a number here")
        return self.batch_size

    @property
    def load_side(self) -> int:
        """The resolved `load_size`, in pixels."""
        return self.load_size or round(self.crop_size * 286 / 256)

    @property
    def crop(self) -> tuple[int, int] | None:
        """The size `(h, w)` that training sees of every picture; None where that is the picture's own."""
        return (self.crop_size, self.crop_size) if "crop" in self.preprocess else None

    @property
    def annotations(self) -> tuple[str, ...]:
        """The names of annotations in a batch: `mask_a`, `label_b`."""
        names = ("mask_a", "mask_b", "label_a", "label_b")
        return tuple(name for name in names if getattr(self, name.replace("_", "s_")) is not None)

    def read_options(self, letter: Letter) -> ReadOptions:
        """Return the options by which the pictures of domain A or B are read."""
        if letter == "A":
            return {"channels": self.channels_a, "value_range": self.range_a}
        return {"channels": self.channels_b, "value_range": self.range_b}

    def requested_range(self, letter: Letter) -> Range | WindowName | None:
        """Return the requested value range of scans in domain A or B: numbers, a window, or None."""
        window = self.window[0 if letter == "A" else -1] if self.window else None
        return (self.range_a if letter == "A" else self.range_b) or window

    @field_validator("batch_size", mode="before")
    @classmethod
    def _a_number_or_auto(cls, value: Any) -> Any:
        if value != "auto" and not (str(value).isdecimal() and int(value)):
            raise ValueError("give a whole number from 1 on, or auto")
        return value

    @field_validator("path", mode="before")
    @classmethod
    def _one_for_each(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, (tuple, list)) and "" in value:
            raise ValueError("a path is empty: name a folder")
        if isinstance(value, (tuple, list)) and len(value) > 2:
            raise ValueError(f"{len(value)} paths are given, and there are two domains: name two folders")
        return value

    @field_validator("range_a", "range_b")
    @classmethod
    def _ascending(cls, value: Range | None) -> Range | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError(f"{value[0]:g} {value[1]:g}: give two finite values, the smaller one first")
        return value

    @field_validator("group")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}; write one like '^patient[0-9]+'") from None
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> DataConfig:
        wanted = 1 + 2 * self.context_slices
        for name, channels in (("channels_a", self.channels_a), ("channels_b", self.channels_b)):
            if self.context_slices and channels not in (None, wanted):
                raise ValueError(
                    f"context_slices={self.context_slices} makes {wanted} channels of each slice, and "
                    f"{name}={channels} asks for others: leave one of the two out"
                )
        if self.masks_keep != "outside" and self.masks_a is None and self.masks_b is None:
            raise ValueError(
                f"masks_keep={self.masks_keep} says what masks keep, and there are none: add masks_a or masks_b, or "
                "leave it out"
            )
        if self.rotate90 and "crop" not in self.preprocess:
            raise ValueError(
                f"rotate90=true needs squares, but preprocess={self.preprocess} leaves pictures their shape: set a "
                "preprocess that crops, or rotate90=false"
            )
        if self.preprocess in ("resize_and_crop", "scale_width_and_crop") and self.crop_size > self.load_side:
            raise ValueError(
                f"crop_size={self.crop_size} is larger than load_size={self.load_side}: a crop must fit into "
                f"the resized picture; set load_size to at least {self.crop_size} or leave it out"
            )
        return self
