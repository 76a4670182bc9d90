"""`velogan simulate`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from velogan.cli.fields import Configured, configure
from velogan.cli.flags import Outcome
from velogan.config import Config
from velogan.recipes import DEFAULT, RECIPES

if TYPE_CHECKING:
    from velogan.scale.simulate import Cluster

_MOST = 10**12
"""Of what a simulation is asked about, so that nothing in it overflows."""


@dataclass(kw_only=True)
class Simulate(Configured):
    """Flags of `velogan simulate`.

    velogan simulate --devices 1..1024 --bandwidth 10Gbit --latency 50us --step-ms 1700
    """

    FIRST = ("preset", "method", "size", "image_size", "devices", "bandwidth", "latency", "per_host")
    FIRST += ("inside_bandwidth", "inside_latency", "backend", "memory", "step_ms", "images", "every", "trials", "json")

    devices: Annotated[
        str, tyro.conf.arg(help="How many, as 1,2,8; or all powers of two between two numbers.", metavar="1..1024")
    ] = "1..1024"
    bandwidth: Annotated[
        str, tyro.conf.arg(help="Of the link between hosts, each way, as it is sold.", metavar="10Gbit")
    ] = "10Gbit"
    latency: Annotated[str, tyro.conf.arg(help="Of a message between hosts, one way.", metavar="50us")] = "50us"
    per_host: Annotated[int, tyro.conf.arg(help="Devices of a host, which is shared by them.", metavar="NUMBER")] = 1
    inside_bandwidth: Annotated[
        str | None, tyro.conf.arg(help="Between devices of a host, in payload, with --per-host.", metavar="400GB")
    ] = None
    inside_latency: Annotated[str, tyro.conf.arg(help="Between devices of a host.", metavar="5us")] = "5us"
    backend: Annotated[
        Literal["gloo", "nccl"],
        tyro.conf.arg(help="What exchanges gradients: gloo on CPUs, nccl on GPUs.", metavar="gloo|nccl"),
    ] = "gloo"
    memory: Annotated[
        str | None,
        tyro.conf.arg(
            help="Bytes a second that a device reads or writes when it copies and adds gradients. Default: measured "
            "here for gloo, 2TB for nccl.",
            metavar="20GB",
        ),
    ] = None
    step_ms: Annotated[
        float | None,
        tyro.conf.arg(
            help="Milliseconds of a step on one device. Default: measured here, by a few steps.", metavar="NUMBER"
        ),
    ] = None
    images: Annotated[
        int,
        tyro.conf.arg(
            help="Images of each domain that the training sees, for its hours. Default: 200 epochs of horse2zebra.",
            metavar="NUMBER",
        ),
    ] = 200 * 1334
    every: Annotated[
        int,
        tyro.conf.arg(
            help="Images between exchanges of weights, where each phase of the method has a node of its own.",
            metavar="NUMBER",
        ),
    ] = 1000
    trials: Annotated[int, tyro.conf.arg(help="Trainings side by side, on devices of their own.", metavar="NUMBER")] = 1

    def execute(self, argv: list[str]) -> Outcome:
        from rich.console import Console

        from velogan.scale.asked import parse_devices
        from velogan.scale.load import load_of
        from velogan.scale.simulate import simulate
        from velogan.scale.table import render

        numbers = {name: getattr(self, name) for name in ("per_host", "images", "every", "trials")}
        if wrong := next((name for name, value in numbers.items() if not 1 <= value <= _MOST), None):
            flag = f"--{wrong.replace('_', '-')}"
            raise ValueError(f"{flag} {numbers[wrong]!s:.40}: give a whole number from 1 to {_MOST:,}")
        if self.step_ms is not None and not 0 < self.step_ms < _MOST:
            raise ValueError(
                f"--step-ms {self.step_ms}: give milliseconds above 0, or leave it out to measure a step here"
            )
        devices, cluster = parse_devices(self.devices), _cluster(self)
        config = configure(self)
        load, reference = load_of(config), load_of(config.change(method=RECIPES[DEFAULT]().method.kind))
        if self.step_ms is None:
            step_s, source = _measured_step(config, per_host=self.per_host) * load.images, "measured here"
        else:
            step_s, source = self.step_ms / 1000, "--step-ms"
        plan: dict[str, Any] = {"images": self.images, "every": self.every, "trials": self.trials}
        found = simulate(load, cluster, devices=devices, step_s=step_s, reference=reference, **plan)
        found |= {"step_from": source, "cluster": dataclasses.asdict(cluster)}
        console = Console(stderr=self.json)
        for part in render(found):
            console.print(part, highlight=False)
        return found, 0


def _cluster(asked: Simulate) -> Cluster:
    from velogan.scale.asked import parse_bandwidth, parse_latency
    from velogan.scale.memory import memory_speed
    from velogan.scale.simulate import ETHERNET, GPU_MEMORY, Cluster, Link

    if asked.per_host > 1 and asked.inside_bandwidth is None:
        raise ValueError(
            f"--per-host {asked.per_host}: say also how fast its devices reach each other, as --inside-bandwidth 400GB"
        )
    link = Link(ETHERNET * parse_bandwidth(asked.bandwidth, "--bandwidth"), parse_latency(asked.latency, "--latency"))
    inside = link
    if asked.inside_bandwidth is not None:
        inside_bandwidth = parse_bandwidth(asked.inside_bandwidth, "--inside-bandwidth")
        inside = Link(inside_bandwidth, parse_latency(asked.inside_latency, "--inside-latency"))
    if asked.memory is not None:
        memory = parse_bandwidth(asked.memory, "--memory")
    else:
        memory = memory_speed() if asked.backend == "gloo" else GPU_MEMORY
    return Cluster(link, inside, per_host=asked.per_host, backend=asked.backend, memory=memory)


def _measured_step(config: Config, *, per_host: int) -> float:
    """Seconds for an image of each domain, as several processes compute it: uncaptured where nobody asks for more.

    It has the share of this machine's cores that one of `per_host` devices has.
    """
    from velogan.measure.probe import probe
    from velogan.sweep.cores import available

    cores = available()
    cores = cores[: max(1, len(cores) // per_host)]
    engine: dict[str, Any] = {"threads": config.engine.threads or len(cores)}
    if config.engine.capture == "auto" and config.engine.mode != "graph":
        engine["capture"] = "off"  # as `training.choices.for_all` decides for several processes
    return probe(config.change(engine=engine), cores).seconds
