"""What `velogan simulate` predicts against what two hosts measure: network namespaces with a limited link between them.

    python -m benchmarks.links [ROUNDS] [SIZE] [SIDE] [LINK ...]      links as 300Mbit or 100Mbit/20ms; needs root

Each host has one process with one thread. In each round every link takes its turn in the same two processes, and a
step without exchange (`alone`) and one process alone (`one`) with them. Predicted: the median step of `alone`, and the
exchanges by `velogan.scale.simulate`, for the bandwidth and delay that the link is set to; what an unlimited link
(`free`) and this memory can do is found out by all-reduces of two sizes without training. Medians over rounds: of the
wall's time, and where nothing waits for a link, also of the processor's, which other work on the machine changes less;
each is that of the slower process.

Links are limited by `tc netem` where the kernel has it. Else the bandwidth is by `tc tbf`, and the delay by a process
that carries frames from one host's tap device to the other's and holds each back as long.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from velogan.config import Config
from velogan.engine.ranks import Ranks, joined
from velogan.engine.step import Step
from velogan.recipes import cyclegan
from velogan.scale.asked import parse_bandwidth, parse_latency
from velogan.scale.load import load_of
from velogan.scale.memory import memory_speed
from velogan.scale.simulate import ETHERNET, Cluster, Link, row
from velogan.training.choices import decide
from velogan.training.trial import step_of

ADDRESSES = ("10.88.0.1", "10.88.0.2")
NAMES = tuple(f"links-{os.getpid()}-{letter}" for letter in "ab")
LINKS = ("free", "100Mbit", "30Mbit", "10Mbit", "100Mbit/20ms", "30Mbit/50ms")
Spent = tuple[float, float]
"""Seconds of the wall and of the processor."""

LARGE, SMALL = 2**22, 2**8
"""Numbers in the all-reduces that find out what an unlimited link can do."""


def main(rounds: int, size: str, side: int, links: tuple[str, ...]) -> None:
    netem = _has_netem()
    for delay in dict.fromkeys(link.partition("/")[2] for link in links):
        of_it = [link for link in links if link.partition("/")[2] == delay]
        with tempfile.TemporaryDirectory(prefix="links-") as folder:
            held = Path(folder) / "delay"
            held.write_bytes(struct.pack("d", 0.0))
            _measure({"netem": netem, "held": str(held), "links": of_it, "rounds": rounds, "size": size, "side": side})


def _measure(ways: dict) -> None:
    """Links of one delay: a connection that has seen another one is slow until it has forgotten."""
    relay = None
    try:
        relay = _connect(netem=ways["netem"], delayed="/" in ways["links"][0], held=ways["held"])
        workers = [_start(rank, ways) for rank in (0, 1)]
        codes = [worker.wait() for worker in workers]
        if any(codes):
            sys.exit(f"a process ended with {codes}")
    finally:
        if relay is not None:
            relay.kill()
            relay.wait()
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _has_netem() -> bool:
    """Whether this kernel can delay frames."""
    _run("ip", "netns", "add", NAMES[0])
    try:
        tried = ["tc", "-n", NAMES[0], "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms"]
        return subprocess.run(tried, capture_output=True).returncode == 0
    finally:
        _run("ip", "netns", "delete", NAMES[0])


def _connect(*, netem: bool, delayed: bool, held: str) -> subprocess.Popen[bytes] | None:
    """Makes both hosts, `fast` between them, and `slow` where frames must be held back by a process of ours."""
    for name in NAMES:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    relay = None
    if netem or not delayed:
        _run(
            "ip", "link", "add", "wire0", "netns", NAMES[0], "type", "veth", "peer", "name", "wire0", "netns", NAMES[1]
        )
    else:
        relay = subprocess.Popen([sys.executable, __file__, "--relay", held], stdout=subprocess.PIPE)
        assert relay.stdout
        relay.stdout.readline()
    for name, address in zip(NAMES, ADDRESSES):
        _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "wire0")
        _run("ip", "-n", name, "link", "set", "wire0", "up", *(("txqueuelen", "20000") if relay else ()))
    return relay


def relay(held: str) -> None:
    """Carries frames between the hosts; how many seconds it holds each, is in the file `held`."""
    taps = []
    for name in NAMES_OF_PARENT:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        device = f"tap{name[-1]}{os.getpid()}"
        fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH", device.encode(), 0x1002))  # TUNSETIFF: a tap, without a header
        _run("ip", "link", "set", device, "netns", name)
        _run("ip", "-n", name, "link", "set", device, "name", "wire0")
        taps.append(tap)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # a wire does not wait for a core
    with open(held, "rb") as file:
        delay = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    print("ready", flush=True)
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]
    while True:
        due = min((frames[0][0] for frames in waiting if frames), default=time.monotonic() + 1)
        ready, _, _ = select.select(taps, [], [], max(0.0, due - time.monotonic()))
        (seconds,) = struct.unpack("d", delay[:8])
        for number, tap in enumerate(taps):
            if tap in ready:
                _read_all(tap, waiting[1 - number], seconds)
        now = time.monotonic()
        for tap, frames in zip(taps, waiting):
            while frames and frames[0][0] <= now:
                try:
                    os.write(tap, frames[0][1])
                except BlockingIOError:
                    break
                except OSError:  # the other host's end is not up yet: the frame is lost, as on a wire
                    pass
                frames.popleft()


def _read_all(tap: int, frames: deque[tuple[float, bytes]], seconds: float) -> None:
    for _ in range(64):
        try:
            frame = os.read(tap, 65536)
        except OSError:
            return
        frames.append((time.monotonic() + seconds, frame))


def _start(rank: int, ways: dict) -> subprocess.Popen[bytes]:
    env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "wire0"}
    command = ["ip", "netns", "exec", NAMES[rank], sys.executable, __file__, "--work", json.dumps(ways)]
    return subprocess.Popen(command, env=os.environ | env)


def work(ways: dict) -> None:
    """What each host's process does."""
    torch.set_num_threads(1)
    with joined("cpu", lost_after=600) as ranks:
        config = cyclegan().sized(ways["size"]).change(engine={"threads": 1}, data={"crop_size": ways["side"]})
        config = config.model_copy(update={"engine": ranks.share(decide(config)[0])})
        step = _step(config, ranks)
        turns: dict[str, Callable[[], None]] = {
            "one": lambda: _with(step, Ranks()) if ranks.first else None,
            "alone": lambda: _with(step, Ranks()),
        }
        turns |= {link: lambda: _with(step, ranks) for link in ways["links"]}
        took: dict[str, list[Spent]] = {name: [] for name in turns}
        free: list[tuple[Spent, Spent, Spent]] = []
        for _ in range(ways["rounds"]):  # before any limit
            free.append((_reduced(ranks, SMALL), _reduced(ranks, LARGE), _memory(ranks)))
        for number in range(-2, ways["rounds"]):
            for name, turn in turns.items():
                if name in ways["links"]:
                    _limit(name, ways)
                spent = _timed(ranks, turn)
                if number >= 0:
                    took[name].append(spent)
        _limit("free", ways)
        if ranks.first:
            _print(config, ways, took, free)


def _step(config: Config, ranks: Ranks) -> Callable[[], None]:
    side = config.data.crop_size
    step, objective, _ = step_of(config, shape=(side, side))
    assert isinstance(step, Step)
    batch = {letter: torch.rand(1, 3, side, side) * 2 - 1 for letter in "AB"}
    batch["uniform"] = torch.rand(objective.draws["train"], 1)

    def run() -> None:
        step({"train": dict(batch)})
        step.ranks.agree(seconds=0.0, stopping=False)

    run.of = step  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _with(run: Callable[[], None], ranks: Ranks) -> None:
    run.of.ranks = ranks  # pyright: ignore[reportFunctionMemberAccess]
    run()


def _timed(ranks: Ranks, turn: Callable[[], None]) -> Spent:
    ranks.gather(None)
    began, before = time.perf_counter(), time.process_time()
    turn()
    spent = ranks.gather((time.perf_counter() - began, time.process_time() - before))
    return max(wall for wall, _ in spent), max(used for _, used in spent)


def _reduced(ranks: Ranks, count: int) -> Spent:
    numbers = torch.ones(count)

    def reduce() -> None:
        dist.all_reduce(numbers)

    return _timed(ranks, reduce)


def _memory(ranks: Ranks) -> Spent:
    """Seconds of a byte."""
    return max(ranks.gather(1 / memory_speed(time.perf_counter))), max(ranks.gather(1 / memory_speed()))


def _limit(link: str, ways: dict) -> None:
    """Sets this host's end of the link."""
    rate, _, delay = link.partition("/")
    tc = ["tc", "qdisc", "replace", "dev", "wire0", "root"]
    if not ways["netem"]:
        with open(ways["held"], "r+b") as file:
            file.write(struct.pack("d", parse_latency(delay, "LINK") if delay else 0.0))
    if link == "free":
        subprocess.run(["tc", "qdisc", "delete", "dev", "wire0", "root"], capture_output=True)
    elif ways["netem"]:
        _run(*tc, "netem", "rate", rate, "limit", "100000", *(("delay", delay) if delay else ()))
    else:
        _run(*tc, "tbf", "rate", rate, "burst", "128kb", "limit", "32mb")


def _print(config: Config, ways: dict, took: dict[str, list[Spent]], free: list[tuple[Spent, Spent, Spent]]) -> None:
    load = load_of(config)
    megabytes = sum(phase.bytes for phase in load.phases) / 1e6
    print(f"{ways['rounds']} rounds, {ways['size']}, {ways['side']}x{ways['side']}, {megabytes:.1f} MB of gradients")
    print(f"{'':<20} {'exchange, ms':>22} {'images/s':>18}")
    print(f"{'':<20} {'measured':>11} {'predicted':>10} {'measured':>9} {'predicted':>10} {'off':>7}")
    for clock, of in enumerate(("wall", "processor")):
        small, large, per_byte = (median(one[clock] for one in column) for column in zip(*free))
        alpha = small / 8  # `gloo_ring` of two with less than a segment waits for so many messages
        fastest = 4 * LARGE / max(large - small - 3 / 2 * 4 * LARGE * per_byte, 1e-9)  # less what is added meanwhile
        one, alone = (median(spent[clock] for spent in took[name]) for name in ("one", "alone"))
        print(
            f"{of}: one process {1000 * one:.0f} ms a step, two without exchange {1000 * alone:.0f}; a message "
            f"{1e6 * alpha:.0f} us, free link {fastest * 8e-9:.2f} Gbit/s, memory {1e-9 / per_byte:.1f} GB/s"
        )
        for name in ways["links"]:
            if of == "processor" and name != "free":
                continue
            rate, _, delay = name.partition("/")
            bandwidth = fastest if name == "free" else min(fastest, ETHERNET * parse_bandwidth(rate, "LINK"))
            link = Link(bandwidth, alpha + (parse_latency(delay, "LINK") if delay else 0.0))
            said = row(2, load, Cluster(link, link, memory=1 / per_byte), step_s=alone, images=1)
            exchange = median(mine[clock] - other[clock] for mine, other in zip(took[name], took["alone"]))
            speed = 2 * load.images / median(spent[clock] for spent in took[name])
            print(
                f"{name:<20} {1000 * exchange:>11.0f} {said.exchange_ms + said.agree_ms:>10.0f} {speed:>9.3f} "
                f"{said.images_per_s:>10.3f} {said.images_per_s / speed - 1:>+7.1%}"
            )
    print(json.dumps({"took": took, "free": free}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["--relay"]:
        NAMES_OF_PARENT = tuple(f"links-{os.getppid()}-{letter}" for letter in "ab")
        relay(sys.argv[2])
    else:
        words = [*sys.argv[1:4], *["7", "xs", "32"][len(sys.argv[1:4]) :]]
        main(int(words[0]), words[1], int(words[2]), tuple(sys.argv[4:]) or LINKS)
