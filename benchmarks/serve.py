"""How `velogan serve` bears many requests at once, and how its memory stands after minutes of few.

    python -m benchmarks.serve RUN FOLDER [--together 50] [--rounds 3] [--waiting N] [--soak MINUTES] [--every SECONDS]

RUN: a run folder or a weights file; FOLDER: pictures. Starts a server of its own with the defaults; then, `rounds`
times, sends as many pictures at once, and counts answers by status; what is refused with 503 is not sent again. Then
one request every so many seconds, each tenth of them a file that is none. Memory is the server's resident set: before
the first request, after each round, and every minute of the soak.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from velogan.data.sets.sources import list_images


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--together", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waiting", type=int, default=16)
    parser.add_argument("--soak", type=float, default=0)
    parser.add_argument("--every", type=float, default=2)
    asked = parser.parse_args()
    pictures = [(asked.folder / name).read_bytes() for name in list_images(asked.folder)[:50]]
    words = [sys.executable, "-m", "velogan", "serve", str(asked.run), "--port", "0", "--waiting", str(asked.waiting)]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert server.stderr
    url = next(line.split()[2] for line in server.stderr if line.startswith("serving at "))
    found: dict[str, Any] = {"memory_mb": {"start": memory_mb(server.pid)}, "rounds": []}
    try:
        with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
            for data in pictures[:3]:
                translate(client, data)
            found["memory_mb"]["after 3 pictures"] = memory_mb(server.pid)
            for _ in range(asked.rounds):
                found["rounds"].append(load(url, pictures, asked.together) | {"memory_mb": memory_mb(server.pid)})
            if asked.soak:
                found["soak"] = soak(client, pictures, server.pid, minutes=asked.soak, every=asked.every)
            time.sleep(5)
            found["memory_mb"]["end"] = memory_mb(server.pid)
            found["waiting_at_the_end"] = client.get("/healthz").json()["waiting"]
    finally:
        server.send_signal(signal.SIGINT)
        found["exit_code"] = server.wait(60)
        print(json.dumps(found))


def translate(client: httpx.Client, data: bytes) -> tuple[int, float]:
    """The status of one request, or 0 for none, and its seconds."""
    started = time.perf_counter()
    try:
        answer = client.post("/api/translate", files={"picture": ("one.jpg", data)}, data={"preview": "true"})
        assert "picture" in answer.json() or "error" in answer.json()
        status = answer.status_code
    except httpx.HTTPError as error:
        print(f"no answer: {error!r}", file=sys.stderr)
        status = 0
    return status, time.perf_counter() - started


def load(url: str, pictures: list[bytes], together: int) -> dict[str, Any]:
    """So many requests at once, each over a connection of its own."""
    with ThreadPoolExecutor(together) as pool:
        clients = [httpx.Client(base_url=url, timeout=300, trust_env=False, verify=False) for _ in range(together)]
        started = time.perf_counter()
        sent = [pool.submit(translate, client, pictures[i % len(pictures)]) for i, client in enumerate(clients)]
        done = [one.result() for one in sent]
        seconds = time.perf_counter() - started
        for client in clients:
            client.close()
    statuses = Counter(status for status, _ in done)
    slowest = {str(status): round(max(took for one, took in done if one == status), 2) for status in statuses}
    return {
        "statuses": {str(one): count for one, count in statuses.items()},
        "slowest_s": slowest,
        "s": round(seconds, 2),
    }


def soak(client: httpx.Client, pictures: list[bytes], pid: int, *, minutes: float, every: float) -> dict[str, Any]:
    """One request after another, not faster than one every so many seconds."""
    statuses: Counter[int] = Counter()
    seconds, memory = [], [memory_mb(pid)]
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 60 * minutes:
        number = sum(statuses.values())
        data = pictures[number % len(pictures)]
        status, took = translate(client, data[: len(data) // 2] if number % 10 == 9 else data)
        statuses[status] += 1
        seconds.append(took)
        if passed > 60 * len(memory):
            memory.append(memory_mb(pid))
        time.sleep(max(0, every - took))
    middle = sorted(seconds)[len(seconds) // 2]
    common = {"minutes": minutes, "every_s": every, "statuses": {str(one): count for one, count in statuses.items()}}
    return common | {"median_s": round(middle, 3), "slowest_s": round(max(seconds), 2), "memory_mb": memory}


def memory_mb(pid: int) -> int:
    """The resident set of a process, in MB of 2^20 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


if __name__ == "__main__":
    main()
