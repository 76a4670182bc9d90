"""The training pictures of both domains, opened once, and whether they and the networks fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from velogan.config import Config
from velogan.data.domains.cache import Domain, open_domain
from velogan.data.domains.loader import crop_shapes
from velogan.data.domains.sources import Side, Sources, find_sources
from velogan.data.domains.twins import twins
from velogan.engine.resolve import Pick
from velogan.methods import displayed, fresh_networks, judge
from velogan.observe.progress import Display


@dataclass(frozen=True)
class Data:
    """Both domains: where they came from, the prepared training pictures, and the loader's settings."""

    sources: Sources
    a: Domain
    b: Domain


def open_data(config: Config, display: Display) -> Data:
    """Finds, renders or decodes the training pictures of both domains, once."""
    sources = find_sources(config.data, progress=display.task("rendering"))
    domains = []
    for side in (sources.a, sources.b):
        progress = display.task(f"preparing {side.letter}")
        domain = open_domain(side.train, config.data, test=False, **config.reading(side.letter), progress=progress)
        for line in filter(None, (domain.note, domain.skipped_line, _straddling(config, side, domain))):
            display.say(f"domain {side.letter}: {line}")
        domains.append(domain)
    return Data(sources, *domains)


def _straddling(config: Config, side: Side, train: Domain) -> str:
    """Say which pictures are held out although training sees near duplicates of them; nothing where none are."""
    if side.validation is None:
        return ""
    try:
        held = open_domain(side.validation, config.data, test=True, **config.reading(side.letter))
    except ValueError:  # validation says why
        return ""
    found = twins(held.thumbnails, train.thumbnails, dtype=train.format.dtype)
    pairs = [f"{held.names[one]} ~ {train.names[other]}" for one, other in found[:3]]
    if not found:
        return ""
    return (
        f"{len(found)} of {len(held)} held-out pictures have near duplicates in training ({', '.join(pairs)}"
        f"{', ...' if len(found) > 3 else ''}), so the best checkpoint is chosen on pictures much like those trained "
        "on; --data.group REGEX keeps the pictures of one patient, video or scene together"
    )


def fit_channels(config: Config, data: Data) -> tuple[Config, list[Pick]]:
    """The configuration with the channels that both domains' pictures have, and what follows from them."""
    a, b = data.a.format.channels, data.b.format.channels
    picks = []
    if a != b and config.method == "cyclegan" and config.objective.identity:
        picks.append(Pick("identity loss", "off", f"channels of domain A: {a}, of domain B: {b}"))
    return config.change(generator={"in_channels": a, "out_channels": b}), picks


def check_sizes(config: Config, data: Data) -> None:
    """ValueError where pictures do not fit the networks."""
    multiple = config.generator.multiple
    channels = {"A": config.generator.in_channels or 3, "B": config.generator.out_channels or 3}
    with torch.device("meta"):
        nets = fresh_networks(config)
    whole = displayed(nets, config)["G_A"]
    for shape in sorted(crop_shapes(config.data, data.a) | crop_shapes(config.data, data.b)):
        size = f"{shape[1]}x{shape[0]}"
        if any(side % multiple for side in shape):
            fits = max(multiple, config.data.crop_size // multiple * multiple)
            raise ValueError(
                f"generator.network={config.generator.network} needs sides divisible by {multiple}, but pictures come "
                f"as {size}: set data.crop_size={fits} with a preprocess that crops, or use resnet"
            )
        images = {letter: torch.empty(1, count, *shape, device="meta") for letter, count in channels.items()}
        passes = {"generator": partial(whole, images["A"]), "discriminator": partial(judge, nets, images)}
        for part, passed in passes.items():
            try:
                passed()
            except (RuntimeError, ValueError) as error:
                raise ValueError(
                    f"{part}.network={getattr(config, part).network} cannot take pictures of {size} "
                    f"({str(error).splitlines()[0]}): set a larger data.crop_size (--image-size), or a smaller network"
                ) from None
