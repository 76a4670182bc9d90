"""The output of --dry-run: pictures, run length, estimated time and memory, fields that differ from the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from velogan.config import Config, check_rules_match, differences, fit_to_data
from velogan.engine.device import select_device
from velogan.engine.duration import parse_length
from velogan.engine.processes import is_main_process
from velogan.files import format_duration, pluralize

if TYPE_CHECKING:
    from velogan.data.config import DataConfig
    from velogan.data.sets.sources import DomainSource


def dry_run(config: Config, out: Path | None, *, defaults: Config, quiet: bool) -> dict[str, Any]:
    """List the pictures, time a few steps, and return a description of the run that `config` would start in `out`.

    Keys: `pictures` by domain, `preparation` in words, `networks` (parameters by role), `images` (per domain, None if
    unknown), `estimate` (`seconds` of training, `memory_mb`, `gpu_memory_mb`; None if a step cannot be timed) and
    `config`. Unless `quiet`, also print it as text, with the fields that differ from `defaults`. Raises ValueError if
    the run would be rejected. Processes other than the main one do nothing and return an empty dictionary.
    """
    from velogan.data.sets.annotations import DEFAULT_CLASSES, find_annotations
    from velogan.data.sets.pair import probe_channels
    from velogan.data.sets.sources import find_sources
    from velogan.methods.fit import count_role_parameters
    from velogan.observe.progress import Display
    from velogan.training.engine_settings import resolve_engine
    from velogan.training.record import format_decisions
    from velogan.training.run_folder import initial_weights_path, open_run
    from velogan.training.weights import read_initial_weights

    if not is_main_process():
        return {}
    if out is not None:
        config, _ = open_run(out, config)
    if initial := initial_weights_path(out, config) if out else config.train.start:
        read_initial_weights(Path(initial))
    check_rules_match(config)
    select_device(config.engine)
    with Display(quiet=quiet) as display:
        sources = find_sources(config.data, progress=display.task("looking for pictures"))
        domains = (sources.a, sources.b)
        find_annotations(config.data, domains)  # raises ValueError if annotations are missing
        length = parse_length(config.train.length, images_per_epoch=max(len(domain.train.names) for domain in domains))
        channels = [probe_channels(domain, config.data) for domain in domains]
        fitted, decisions = fit_to_data(config, channels, [config.data.crop] if config.data.crop else [])
        resolve_engine(fitted)  # raises ValueError if settings exclude each other
        if config.data.labels_a or config.data.labels_b:
            display.print_line(f"label maps are not read for a dry run: the estimate assumes {DEFAULT_CLASSES} classes")
        for line in ["timing a few steps", *format_decisions(decisions)]:
            display.print_line(line)
        images, estimate = _estimate(fitted, images=length.total, minutes=length.span.amount, log=display.print_line)
    result = {
        "pictures": {domain.letter: _count_pictures(domain, count) for domain, count in zip(domains, channels)},
        "preparation": _describe_preparation(config.data),
        "networks": count_role_parameters(fitted.method, fitted.spec),
        "images": images,
        "estimate": estimate,
        "config": config.model_dump(mode="json"),
    }
    if not quiet:
        epochs = (
            "" if images is None else f" ({images / length.images_per_epoch:.3g} epochs of {length.images_per_epoch:,})"
        )
        print("\n".join(_format_result(result, epochs=epochs, length=config.train.length)))
        for name, (value, default) in differences(config, defaults).items():
            print(f"  {name}: {value}   (default: {default})")
    return result


def _count_pictures(domain: DomainSource, channels: int) -> dict[str, Any]:
    held_out, test = (len(part.names) if part else 0 for part in (domain.validation, domain.test))
    counts = {"training": len(domain.train.names), "held_out": held_out, "test": test}
    return {"name": domain.name, **counts, "channels": channels}


def _describe_preparation(data: DataConfig) -> str:
    crop = f"a random crop of {data.crop_size}x{data.crop_size} pixels"
    return {
        "resize_and_crop": f"resized to {data.load_side}x{data.load_side}, then {crop}",
        "crop": f"{crop}, without resizing",
        "scale_width": f"resized to a width of {data.load_side} pixels",
        "scale_width_and_crop": f"resized to a width of {data.load_side} pixels, then {crop}",
        "none": "neither resized nor cropped",
    }[data.preprocess]


def _estimate(
    config: Config, *, images: int | None, minutes: float, log: Any
) -> tuple[int | None, dict[str, float] | None]:
    """Time a few steps on random images; return the run length in images per domain, and its time and memory.

    `images`: run length; if None, it follows from `minutes`. A long run on a GPU is faster: it compiles its steps.
    """
    from velogan.engine.processes import available_cores
    from velogan.measure.probe import probe

    cores = available_cores()
    single_process = {"length": "1 minute", "exchange_every": None}
    threads = config.engine.threads or len(cores)
    try:
        step = probe(config.change(train=single_process, engine={"threads": threads}), cores)
    except ValueError as error:
        log(f"a step cannot be timed on this machine: {error}")
        return images, None
    seconds = 60 * minutes if images is None else images * step.seconds
    images = int(seconds / step.seconds) if images is None else images
    return images, {"seconds": seconds, "memory_mb": step.memory_mb, "gpu_memory_mb": step.gpu_memory_mb}


def _format_result(result: dict[str, Any], *, epochs: str, length: str) -> list[str]:
    """Return the result of `dry_run` as lines of text; `epochs`: text with the number of epochs, in parentheses."""
    lines = [
        f"{letter} ({domain['name']}): {pluralize(domain['training'], 'picture')} for training, "
        f"{domain['held_out']} held out, {domain['test']} for test; {pluralize(domain['channels'], 'channel')}"
        for letter, domain in result["pictures"].items()
    ]
    lines.append(f"each picture: {result['preparation']}")
    networks = ", ".join(f"{name} {count:,}" for name, count in result["networks"].items())
    lines.append(f"networks: {networks} parameters")
    images, estimate = result["images"], result["estimate"]
    images_text = length if images is None else f"{pluralize(images, 'image')} of each domain{epochs}"
    lines.append(f"length: {images_text}")
    if estimate is not None:
        memory = f"{estimate['memory_mb']:,.0f} MB of memory"
        if estimate["gpu_memory_mb"]:
            memory += f" and {estimate['gpu_memory_mb']:,.0f} MB of GPU memory"
        lines.append(
            f"estimate: {format_duration(estimate['seconds'])} of training with {memory}, from a few timed steps; "
            "start-up, saving and scoring are not included"
        )
    return [*lines, "fields that differ from the defaults:"]
