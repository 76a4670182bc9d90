"""Measure methods and engine modes against each other and against this machine's roofline, in one process.

python -m benchmarks.bench --only resnet_6,size=64 [--minutes 5] [--rounds 3] [--all] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.bench.cases import METHODS, make_plan
from benchmarks.bench.measure import bench
from benchmarks.bench.table import render
from velogan.engine.device import resolve_device


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="SPEC",
        help=f"what to measure, words separated by commas: methods ({', '.join(METHODS)}), networks (resnet_9, "
        "resnet_6, unet_256, unet_128), discriminators (basic, n_layers, pixel), modes (eager, compiled, graph, "
        "streams, default; reference is always measured with them), batch=N, size=N (pixels). Kinds that are not "
        "named keep their defaults: resnet_9 by all methods, unet_256 by the first, basic, batch=1, size=256, and the "
        "modes that suit this machine",
    )
    parser.add_argument("--all", action="store_true", help="every combination, batches 1 and 16: hours on a CPU")
    parser.add_argument("--minutes", type=float, default=5, help="time limit; rounds are left out first, then cases")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds; methods and modes take turns in each")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on standard output")
    args = parser.parse_args(argv)
    if args.rounds < 1 or not args.minutes > 0:
        parser.error(f"--rounds {args.rounds} --minutes {args.minutes:g}: give numbers above 0")
    try:
        plan = make_plan(args.only, everything=args.all, device=resolve_device("auto"))
        result = bench(plan, rounds=args.rounds, seconds=60 * args.minutes, print_line=_print_progress)
    except ValueError as error:
        parser.error(str(error))
    console = Console(stderr=args.json)
    for part in render(result):
        console.print(part)
    if args.json:
        print(json.dumps(result))


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
