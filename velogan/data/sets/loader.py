"""Batches as a pure function of (seed, position): planned and gathered on the host, preprocessed on the device."""

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
"""Fraction of a device's free memory that one domain may take up; a larger domain stays on the host."""

_HALVES = 2**31 + 1
"""Seed component larger than any epoch number, so that halves and epochs use different random streams."""

_AHEAD = 2  # batches

INDEX, TOP, LEFT, FLIP = range(4)
"""Columns of a crop plan."""

HFLIP, VFLIP = 1, 2
TRANSPOSE = 4
"""Bits of a crop's flip, applied in this order: left-right, top-bottom, rows and columns exchanged."""

_ROTATIONS = (0, HFLIP | TRANSPOSE, HFLIP | VFLIP, VFLIP | TRANSPOSE)  # by 0 to 3 quarter turns, like numpy.rot90


@dataclass(frozen=True)
class CropPlan:
    """The crops of one batch, by domain: rows of (index, top, left, flip), `(batch, 4)` int64 on the host."""

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
    """Uniform random numbers in [0, 1) for one pair of images: the choice of B's image, and the crops of A and B."""

    index_b: float
    crop_a: CropDraw
    crop_b: CropDraw


def _name_draws(numbers: np.ndarray) -> ImageDraw:
    """Name the 11 random numbers of a pair; new features append theirs, so that a seed still gives the same crops."""
    index_b, *crops = numbers
    top_a, left_a, hflip_a, top_b, left_b, hflip_b, vflip_a, rotation_a, vflip_b, rotation_b = crops
    crop_a = CropDraw(top_a, left_a, hflip_a, vflip_a, rotation_a)
    return ImageDraw(index_b, crop_a, CropDraw(top_b, left_b, hflip_b, vflip_b, rotation_b))


def random_from(*seed: int) -> np.random.Generator:
    """Return a random generator seeded by non-negative integers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def crop_and_flip(images: Tensor, plan: Tensor, size: tuple[int, int], *, rotate90: bool = False) -> Tensor:
    """Cut crops of `size` (h, w) from `(N, H, W, C)` images by `plan` `(B, 4)`, and flip them; return `(B, h, w, C)`.

    This is one gather with static shapes, on the images' device. `rotate90`: apply TRANSPOSE too, to square crops.
    """
    height, width = size
    down = torch.arange(height, device=images.device)
    right = torch.arange(width, device=images.device)
    index, top, left, flip = plan[:, :, None].unbind(1)
    rows = top + torch.where((flip & VFLIP).bool(), height - 1 - down, down)
    columns = left + torch.where((flip & HFLIP).bool(), width - 1 - right, right)
    # torch cannot index uint16 on every device
    indexable = images.view(torch.int16) if images.dtype == torch.uint16 else images
    cut = indexable[index[:, :, None], rows[:, :, None], columns[:, None, :]]
    if rotate90:
        cut = torch.where((flip & TRANSPOSE).bool()[:, :, None, None], cut.transpose(1, 2), cut)
    return cut.view(images.dtype)


def normalize_batch(images: Tensor, value_range: Range | None = None) -> Tensor:
    """Convert `(B, H, W, C)` uint8, uint16 or float32 to `(B, C, H, W)` float32 in [-1, 1]; see `values.normalize`."""
    planes = normalize(images.permute(0, 3, 1, 2), value_range)
    return planes.contiguous(memory_format=torch.contiguous_format)


def crop_shape(config: DataConfig, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the size (h, w) of the training crops of a prepared image of `shape` (H, W, C)."""
    return config.crop or (shape[0], shape[1])


@dataclass(frozen=True)
class Annotation:
    """Annotations of a domain's images. `domain`: the annotations; `indices`: the index in it for each image, or -1."""

    ABSENT: ClassVar[int]
    """The value that fills the crop of an image without an annotation."""

    domain: Domain
    indices: tuple[int, ...]

    def gather(self, plan: Tensor, size: tuple[int, int]) -> Tensor:
        """Cut the annotations' crops `(B, h, w, C)` int16 for a `plan` `(B, 4)` of the annotated images."""
        crops = []
        for row in plan.clone():
            row[INDEX] = index = self.indices[int(row[INDEX])]
            if index < 0:
                crops.append(np.full((1, *size, self.domain.format.channels), self.ABSENT, np.int16))
            else:
                crops.append(self.convert_crop(gather_crops(self.domain, row[None], size).numpy()).astype(np.int16))
        return torch.from_numpy(np.concatenate(crops))

    def to(self, device: torch.device) -> Self:
        """Return the annotation with its tensors on `device`, since a CUDA graph must not copy from the host."""
        return self

    def convert_crop(self, crop: np.ndarray) -> np.ndarray:
        """Convert the pixels of a crop to the values that `gather` returns; unchanged by default."""
        return crop

    def decode(self, crops: Tensor) -> Tensor:
        """Convert crops that `gather` returned, `(B, h, w, C)`, to the tensor of the batch, on their device."""
        raise NotImplementedError


class PairLoader:
    """Loads unpaired batches of two domains, in the order of the reference implementation.

    An epoch is max(|A|, |B|) pairs in random order; pair i has image i mod |A| of A and a random image of B, drawn with
    replacement (image i mod |B|, in order, with `serial_batches`). Crops and flips of A and B are independent. All
    random choices depend only on `seed` and the position, the number of pairs seen so far.

    annotations: by their name in a batch, whose last letter is the domain's (`mask_a`); cropped and flipped like images
    rank, ranks: a batch is this rank's part of a step's images, `batch_size` of `ranks * batch_size`
    gpu_images: by domain, the `(N, H, W, C)` images in the device's memory, or None
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
        self.a, self.b = a, b
        self.config, self.seed = config, seed
        self.rank, self.ranks = rank, ranks
        self.device = torch.device(device)
        self.annotations = {name: annotation.to(self.device) for name, annotation in (annotations or {}).items()}
        self._domains = {"A": a, "B": b}
        for letter, domain in self._domains.items():
            _check_sizes(letter, domain, config)
        self.gpu_images = {letter: _load_to_gpu(domain, self.device) for letter, domain in self._domains.items()}
        self._restrict_to(np.arange(len(a)), np.arange(len(b)), ())

    def _restrict_to(self, a: np.ndarray, b: np.ndarray, seed_salt: tuple[int, ...]) -> None:
        """Restrict the loader to the images with the indices `a` and `b`; `seed_salt` is added to its seed."""
        self._indices, self._seed_salt = {"A": a, "B": b}, seed_salt
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def random_half(self, number: int) -> PairLoader:
        """Return a loader of one half of each domain: the first (`number` 0) or second (1) of a split by the seed.

        The halves have no image in common. Raises ValueError if a domain has one image.
        """
        halves = []
        for index, (letter, domain) in enumerate(self._domains.items()):
            if len(domain) < 2:
                raise ValueError(f"domain {letter} has one picture, which cannot be halved: add some")
            shuffled = random_from(self.seed, _HALVES, index).permutation(len(domain))
            halves.append(np.array_split(shuffled, 2)[number])
        half = copy.copy(self)
        half._restrict_to(halves[0], halves[1], (_HALVES, number))
        return half

    def __len__(self) -> int:
        """Return the number of pairs in an epoch."""
        return max(map(len, self._indices.values()))

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw an epoch's order `(N,)`, and 11 uniform random numbers per pair, `(N, 11)`; see `_name_draws`."""
        random = random_from(self.seed, epoch, *self._seed_salt)
        order = np.arange(len(self)) if self.config.serial_batches else random.permutation(len(self))
        return order, np.hstack([random.random((len(self), count)) for count in (7, 4)])

    def _sample_at(self, position: int) -> tuple[int, int, ImageDraw]:
        """Return the indices in A and B, and the random numbers, of pair number `position` of the run."""
        indices_a, indices_b = self._indices["A"], self._indices["B"]
        order, numbers = self._epoch(position // len(self))
        offset = position % len(self)
        item, draw = int(order[offset]), _name_draws(numbers[offset])
        item_b = item % len(indices_b) if self.config.serial_batches else int(draw.index_b * len(indices_b))
        return int(indices_a[item % len(indices_a)]), int(indices_b[item_b]), draw

    def plan(self, position: int) -> CropPlan:
        """Plan this rank's batch for the step that starts after `position` pairs."""
        a, b = [], []
        first = position + self.rank * self.config.batch
        for index_a, index_b, draw in map(self._sample_at, range(first, first + self.config.batch)):
            a.append(self._plan_crop(self.a, index_a, draw.crop_a))
            b.append(self._plan_crop(self.b, index_b, draw.crop_b))
        return CropPlan(torch.tensor(a), torch.tensor(b))

    def _plan_crop(self, domain: Domain, index: int, draw: CropDraw) -> tuple[int, int, int, int]:
        shape = domain.shapes[index]
        height, width = crop_shape(self.config, shape)
        top, left = int(draw.top * (shape[0] - height + 1)), int(draw.left * (shape[1] - width + 1))
        hflip = HFLIP * (self.config.flip and draw.hflip > 0.5)
        vflip = VFLIP * (self.config.flip_vertical and draw.vflip > 0.5)
        rotation = _ROTATIONS[int(4 * draw.rotation)] if self.config.rotate90 else 0
        return index, top, left, (hflip + vflip) ^ rotation

    def gather(self, plan: CropPlan) -> Batch:
        """Cut crops `(B, h, w, C)` of images and annotations on the host; for images on the GPU, keep their plan."""
        plans = {"A": plan.A, "B": plan.B}
        gathered = {letter: self._gather(letter, rows) for letter, rows in plans.items()}
        for name, annotation in self.annotations.items():
            letter = name[-1].upper()
            gathered[name] = annotation.gather(plans[letter], self._crop_shape(letter, plans[letter]))
        return gathered

    def _gather(self, letter: str, plan: Tensor) -> Tensor:
        if self.gpu_images[letter] is not None:
            return plan
        return gather_crops(self._domains[letter], plan, self._crop_shape(letter, plan))

    def _crop_shape(self, letter: str, plan: Tensor) -> tuple[int, int]:
        return crop_shape(self.config, self._domains[letter].shapes[int(plan[0, INDEX])])

    def preprocess_on_device(self, gathered: Batch) -> Batch:
        """Complete a batch of `gather`: `A` and `B`, `(B, C, h, w)` float32 in [-1, 1] on the device, and annotations.

        Other tensors are only moved. This never waits for the device, so it can be part of a captured step.
        """
        batch = {name: part.to(self.device, non_blocking=True) for name, part in gathered.items()}
        batch |= {name: annotation.decode(batch[name]) for name, annotation in self.annotations.items()}
        for letter, domain in self._domains.items():
            images = self.gpu_images[letter]
            if images is not None:  # then all have one size
                size = crop_shape(self.config, domain.shapes[0])
                batch[letter] = crop_and_flip(images, batch[letter], size, rotate90=self.config.rotate90)
            batch[letter] = normalize_batch(batch[letter], domain.format.range)
        return batch

    def batch(self, position: int) -> Batch:
        """Return the batch after `position` pairs, as `preprocess_on_device` returns it."""
        return self.preprocess_on_device(self.gather(self.plan(position)))

    def batches(self, position: int) -> Generator[Batch, None, None]:
        """Yield gathered batches from `position` on, without end; a thread prepares them in advance.

        Batches for a CUDA device are in page-locked memory: a copy from other memory would wait for earlier steps.

        The thread must not run parallel torch operations: in a second thread, they cause OpenMP spin-waits that slow
        every step by 50 % (benchmarks/LOG.md). The thread ends with the iterator, which raises its errors.
        """
        ready: queue.Queue[Batch | Exception] = queue.Queue(maxsize=_AHEAD)
        stop, pinned = threading.Event(), self.device.type == "cuda"

        def work() -> None:
            try:
                for start in count(position, self.ranks * self.config.batch):
                    ready.put(self.gather(self.plan(start)))
                    if stop.is_set():
                        return
            except Exception as error:
                ready.put(error)

        thread = threading.Thread(target=work, name="velogan-prefetch", daemon=True)
        thread.start()
        try:
            while True:
                batch = ready.get()
                if isinstance(batch, Exception):
                    raise batch
                yield {name: part.pin_memory() for name, part in batch.items()} if pinned else batch
        finally:
            stop.set()
            while thread.is_alive():  # the queue may be full
                try:
                    ready.get(timeout=0.01)
                except queue.Empty:
                    thread.join(timeout=0.01)


def _load_to_gpu(domain: Domain, device: torch.device) -> Tensor | None:
    """Return a domain's images as `(N, H, W, C)` on a GPU; None if they are large or of several shapes, or on a CPU."""
    if device.type != "cuda" or not domain.has_one_shape:  # a CPU reads crops faster
        return None
    if domain.pixels.nbytes > GPU_CACHE_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return None
    return copy_to_device(domain, device)


def copy_to_device(domain: Domain, device: torch.device) -> Tensor:
    """Copy all images, which have one shape, to `(N, H, W, C)` on the device, one at a time."""
    first = torch.from_numpy(domain.image(0))
    images = torch.empty((len(domain), *first.shape), dtype=first.dtype, device=device)
    for index, image in enumerate(images):
        image.copy_(torch.from_numpy(domain.image(index)))
    return images


def gather_crops(domain: Domain, plan: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut and flip crops like `crop_and_flip`, but on the host and image by image; return `(B, h, w, C)`."""
    height, width = size
    crops = []
    for index, top, left, flip in plan.tolist():
        crop = domain.rows(index, top, top + height)[:, left : left + width]
        crop = crop[:: -1 if flip & VFLIP else 1, :: -1 if flip & HFLIP else 1]
        crops.append(crop.swapaxes(0, 1) if flip & TRANSPOSE else crop)
    return torch.from_numpy(np.stack(crops))


def _check_sizes(letter: str, domain: Domain, config: DataConfig) -> None:
    """Raise ValueError if a crop does not fit into an image, or uncropped images of a batch have several sizes."""
    if config.crop is not None:
        for name, (height, width, _) in zip(domain.names, domain.shapes):
            if min(height, width) < config.crop_size:
                raise ValueError(
                    f"data.crop_size={config.crop_size} is larger than {name} of domain {letter}, which is "
                    f"{width}x{height} pixels; set crop_size to at most {min(height, width) // 4 * 4}, "
                    "remove the picture, or choose data.preprocess=resize_and_crop"
                )
    elif config.batch > 1 and not domain.has_one_shape:
        raise ValueError(
            f"data.batch_size={config.batch} needs pictures of one size, but data.preprocess="
            f"{config.preprocess} leaves {len(set(domain.shapes))} sizes in domain {letter}; set "
            "batch_size to 1 or choose a preprocess with a crop"
        )
