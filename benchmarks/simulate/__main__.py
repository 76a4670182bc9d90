"""Forecast what more devices and hosts would give one training: images per second and hours, by arithmetic.

python -m benchmarks.simulate cyclegan --devices 1..1024 --bandwidth 10Gbit --latency 50us --step-ms 1720 [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any, get_args

import yaml
from rich.console import Console

from benchmarks.simulate.cluster import ETHERNET, GPU_MEMORY, Backend, Cluster, Link, simulate
from benchmarks.simulate.load import load_of
from benchmarks.simulate.memory import memory_speed
from benchmarks.simulate.parse import parse_bandwidth, parse_devices, parse_latency
from benchmarks.simulate.table import render
from velogan.config import SIZES, Config
from velogan.measure.probe import probe
from velogan.recipes import DEFAULT, RECIPES

EPOCHS_200 = 200 * 1334
"""Images of each domain in 200 epochs of horse2zebra."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    add = parser.add_argument
    add("preset", nargs="?", choices=RECIPES, default=DEFAULT)
    add("--size", choices=SIZES, help="width and depth of the networks")
    add("--image-size", type=int, help="side of the training crops, in pixels")
    add("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="change a field of the preset")
    add("--devices", default="1..1024", help="how many, as 1,2,8; or all powers of two between two numbers")
    add("--bandwidth", default="10Gbit", help="nominal bandwidth of the link between hosts, in each direction")
    add("--latency", default="50us", help="one-way latency of a message between hosts")
    add("--per-host", type=int, default=1, help="devices of a host, which share its link")
    add("--inside-bandwidth", help="payload bandwidth between devices of a host, with --per-host: 400GB")
    add("--inside-latency", default="5us", help="between devices of a host")
    add("--backend", choices=get_args(Backend), default="gloo", help="what exchanges gradients")
    add("--memory", help="memory bandwidth of a device. Default: measured here for gloo, 2TB for nccl")
    add("--step-ms", type=float, help="milliseconds of a step on one device. Default: measured here in one process")
    add("--images", type=int, default=EPOCHS_200, help="images of each domain that the training sees, for its hours")
    add("--every", type=int, default=1000, help="images between exchanges if each phase has a node of its own")
    add("--trials", type=int, default=1, help="trainings side by side, on devices of their own")
    add("--json", action="store_true", help="print the result as one JSON object on standard output")
    args = parser.parse_args(argv)
    try:
        result = _simulate(args)
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=args.json)
    for part in render(result):
        console.print(part, highlight=False)
    if args.json:
        print(json.dumps(result))


def _simulate(args: argparse.Namespace) -> dict[str, Any]:
    counts = (args.per_host, args.images, args.every, args.trials)
    if min(counts) < 1 or (args.step_ms is not None and not args.step_ms > 0):
        raise ValueError("--per-host, --images, --every, --trials and --step-ms: give numbers above 0")
    devices, cluster = parse_devices(args.devices), _cluster(args)
    config = _config(args, args.preset).change(**_changes(args.set))
    if args.step_ms is None:
        step_s, source = _measured_step(config, per_host=args.per_host) * config.images_per_update, "measured here"
    else:
        step_s, source = args.step_ms / 1000, "--step-ms"
    result = simulate(
        load_of(config),
        cluster,
        devices=devices,
        step_s=step_s,
        images=args.images,
        every=args.every,
        trials=args.trials,
        reference=load_of(_config(args, DEFAULT)),
    )
    return result | {"step_from": source, "cluster": dataclasses.asdict(cluster)}


def _config(args: argparse.Namespace, preset: str) -> Config:
    """Return a preset at the requested sizes; the reference is one too, with its own generator."""
    config = RECIPES[preset]()
    config = config.with_size(args.size) if args.size else config
    return config.change(data={"crop_size": args.image_size}) if args.image_size else config


def _changes(assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration that `generator.decoder=simple` and the like change."""
    sections: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        section, dot, field = name.partition(".")
        if not equals or not dot:
            raise ValueError(f"--set {assignment}: write SECTION.FIELD=VALUE, such as generator.decoder=simple")
        sections.setdefault(section, {})[field] = yaml.safe_load(value)
    return sections


def _cluster(args: argparse.Namespace) -> Cluster:
    if args.per_host > 1 and args.inside_bandwidth is None:
        raise ValueError(f"--per-host {args.per_host}: give --inside-bandwidth too, such as 400GB")
    link = Link(ETHERNET * parse_bandwidth(args.bandwidth, "--bandwidth"), parse_latency(args.latency, "--latency"))
    inside = link
    if args.inside_bandwidth is not None:
        bandwidth = parse_bandwidth(args.inside_bandwidth, "--inside-bandwidth")
        inside = Link(bandwidth, parse_latency(args.inside_latency, "--inside-latency"))
    if args.memory is not None:
        memory = parse_bandwidth(args.memory, "--memory")
    else:
        memory = memory_speed() if args.backend == "gloo" else GPU_MEMORY
    return Cluster(link, inside, per_host=args.per_host, backend=args.backend, memory=memory)


def _measured_step(config: Config, *, per_host: int) -> float:
    """Measure the seconds per image of each domain, on the share of the cores that one of `per_host` devices has."""
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[: max(1, len(cores) // per_host)]
    return probe(config.change(engine={"threads": config.engine.threads or len(cores)}), cores).seconds


if __name__ == "__main__":
    main()
