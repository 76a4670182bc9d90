"""All measurements on a GPU, by one command, in order of importance.

    python -m benchmarks.gpu --list
    python -m benchmarks.gpu --minutes 9 --data SETS --out gpu

Each item is a process of its own, whose result is written when it ends: to OUT/gpu.json, and as tables to
OUT/RECORDS.md. An item whose estimate is longer than the remaining time is skipped, with the reason; one that fails
does not end the others. Items with results in OUT are not measured again, unless `--only` names them. Items that
measure time run alone; trainings for scores run in parallel, under NVIDIA's Multi-Process Service if it is installed.
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
from benchmarks.gpu_item import ITEMS, ROOT, Context, Item

GRACE_S = 20
"""Seconds after its deadline in which an item may write its result."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the items and exit")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--data", type=Path, help="a folder with sets and weights/")
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--only", nargs="+", metavar="ITEM")
    parser.add_argument("--parallel", type=int, default=6, help="trainings at a time")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--item", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [name for name in args.only or () if name not in ITEMS]:
        parser.error(f"--only {' '.join(unknown)}: there are {', '.join(ITEMS)}")
    if not args.minutes > 0 or args.parallel < 1:
        parser.error("give --minutes above 0, and --parallel 1 or more")
    if args.list:
        for item in ITEMS.values():
            print(
                f"{item.name:10} {item.minutes:4g} min{', alone' if item.is_timed else '       '}  {item.description}"
            )
        return 0
    if args.item:
        return _run_item(ITEMS[args.item], args)
    return _run_all(args)


def _run_item(item: Item, args: argparse.Namespace) -> int:
    """Run the item in this process and write its result to its folder."""
    from velogan.engine.device import resolve_device
    from velogan.observe.machine import describe_machine

    folder = args.out / item.name
    context = Context(folder, args.data, args.tiny, args.deadline, args.parallel)
    result = {**asdict(item.run(context)), "machine": describe_machine(resolve_device("auto"))}
    (folder / "result.json").write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    return 0


def _run_all(args: argparse.Namespace) -> int:
    started_at = time.time()
    deadline = started_at + 60 * args.minutes
    args.out = args.out.resolve()
    args.data = args.data.resolve() if args.data else None
    args.out.mkdir(parents=True, exist_ok=True)
    results = _read_results(args.out)
    for item in ITEMS.values():
        if args.only and item.name not in args.only:
            continue
        if not args.only and results.get(item.name, {}).get("status") == "done":
            print(f"{item.name}: done before", flush=True)
            continue
        remaining_s = deadline - time.time() - GRACE_S
        needed = 0.1 if args.tiny else item.min_minutes
        if remaining_s < 60 * needed:
            reason = f"it needs {needed:g} minutes, but {max(remaining_s, 0) / 60:.1f} remain"
            results[item.name] = {"status": "skipped", "reason": reason, "description": item.description}
        else:
            seconds = remaining_s if args.tiny else min(remaining_s, 75 * item.minutes)
            results[item.name] = _run_process(item, args, deadline=time.time() + seconds)
        result = results[item.name]
        print(f"{item.name}: {result['status']}{', ' + result['reason'] if result.get('reason') else ''}", flush=True)
        _write(args.out, results)
    return 0


def _run_process(item: Item, args: argparse.Namespace, *, deadline: float) -> dict[str, Any]:
    """Run the item in a process of its own, whose process group is killed at the end; return its result."""
    folder, started_at = args.out / item.name, time.time()
    folder.mkdir(exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--item",
        item.name,
        "--deadline",
        str(deadline),
        "--out",
        str(args.out),
    ]
    command += ["--parallel", str(args.parallel), *(["--tiny"] if args.tiny else [])]
    command += ["--data", str(args.data)] if args.data else []
    reason, log = "", folder / "output.log"
    with _mps_service(folder, is_requested=not item.is_timed) as env, open(log, "w", encoding="utf-8") as output:
        child = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=ROOT, start_new_session=True)
        try:
            code = child.wait(timeout=max(deadline - time.time(), 0) + GRACE_S)
            if code:
                lines = [
                    line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
                ]
                reason = lines[-1] if lines else f"exit code {code}"
        except subprocess.TimeoutExpired:
            reason = "it exceeded its time"
        except BaseException:
            _kill_group(child)
            raise
        _kill_group(child)
    result: dict[str, Any] = {
        "description": item.description,
        "seconds": round(time.time() - started_at, 1),
        "reason": reason,
    }
    result["status"] = "failed" if reason else "done"
    if (folder / "result.json").is_file():
        result |= json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group of the child."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def _mps_service(folder: Path, *, is_requested: bool) -> Iterator[dict[str, str]]:
    """Yield the environment of an item; with its own Multi-Process Service if it is requested and installed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    control = shutil.which("nvidia-cuda-mps-control") if is_requested else None
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


def _read_results(out: Path) -> dict[str, dict[str, Any]]:
    file = out / "gpu.json"
    return json.loads(file.read_text(encoding="utf-8"))["items"] if file.is_file() else {}


def _write(out: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write gpu.json and RECORDS.md atomically."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    head = {"date": time.strftime("%Y-%m-%d"), "commit": commit.stdout.strip() or "unknown"}
    machine = next((result["machine"] for result in results.values() if "machine" in result), {})
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    lines = [f"{head['date']}, commit {head['commit']}, `python -m benchmarks.gpu`; {facts}.", ""]
    for name in filter(results.__contains__, ITEMS):
        result = results[name]
        lines += [f"### {result['description']}", "", f"`--only {name}`: {result['status']}{_describe_end(result)}", ""]
        lines += [*result.get("lines", ()), ""]
    for file, text in (
        ("gpu.json", json.dumps({**head, "items": results}, indent=1)),
        ("RECORDS.md", "\n".join(lines)),
    ):
        (out / f"{file}.new").write_text(text, encoding="utf-8")
        (out / f"{file}.new").replace(out / file)


def _describe_end(result: Mapping[str, Any]) -> str:
    elapsed = f" after {result['seconds']:.0f} s" if "seconds" in result else ""
    return elapsed + (f": {result['reason']}" if result.get("reason") else "")


if __name__ == "__main__":
    sys.exit(main())
