"""Everything that a GPU is asked for, by one command, in order of importance.

    python -m benchmarks.gpu --list
    python -m benchmarks.gpu --minutes 9 --data SETS --out gpu

Each item is a process of its own, and what it found is written when it ends: to OUT/gpu.json, and as tables to
OUT/RECORDS.md. An item whose estimate is longer than what is left is skipped, with the reason; one that fails does not
end the others. What OUT has already is not measured again, unless `--only` names it. Items that measure time run alone;
trainings for their scores run many at once, under NVIDIA's Multi-Process Service where it is installed.
`--data` is a folder with sets (apple2orange, ...) and weights/. `--tiny` tries everything, at sizes for two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import gpu_items  # noqa: F401  fills the list
from benchmarks.gpu_item import ITEMS, ROOT, Asked, Item

GRACE_S = 20
"""Seconds for which an item may go on beyond its end, to write what it found."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--data", type=Path, help="a folder with sets and weights/")
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--only", nargs="+", metavar="ITEM")
    parser.add_argument("--at-once", type=int, default=6, help="trainings at a time")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := [name for name in asked.only or () if name not in ITEMS]:
        parser.error(f"--only {' '.join(unknown)}: there are {', '.join(ITEMS)}")
    if not asked.minutes > 0 or asked.at_once < 1:
        parser.error("give --minutes above 0, and --at-once 1 or more")
    if asked.list:
        for one in ITEMS.values():
            print(f"{one.name:10} {one.minutes:4g} min{', alone' if one.timed else '       '}  {one.what}")
        return 0
    if asked.one:
        return _run_here(ITEMS[asked.one], asked)
    return _run_all(asked)


def _run_here(one: Item, asked: argparse.Namespace) -> int:
    """The item in this process; what it found goes to its folder."""
    from velogan.engine.device import resolve_device
    from velogan.observe.machine import machine

    folder = asked.out / one.name
    found = one.run(Asked(folder, asked.data, asked.tiny, asked.ends, asked.at_once))
    result = {**asdict(found), "machine": machine(resolve_device("auto"))}
    (folder / "result.json").write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    return 0


def _run_all(asked: argparse.Namespace) -> int:
    began = time.time()
    ends = began + 60 * asked.minutes
    asked.out = asked.out.resolve()
    asked.data = asked.data.resolve() if asked.data else None
    asked.out.mkdir(parents=True, exist_ok=True)
    results = _before(asked.out)
    for one in ITEMS.values():
        if asked.only and one.name not in asked.only:
            continue
        if not asked.only and results.get(one.name, {}).get("status") == "done":
            print(f"{one.name}: done before", flush=True)
            continue
        left = ends - time.time() - GRACE_S
        needs = 0.1 if asked.tiny else one.least
        if left < 60 * needs:
            reason = f"it needs {needs:g} minutes, and {max(left, 0) / 60:.1f} are left"
            results[one.name] = {"status": "skipped", "reason": reason, "what": one.what}
        else:
            seconds = left if asked.tiny else min(left, 75 * one.minutes)
            results[one.name] = _run_apart(one, asked, ends=time.time() + seconds)
        said = results[one.name]
        print(f"{one.name}: {said['status']}{', ' + said['reason'] if said.get('reason') else ''}", flush=True)
        _write(asked.out, results)
    return 0


def _run_apart(one: Item, asked: argparse.Namespace, *, ends: float) -> dict[str, Any]:
    """The item in a process of its own, with all that it starts in one group, which is ended with it."""
    folder, began = asked.out / one.name, time.time()
    folder.mkdir(exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--one", one.name, "--ends", str(ends), "--out", str(asked.out)]
    command += ["--at-once", str(asked.at_once), *(["--tiny"] if asked.tiny else [])]
    command += ["--data", str(asked.data)] if asked.data else []
    reason, log = "", folder / "said.log"
    with _service(folder, wanted=not one.timed) as env, open(log, "w", encoding="utf-8") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, env=env, cwd=ROOT, start_new_session=True)
        try:
            code = child.wait(timeout=max(ends - time.time(), 0) + GRACE_S)
            if code:
                lines = [
                    line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
                ]
                reason = lines[-1] if lines else f"exit code {code}"
        except subprocess.TimeoutExpired:
            reason = "it took longer than it was given"
        except BaseException:
            _end(child)
            raise
        _end(child)
    result: dict[str, Any] = {"what": one.what, "seconds": round(time.time() - began, 1), "reason": reason}
    result["status"] = "failed" if reason else "done"
    if (folder / "result.json").is_file():
        result |= json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends what is left of the child's group, which holds nothing but what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def _service(folder: Path, *, wanted: bool) -> Iterator[dict[str, str]]:
    """The environment of an item; with the Multi-Process Service of its own where it is `wanted` and installed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    control = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if control is None:
        yield env
        return
    env |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps")}
    (folder / "mps").mkdir(exist_ok=True)
    subprocess.run([control, "-d"], env=env, check=False)
    try:
        yield env
    finally:
        subprocess.run([control], input=b"quit\n", env=env, check=False, timeout=60)


def _before(out: Path) -> dict[str, dict[str, Any]]:
    file = out / "gpu.json"
    return json.loads(file.read_text(encoding="utf-8"))["items"] if file.is_file() else {}


def _write(out: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """gpu.json and RECORDS.md, whole: a file beside is renamed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    head = {"date": time.strftime("%Y-%m-%d"), "commit": commit.stdout.strip() or "unknown"}
    machine = next((one["machine"] for one in results.values() if "machine" in one), {})
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [f"{head['date']}, commit {head['commit']}, `python -m benchmarks.gpu`; {facts}.", ""]
    for name in [name for name in ITEMS if name in results]:
        one = results[name]
        lines += [f"### {one['what']}", "", f"`--only {name}`: {one['status']}{_aside(one)}", ""]
        lines += [*one.get("lines", ()), ""]
    for file, text in (
        ("gpu.json", json.dumps({**head, "items": results}, indent=1)),
        ("RECORDS.md", "\n".join(lines)),
    ):
        (out / f"{file}.new").write_text(text, encoding="utf-8")
        (out / f"{file}.new").replace(out / file)


def _aside(one: Mapping[str, Any]) -> str:
    took = f" after {one['seconds']:.0f} s" if "seconds" in one else ""
    return took + (f": {one['reason']}" if one.get("reason") else "")


if __name__ == "__main__":
    sys.exit(main())
