"""Two hosts: network namespaces with an address each, and a link between them that can be cut."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from velogan.observe.log import read_stats

LOST_AFTER_S = 4
ADDRESSES = ("10.87.0.1", "10.87.0.2")


@dataclass
class Hosts:
    """Two hosts; `cut` takes the link between them down."""

    names: tuple[str, str]

    def start(self, host: int, argv: list[str], *, cache: Path) -> subprocess.Popen[str]:
        """Begins a command as rank `host`, through torchrun's rendezvous on the first host."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29400", "--rdzv-id", "hosts"]
        torchrun += ["--rdzv-conf", f"is_host={host == 0}", "--local-addr", ADDRESSES[host]]
        torchrun += ["--max-restarts", "0", "-m", "velogan"]
        env = {"GLOO_SOCKET_IFNAME": "wire0", "VELOGAN_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *torchrun, *argv],
            env=os.environ | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut(self) -> None:
        _ip("-n", self.names[1], "link", "set", "wire0", "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    names = (f"velogan-{os.getpid()}-a", f"velogan-{os.getpid()}-b")
    if shutil.which("ip") is None:
        pytest.skip("two hosts need the command ip (iproute2)")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "name", "wire0", "netns", names[1])
        for name, address in zip(names, ADDRESSES):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "wire0")
            _ip("-n", name, "link", "set", "wire0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"two hosts need the right to make network namespaces: {error.stderr.strip()}")
    yield Hosts(names)
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_two_hosts_report_a_cut_link(hosts: Hosts, flags, tmp_path: Path):
    run = tmp_path / "run"
    argv = flags(run, "--train.process-timeout", str(LOST_AFTER_S), images=99999, every=4)
    jobs = [hosts.start(host, argv, cache=tmp_path / f"cache-{host}") for host in (0, 1)]
    try:
        while not any(row["images"] >= 8 for row in read_stats(run)):
            assert all(job.poll() is None for job in jobs), [
                job.communicate() for job in jobs if job.poll() is not None
            ]
            time.sleep(0.1)
        hosts.cut()
        started_at = time.monotonic()
        lines = []
        for job in jobs:
            lines.append(_first_told(job))
        assert time.monotonic() - started_at < 60  # seconds on an idle machine; without signs of life, days
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    assert re.search(r"rank 0 of 2 .*no heartbeat from rank 1 of 2 \(.*\) for \d+ s; the same command", lines[0])
    assert re.search(rf"rank 1 of 2 .*no answer from the rendezvous at {ADDRESSES[0]}:\d+ for \d+ s", lines[1])
    assert json.loads((run / "run.json").read_text())["engines"]


def _first_told(job: subprocess.Popen[str]) -> str:
    """The first message of a velogan among what a job says."""
    assert job.stderr
    for line in job.stderr:
        if line.startswith("velogan: "):
            return line
    pytest.fail("it ended without a message")
