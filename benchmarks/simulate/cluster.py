"""What more devices would give: a step's time by its computing, its exchanges and the links between the devices.

Exchanges cost what Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH"
(IJHPCA 19(1), sections 3 and 4.5), count: a message of n bytes takes alpha + n beta. `DistributedContext` makes one of
each phase's gradients after its backward pass, and a tiny one a step, so nothing overlaps with computing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.simulate.load import Load

Backend = Literal["gloo", "nccl"]

AGREED = 16
"""Bytes of what ranks agree on once a step: two numbers of double precision, by gloo on any device."""

ETHERNET = 1448 / 1538
"""The share of an Ethernet's bandwidth that is payload: TCP with time stamps, in frames of 1500 bytes."""

GPU_MEMORY = 2e12
"""Bytes a second that a GPU moves, where nobody says otherwise (an A100's; others are faster). It hardly counts."""

SEGMENT = 2**20
"""The most bytes that gloo's ring sends at once (`maxSegmentSize` in gloo/allreduce.h)."""

_TINY = 16
"""Up to so many bytes for each rank, gloo's segments are too few for two of each."""


@dataclass(frozen=True)
class Link:
    """Each way at once: `bandwidth` in bytes of payload a second; `latency` in seconds, of a message one way."""

    bandwidth: float
    latency: float

    def seconds(self, size: float) -> float:
        """One message of `size` bytes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cluster:
    """Hosts with `per_host` devices each, a `link` between hosts, and one `inside` a host.

    `memory` is how many bytes a second a device reads or writes, when it copies gradients and adds them.
    """

    link: Link
    inside: Link
    per_host: int = 1
    backend: Backend = "gloo"
    memory: float = math.inf

    def slowest(self, ranks: int) -> Link:
        """What bounds a ring of so many, which crosses every link that it needs in each of its steps."""
        if self.per_host == 1:
            return self.link
        if ranks <= self.per_host:
            return self.inside
        return Link(
            min(self.link.bandwidth, self.inside.bandwidth),
            max(self.link.latency, self.inside.latency),
        )


def ring(size: float, ranks: int, link: Link) -> float:
    """Seconds of a ring's all-reduce: a reduce-scatter and an all-gather, 2 (p - 1) messages of n / p (section 4.5)."""
    return 2 * (ranks - 1) * link.seconds(size / ranks)


def tree(size: float, ranks: int, cluster: Cluster) -> float:
    """Seconds of recursive halving and doubling: the bytes of `ring` in 2 log2(hosts) messages (Rabenseifner's, ibid.).

    NCCL's double trees have these two terms (Sanders, Speck, Traeff 2009), and a chain within each host.
    """
    hosts, here = math.ceil(ranks / cluster.per_host), min(ranks, cluster.per_host)
    waits = (here - 1) * cluster.inside.latency + math.ceil(math.log2(hosts)) * cluster.link.latency
    return 2 * waits + 2 * (ranks - 1) / ranks * size / cluster.slowest(ranks).bandwidth


def gloo_ring(size: float, ranks: int, link: Link) -> float:
    """Seconds of gloo's ring (gloo/allreduce.cc): `ring` in segments, two of them under way at a time.

    The receiver asks for a segment before it is sent. So two of them take the request's way, a segment's way and the
    time of at least one on the wire: where the latency is longer than that, the wire is idle in between.
    """
    least = 2 if size > _TINY * ranks else 1
    each = max(least, math.ceil(size / SEGMENT / ranks))
    wire = size / ranks / each / link.bandwidth
    pace = max(wire, link.latency + wire / 2)
    return 2 * (2 * link.latency + wire + ((ranks - 1) * each - 1) * pace)


def all_reduce(size: float, ranks: int, cluster: Cluster, backend: Backend | None = None) -> float:
    """Seconds on the way of one all-reduce of `size` bytes, by the algorithm that the backend takes."""
    if ranks == 1:
        return 0.0
    if (backend or cluster.backend) == "gloo":
        return gloo_ring(size, ranks, cluster.slowest(ranks))
    return min(ring(size, ranks, cluster.slowest(ranks)), tree(size, ranks, cluster))


def copying(size: float, ranks: int, cluster: Cluster) -> float:
    """Seconds of what a rank does with its own memory: gradients into one tensor, divided, the others' added.

    Two passes that read and write, and in the exchange (p - 1) / p of one that reads twice and writes.
    """
    return 0.0 if ranks == 1 else (4 + 3 * (ranks - 1) / ranks) * size / cluster.memory


@dataclass(frozen=True)
class Row:
    """A training on `devices`. `hours` of the whole run; milliseconds of a step, with its exchanges."""

    devices: int
    images_per_s: float
    efficiency: float
    hours: float
    step_ms: float
    exchange_ms: float
    agree_ms: float


def row(devices: int, load: Load, cluster: Cluster, *, step_s: float, images: float) -> Row:
    """Data-parallel training on so many devices; one alone needs `step_s` for its step. The run sees `images`."""
    exchanges = [phase.bytes for phase in load.phases]
    exchange_s = sum(all_reduce(size, devices, cluster) + copying(size, devices, cluster) for size in exchanges)
    agree_s = all_reduce(AGREED, devices, cluster, "gloo")
    whole_s = step_s + exchange_s + agree_s
    speed = devices * load.images / whole_s
    return Row(
        devices,
        images_per_s=speed,
        efficiency=step_s / whole_s,
        hours=images / speed / 3600,
        step_ms=1000 * whole_s,
        exchange_ms=1000 * exchange_s,
        agree_ms=1000 * agree_s,
    )


@dataclass(frozen=True)
class Modules:
    """Each phase on a node of its own, with copies of the other networks, exchanged every `every` images.

    `times`: how many times one node's images a second. `most`: the same without any exchange. `shares`: each node's
    computing, as shares of the whole step on one. What stale copies cost in quality is not in it.
    """

    nodes: int
    every: float
    times: float
    most: float
    shares: dict[str, float]


def modules(load: Load, link: Link, *, step_s: float, every: float) -> Modules:
    """What a method's phases on nodes gain: the node with the most to compute sets the pace.

    A node computes with frozen copies what earlier phases would have handed on. Each exchange is one message of all
    weights, for which all wait.
    """
    shares = {phase.name: phase.flops_alone / load.flops for phase in load.phases}
    slowest = max(shares.values())
    steps = every / load.images
    elapsed = steps * step_s * slowest + (link.seconds(load.weights) if len(shares) > 1 else 0.0)
    return Modules(len(shares), every, times=steps * step_s / elapsed, most=1 / slowest, shares=shares)


def simulate(
    load: Load,
    cluster: Cluster,
    *,
    devices: Sequence[int],
    step_s: float,
    images: float,
    every: float,
    trials: int = 1,
    reference: Load | None = None,
) -> dict[str, Any]:
    """Return `rows` by number of devices, and `factors`: of `method`, `modules` and `trials`, and their product.

    `reference` is the load of the method that `method` compares with: by arithmetic, at the same speed.
    """
    split = modules(load, cluster.link, step_s=step_s, every=every)
    method = reference.flops / reference.images / (load.flops / load.images) if reference else 1.0
    return {
        "rows": [vars(row(count, load, cluster, step_s=step_s, images=images)) for count in devices],
        "step_ms": 1000 * step_s,
        "images_per_step": load.images,
        "images": images,
        "gflop_per_step": load.flops / 1e9,
        "phases": [{"name": phase.name, "bytes": phase.bytes} for phase in load.phases],
        "factors": {
            "method": method,
            "modules": vars(split),
            "trials": trials,
            "together": method * split.times * trials,
            "nodes": split.nodes * trials,
        },
    }
