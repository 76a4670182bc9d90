"""Batches as a pure function of (seed, position): planned and gathered on the host, finished on the device."""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from velogan.data.config import DataConfig
from velogan.data.pictures.values import Range, normalize
from velogan.data.sets.cache import Domain
from velogan.types import Batch

GPU_CACHE_FRACTION = 0.25
"""Share of a device's free memory that one domain may take up; a larger one stays on the host."""

_HALVES = 2**31 + 1
"""Seed component larger than any epoch number, so that halves and epochs use different random streams."""

_AHEAD = 2  # batches

INDEX, TOP, LEFT, FLIP = range(4)
"""Columns of a crop plan."""

HFLIP, VFLIP, TRANSPOSE = 1, 2, 4
"""Bits of a crop's flip, applied in this order: left-right, top-bottom, rows and columns exchanged."""

_ROTATIONS = (
    0,
    HFLIP | TRANSPOSE,
    HFLIP | VFLIP,
    VFLIP | TRANSPOSE,
)  # by 0 to 3 quarter turns, as numpy.rot90 counts them


@dataclass(frozen=True)
class CropPlan:
    """The crops of one batch: `A` and `B`, `(B, 4)` int64 on the host, are rows of (index, top, left, flip)."""

    A: Tensor
    B: Tensor


class CropDraw(NamedTuple):
    """Uniform random numbers in [0, 1) for one crop."""

    top: float
    left: float
    hflip: float
    vflip: float
    rotation: float


class ImageDraw(NamedTuple):
    """Uniform random numbers in [0, 1) for one image of a step: the choice of B's image, and the crops of A and B."""

    index_b: float
    crop_a: CropDraw
    crop_b: CropDraw


def _name_draws(numbers: np.ndarray) -> ImageDraw:
    """Name the 11 numbers of an image; their order is that in which features were added, so that seeds stay valid."""
    index_b, *windows = numbers
    top_a, left_a, hflip_a, top_b, left_b, hflip_b, vflip_a, rotation_a, vflip_b, rotation_b = windows
    crop_a = CropDraw(top_a, left_a, hflip_a, vflip_a, rotation_a)
    return ImageDraw(index_b, crop_a, CropDraw(top_b, left_b, hflip_b, vflip_b, rotation_b))


def random_from(*seed: int) -> np.random.Generator:
    """Return a random generator seeded by non-negative integers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def crop_and_flip(images: Tensor, plan: Tensor, size: tuple[int, int], *, rotate90: bool = False) -> Tensor:
    """Cut `size` (h, w) windows out of `(N, H, W, C)` images as `plan` `(B, 4)` says, and flip them.

    One gather with static shapes on the images' device; returns `(B, h, w, C)`. Only squares can be turned.
    """
    height, width = size
    down = torch.arange(height, device=images.device)
    right = torch.arange(width, device=images.device)
    index, top, left, flip = plan[:, :, None].unbind(1)
    rows = top + torch.where((flip & VFLIP).bool(), height - 1 - down, down)
    columns = left + torch.where((flip & HFLIP).bool(), width - 1 - right, right)
    # torch cannot index uint16 on every device
    kept = images.view(torch.int16) if images.dtype == torch.uint16 else images
    cut = kept[index[:, :, None], rows[:, :, None], columns[:, None, :]]
    if rotate90:
        cut = torch.where((flip & TRANSPOSE).bool()[:, :, None, None], cut.transpose(1, 2), cut)
    return cut.view(images.dtype)


def normalize_batch(images: Tensor, value_range: Range | None = None) -> Tensor:
    """Turn `(B, H, W, C)` uint8, uint16 or float32 into `(B, C, H, W)` float32 in [-1, 1]; see `values.normalize`."""
    planes = normalize(images.permute(0, 3, 1, 2), value_range)
    return planes.contiguous(memory_format=torch.contiguous_format)


def window(config: DataConfig, shape: tuple[int, ...]) -> tuple[int, int]:
    """Give the size `(h, w)` that training sees of a prepared picture of `shape` (H, W, C)."""
    return config.crop or (shape[0], shape[1])


@dataclass(frozen=True)
class Annotation:
    """Images aligned with a domain's: `(H, W, C)` in `domain`, at `places` by the number of the image; -1: none."""

    ABSENT: ClassVar[int]
    """Fills the crop of an image that has no annotation."""

    domain: Domain
    places: tuple[int, ...]

    def gather(self, plan: Tensor, size: tuple[int, int]) -> Tensor:
        """Cut the crops `(B, h, w, C)` int16 that a `plan` of the domain's images asks for."""
        crops = []
        for row in plan.clone():
            row[INDEX] = place = self.places[int(row[INDEX])]
            if place < 0:
                crops.append(np.full((1, *size, self.domain.format.channels), self.ABSENT, np.int16))
            else:
                crops.append(self.values(gather_crops(self.domain, row[None], size).numpy()).astype(np.int16))
        return torch.from_numpy(np.concatenate(crops))

    def to(self, device: torch.device) -> Self:
        """Put what `finish` needs on `device`: a captured step copies nothing there."""
        return self

    def values(self, crop: np.ndarray) -> np.ndarray:
        """Return what the pixels of a crop stand for."""
        return crop

    def finish(self, crops: Tensor) -> Tensor:
        """Make what a batch holds of these crops, on their device."""
        raise NotImplementedError


class PairLoader:
    """Unpaired batches of two domains, in the reference's order.

    An epoch is max(|A|, |B|) images in random order; image i takes A's picture i mod |A| and one of B's at
    random with replacement (in order, i mod |B|, under `serial_batches`). Crops and flips of A and B are
    independent. All random choices depend only on `seed` and the position, the number of images seen so far.
    `annotations`: by their name in a batch, whose last letter is the domain's (`mask_a`); cropped and flipped with it.
    `resident` holds, per domain, the `(N, H, W, C)` images that lie on the device, or None.

    With several `ranks` a batch is this `rank`'s part of a step's images: `batch_size` of `ranks * batch_size`, which
    are those that one rank would be given.
    """

    def __init__(
        self,
        a: Domain,
        b: Domain,
        config: DataConfig,
        *,
        seed: int,
        device: torch.device | str,
        rank: int = 0,
        ranks: int = 1,
        annotations: Mapping[str, Annotation] | None = None,
    ):
        self.a, self.b, self.config, self.seed, self.rank, self.ranks = a, b, config, seed, rank, ranks
        self.device = torch.device(device)
        self.annotations = {name: one.to(self.device) for name, one in (annotations or {}).items()}
        for side, domain in (("A", a), ("B", b)):
            _check_sizes(side, domain, config)
        self.resident = {"A": _resident(a, self.device), "B": _resident(b, self.device)}
        self._restrict_to(np.arange(len(a)), np.arange(len(b)), ())

    def _restrict_to(self, a: np.ndarray, b: np.ndarray, salt: tuple[int, ...]) -> None:
        """Restrict the loader to the images with the indices `a` and `b`; `salt` changes its random numbers."""
        self._indices, self._salt = {"A": a, "B": b}, salt
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def half(self, number: int) -> PairLoader:
        """Give a loader of the first (0) or the second (1) half of each domain, divided at random by the seed.

        The halves share no picture, only the device's memory. Raises `ValueError` for a domain of one picture.
        """
        halves = []
        for letter, domain in enumerate((self.a, self.b)):
            if len(domain) < 2:
                raise ValueError(f"domain {'AB'[letter]} has one picture, which cannot be halved: add some")
            mixed = random_from(self.seed, _HALVES, letter).permutation(len(domain))
            halves.append(np.array_split(mixed, 2)[number])
        half = copy.copy(self)
        half._restrict_to(halves[0], halves[1], (_HALVES, number))
        return half

    def __len__(self) -> int:
        """Count the images of an epoch."""
        return max(map(len, self._indices.values()))

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw an epoch's order `(N,)`, and 11 uniform random numbers per image, `(N, 11)`; see `_name_draws`."""
        random = random_from(self.seed, epoch, *self._salt)
        order = np.arange(len(self)) if self.config.serial_batches else random.permutation(len(self))
        return order, np.hstack([random.random((len(self), count)) for count in (7, 4)])

    def _sample_at(self, position: int) -> tuple[int, int, ImageDraw]:
        """Return the indices of A's and B's images at `position`, in images since the start, and its random numbers."""
        indices_a, indices_b = self._indices["A"], self._indices["B"]
        order, numbers = self._epoch(position // len(self))
        place = position % len(self)
        item, draw = int(order[place]), _name_draws(numbers[place])
        item_b = item % len(indices_b) if self.config.serial_batches else int(draw.index_b * len(indices_b))
        return int(indices_a[item % len(indices_a)]), int(indices_b[item_b]), draw

    def plan(self, position: int) -> CropPlan:
        """Plan the batch of the step that begins at `position` images seen."""
        a, b = [], []
        first = position + self.rank * self.config.batch
        for index_a, index_b, draw in map(self._sample_at, range(first, first + self.config.batch)):
            a.append(self._row(self.a, index_a, draw.crop_a))
            b.append(self._row(self.b, index_b, draw.crop_b))
        return CropPlan(torch.tensor(a), torch.tensor(b))

    def _row(self, domain: Domain, index: int, draw: CropDraw) -> tuple[int, int, int, int]:
        shape = domain.shapes[index]
        height, width = window(self.config, shape)
        top, left = int(draw.top * (shape[0] - height + 1)), int(draw.left * (shape[1] - width + 1))
        hflip = HFLIP * (self.config.flip and draw.hflip > 0.5)
        vflip = VFLIP * (self.config.flip_vertical and draw.vflip > 0.5)
        rotation = _ROTATIONS[int(4 * draw.rotation)] if self.config.rotate90 else 0
        return index, top, left, (hflip + vflip) ^ rotation

    def gather(self, plan: CropPlan) -> Batch:
        """Give each domain's crops `(B, h, w, C)`, cut by NumPy, or its plan if its pictures lie on the device."""
        gathered = {"A": self._gather("A", self.a, plan.A), "B": self._gather("B", self.b, plan.B)}
        for name, annotation in self.annotations.items():
            pictures, rows = (self.a, plan.A) if name.endswith("a") else (self.b, plan.B)
            gathered[name] = annotation.gather(rows, window(self.config, pictures.shapes[int(rows[0, INDEX])]))
        return gathered

    def _gather(self, side: str, domain: Domain, plan: Tensor) -> Tensor:
        if self.resident[side] is not None:
            return plan
        return gather_crops(domain, plan, window(self.config, domain.shapes[int(plan[0, INDEX])]))

    def finish(self, gathered: Batch) -> Batch:
        """Make the batch: `A` and `B`, `(B, C, h, w)` float32 in [-1, 1] on the device; other tensors are only moved.

        Annotations are there under their names. It never waits for the device, so it can be part of a captured step.
        """
        moved = {name: part.to(self.device, non_blocking=True) for name, part in gathered.items()}
        moved |= {name: annotation.finish(moved[name]) for name, annotation in self.annotations.items()}
        return {**moved, "A": self._finish("A", self.a, moved["A"]), "B": self._finish("B", self.b, moved["B"])}

    def _finish(self, side: str, domain: Domain, part: Tensor) -> Tensor:
        resident = self.resident[side]
        if resident is not None:  # then all pictures have one size
            part = crop_and_flip(resident, part, window(self.config, domain.shapes[0]), rotate90=self.config.rotate90)
        return normalize_batch(part, domain.format.range)

    def batch(self, position: int) -> Batch:
        """Make the batch that begins at `position` images seen: `A` and `B`, `(B, C, h, w)` in [-1, 1]."""
        return self.finish(self.gather(self.plan(position)))

    def batches(self, position: int) -> Generator[Batch, None, None]:
        """Yield gathered batches from `position` on, without end, which a thread reads ahead; `finish` completes them.

        Batches for a CUDA device lie in page-locked memory: a copy from other memory would wait for earlier steps.

        The thread computes nothing with torch: a second thread that does makes OpenMP's waiting costly, and every step
        half as long again (benchmarks/LOG.md). It ends when the iterator is closed or dropped; its errors are raised at
        the consumer.
        """
        ready: queue.Queue[Batch | Exception] = queue.Queue(maxsize=_AHEAD)
        stop, pinned = threading.Event(), self.device.type == "cuda"

        def work() -> None:
            try:
                for place in count(position, self.ranks * self.config.batch):
                    ready.put(self.gather(self.plan(place)))
                    if stop.is_set():
                        return
            except Exception as error:
                ready.put(error)

        thread = threading.Thread(target=work, name="velogan-prefetch", daemon=True)
        thread.start()
        try:
            while True:
                made = ready.get()
                if isinstance(made, Exception):
                    raise made
                yield {name: part.pin_memory() for name, part in made.items()} if pinned else made
        finally:
            stop.set()
            while thread.is_alive():  # the thread may wait for room
                try:
                    ready.get(timeout=0.01)
                except queue.Empty:
                    thread.join(timeout=0.01)


def _resident(domain: Domain, device: torch.device) -> Tensor | None:
    """Give the domain as `(N, H, W, C)` on the device, or None if it stays on the host.

    On a CPU, reading windows from the file is several times faster than a gather.
    """
    if device.type != "cuda" or not domain.uniform:
        return None
    if domain.pixels.nbytes > GPU_CACHE_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return None
    return on_device(domain, device)


def on_device(domain: Domain, device: torch.device) -> Tensor:
    """Copy all pictures, which have one shape, to `(N, H, W, C)` on the device, one at a time."""
    first = torch.from_numpy(domain.image(0))
    images = torch.empty((len(domain), *first.shape), dtype=first.dtype, device=device)
    for index, image in enumerate(images):
        image.copy_(torch.from_numpy(domain.image(index)))
    return images


def gather_crops(domain: Domain, plan: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut and flip as `crop_and_flip` does, but on the host and picture by picture."""
    height, width = size
    cut = []
    for index, top, left, flip in plan.tolist():
        picture = domain.rows(index, top, top + height)[:, left : left + width]
        picture = picture[:: -1 if flip & VFLIP else 1, :: -1 if flip & HFLIP else 1]
        cut.append(picture.swapaxes(0, 1) if flip & TRANSPOSE else picture)
    return torch.from_numpy(np.stack(cut))


def _check_sizes(side: str, domain: Domain, config: DataConfig) -> None:
    if "crop" in config.preprocess:
        for name, (height, width, _) in zip(domain.names, domain.shapes):
            if min(height, width) < config.crop_size:
                raise ValueError(
                    f"data.crop_size={config.crop_size} is larger than {name} of domain {side}, which is "
                    f"{width}x{height} pixels; set crop_size to at most {min(height, width) // 4 * 4}, "
                    "remove the picture, or choose data.preprocess=resize_and_crop"
                )
    elif config.batch > 1 and not domain.uniform:
        raise ValueError(
            f"data.batch_size={config.batch} needs pictures of one size, but data.preprocess="
            f"{config.preprocess} leaves {len(set(domain.shapes))} sizes in domain {side}; set "
            "batch_size to 1 or choose a preprocess with a crop"
        )
