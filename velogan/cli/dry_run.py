"""What --dry-run says: the pictures, the length, an estimate of time and memory, and what differs from the defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velogan.config import Config, check_rules_match, differences, fit_channels
from velogan.engine.duration import parse_length
from velogan.engine.processes import is_main_process
from velogan.files import counted, duration

if TYPE_CHECKING:
    from velogan.data.config import DataConfig
    from velogan.data.sets.sources import Side


def dry_run(config: Config, *, usual: Config, quiet: bool) -> dict[str, Any]:
    """Looks through the pictures, times a few steps, and returns what a run of `config` would be.

    Keys: `pictures` by domain, `preparation` in words, `networks` with their weights by role, `images` of each domain
    that are seen (None if unknown), `estimate` (`seconds` of training, `memory_mb`, `gpu_memory_mb`; None where a step
    cannot be timed), `config`. It is printed for people unless `quiet`, with the fields that differ from `usual`.
    ValueError for what a run would refuse.
    """
    from velogan.data.sets.annotations import USUAL_CLASSES, find_annotations
    from velogan.data.sets.pair import look_at_channels
    from velogan.data.sets.sources import find_sources
    from velogan.methods.fit import check_sizes, parameters_of
    from velogan.observe.progress import Display
    from velogan.training.session import engine_lines

    check_rules_match(config)
    if not is_main_process():
        return {}
    with Display(quiet=quiet) as display:
        sources = find_sources(config.data, progress=display.task("looking for pictures"))
        sides = (sources.a, sources.b)
        find_annotations(config.data, sides)  # which refuses folders that hold none
        length = parse_length(config.train.length, epoch=max(len(side.train.names) for side in sides))
        channels = [look_at_channels(side, config.data) for side in sides]
        real, decisions = fit_channels(config, *channels)
        check_sizes(real.method, real.spec, [real.data.crop] if real.data.crop else [])
        if config.data.labels_a or config.data.labels_b:
            display.say(f"label maps are not read here: the estimate takes {USUAL_CLASSES} classes")
        for line in ["timing a few steps", *engine_lines(decisions)]:
            display.say(line)
        images, estimate = _estimate(real, images=length.total, minutes=length.span.amount, say=display.say)
    found = {
        "pictures": {side.letter: {**_count(side), "channels": count} for side, count in zip(sides, channels)},
        "preparation": _preparation(config.data),
        "networks": parameters_of(real.method, real.spec),
        "images": images,
        "estimate": estimate,
        "config": config.model_dump(mode="json"),
    }
    if not quiet:
        epochs = "" if images is None else f" ({images / length.epoch:.3g} epochs of {length.epoch:,})"
        print("\n".join(_lines(found, epochs=epochs, length=config.train.length)))
        for name, (value, default) in differences(config, usual).items():
            print(f"  {name}: {value}   (default: {default})")
    return found


def fitted(config: Config) -> Config:
    """The configuration with the channels that its pictures have. ValueError where there are none."""
    from velogan.data.sets.pair import look_at_channels
    from velogan.data.sets.sources import find_sources

    sources = find_sources(config.data)
    return fit_channels(config, *(look_at_channels(side, config.data) for side in (sources.a, sources.b)))[0]


def _count(side: Side) -> dict[str, Any]:
    held_out, test = (len(part.names) if part else 0 for part in (side.validation, side.test))
    return {"name": side.name, "training": len(side.train.names), "held_out": held_out, "test": test}


def _preparation(data: DataConfig) -> str:
    square = f"a random square of {data.crop_size}x{data.crop_size} pixels"
    return {
        "resize_and_crop": f"resized to {data.load_side}x{data.load_side}, then {square}",
        "crop": f"{square}, without resizing",
        "scale_width": f"resized to a width of {data.load_side} pixels",
        "scale_width_and_crop": f"resized to a width of {data.load_side} pixels, then {square}",
        "none": "whole, as they are",
    }[data.preprocess]


def _estimate(
    config: Config, *, images: int | None, minutes: float, say: Any
) -> tuple[int | None, dict[str, float] | None]:
    """Images that are seen, and what they take: by arithmetic from a few steps on random pictures, timed here.

    On a GPU they are not compiled, as steps of a long run are: then it is faster than this.
    """
    from velogan.engine.processes import available_cores
    from velogan.measure.probe import probe

    cores = available_cores()
    alone = {"length": "1 minutes", "exchange_every": None}
    try:
        step = probe(config.change(train=alone, engine={"threads": config.engine.threads or len(cores)}), cores)
    except ValueError as error:
        say(f"a step cannot be timed here: {error}")
        return images, None
    seconds = 60 * minutes if images is None else images * step.seconds
    images = int(seconds / step.seconds) if images is None else images
    return images, {"seconds": seconds, "memory_mb": step.memory_mb, "gpu_memory_mb": step.gpu_memory_mb}


def _lines(found: dict[str, Any], *, epochs: str, length: str) -> list[str]:
    lines = [
        f"{letter} ({one['name']}): {counted(one['training'], 'picture')} for training, {one['held_out']} held out, "
        f"{one['test']} for test; {counted(one['channels'], 'channel')}"
        for letter, one in found["pictures"].items()
    ]
    lines.append(f"each picture: {found['preparation']}")
    networks = ", ".join(f"{name} {count:,}" for name, count in found["networks"].items())
    lines.append(f"networks: {networks} parameters")
    images, estimate = found["images"], found["estimate"]
    seen = length if images is None else f"{counted(images, 'image')} of each domain{epochs}"
    lines.append(f"length: {seen}")
    if estimate is not None:
        memory = f"{estimate['memory_mb']:,.0f} MB of memory"
        if estimate["gpu_memory_mb"]:
            memory += f" and {estimate['gpu_memory_mb']:,.0f} MB of the GPU's"
        lines.append(
            f"estimate: {duration(estimate['seconds'])} of training with {memory}; a few steps were timed here, and "
            "the start, saving and scoring come on top"
        )
    return [*lines, "fields that differ from the defaults:"]
