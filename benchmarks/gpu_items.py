"""The items of `benchmarks/gpu.py`, the most important first: functions with `@item` and a one-line docstring."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu_item import (
    ROOT,
    SQUEEZENET,
    Context,
    Result,
    Training,
    item,
    scores_table,
    table,
    train_all,
)

CAPTURED = {"mode": "graph", "compile": "off", "kernels": "plain"}
"""The captured step by PyTorch's own layers."""

NATIVE = {"mode": "graph", "compile": "off", "kernels": "native"}
"""The same with our Triton kernels for norms, which `auto` does not choose before they are measured here."""

MODES: dict[str, Mapping[str, Any]] = {
    "reference": {"mode": "reference"},
    "eager": {"mode": "eager"},
    "captured": CAPTURED,
    "native, captured": NATIVE,
}
APPLES = {"load_size": 286, "crop_size": 256, "validation": 0}
UNNAMED = ("--method.identity", "0")
"""The text does not name the identity passes of the reference implementation."""
SIMPLE = ("--generator.decoder", "simple")
"""The text's less complex decoder."""


@item(minutes=3)
def tests(context: Context) -> Result:
    """The tests that need a GPU"""
    folder = ROOT / "tests" / "engine" if context.tiny else ROOT / "tests"
    marked = [
        file.parent if file.name == "conftest.py" else file for file in folder.rglob("*.py") if _has_gpu_tests(file)
    ]
    files = sorted(map(str, marked))
    code, printed = context.call(["-m", "pytest", "-m", "gpu", "-rfE", "-p", "no:cacheprovider", *files], "pytest")
    lines = [line for line in printed.splitlines() if line.strip()] or ["pytest printed nothing: see pytest.log"]
    broken = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Result({"exit_code": code, "result": lines[-1], "broken": broken}, [lines[-1], *broken])


def _has_gpu_tests(file: Path) -> bool:
    return file.name.startswith(("test_", "conftest")) and "mark.gpu" in file.read_text()


@item(minutes=3.5)
def steps(context: Context) -> Result:
    """Steps of CycleGAN in all modes, alternating, batch 1 and 8"""
    return _bench(
        context, {("resnet_9", 1): tuple(MODES), ("unet_256", 1): tuple(MODES), ("resnet_9", 8): tuple(MODES)}
    )


@item(minutes=1.5)
def profile(context: Context) -> Result:
    """The mode `reference` under the profiler, with the shares of "Cycling Faster Through CycleGAN" beside ours"""
    result = _profile(context, {"mode": "reference"})
    temporal, kernels, idle, launches = (result[name] or {} for name in ("temporal", "kernels", "idle", "launches"))
    kinds = kernels["by_memory_kind"]
    rows = [
        ("device idle", "most of the time", temporal["idle"]["share_of_window"]),
        ("computes", "most of the rest", temporal["compute"]["share_of_window"]),
        ("only copies or communicates", "little", temporal["non_compute"]["share_of_window"]),
        ("of kernels' time: computation", "93.5 %", kernels["compute"]["share_of_time"]),
        ("of kernels' time: memory", "6.5 %", kernels["memory"]["share_of_time"]),
        *(
            (f"of memory kernels' time: {kind}", share, _memory_share(kinds, kind))
            for kind, share in (("Memcpy DtoD", "69 %"), ("Memset", "18.2 %"), ("Memcpy HtoD", "12.8 %"))
        ),
        ("of idle time: waits for the host", "the vast majority", idle.get("host_wait", {}).get("share_of_time")),
        ("kernels that start more than 100 us late", "–", launches.get("delayed", {}).get("share_of_count")),
        ("launches of more than 50 us", "–", launches.get("slow", {}).get("share_of_count")),
        ("kernels shorter than their launch", "–", launches.get("short", {}).get("share_of_count")),
    ]
    return Result(
        result, table(("mode reference, batch 1", "the text", "here"), [(*row[:2], _percent(row[2])) for row in rows])
    )


@item(minutes=1.5)
def kernels(context: Context) -> Result:
    """The kernels of the captured step by PyTorch's own layers"""
    return _kernels(context, CAPTURED)


@item(minutes=1.5)
def native(context: Context) -> Result:
    """The kernels of the captured step with our own for norms, in Triton"""
    return _kernels(context, NATIVE)


def _kernels(context: Context, engine: Mapping[str, Any]) -> Result:
    result = _profile(context, engine)
    rows = [
        (
            kernel["name"][:60].replace("|", "/"),
            kernel["group"],
            f"{kernel['count'] / result['steps']:.0f}",
            f"{kernel['microseconds'] / result['steps'] / 1000:.2f}",
            _percent(kernel["share_of_time"]),
        )
        for kernel in result["kernels"]["top"]
    ]
    launches = result["kernels"]["of"]["count"] / result["steps"]
    summary = f"{result['step_ms']:.2f} ms a step, {launches:.0f} kernels and copies"
    return Result(result, [summary, "", *table(("kernel", "group", "a step", "ms a step", "share"), rows)])


@item(minutes=2.5)
def table_1(context: Context) -> Result:
    """Table 1 of "Cycling Faster Through CycleGAN" at batch 16 and 1: one stream, and each cycle on its own stream"""
    from benchmarks.bench.cases import Case
    from benchmarks.studies.table_1 import TABLE_1, measure

    side, batches = (32, (1,)) if context.tiny else (256, (16, 1))
    networks = ("resnet_9",) if context.tiny else tuple(TABLE_1)
    cases = tuple(Case(network, "basic", side, batch) for batch in batches for network in networks)
    rows = measure(1 if context.tiny else 5, cases)
    columns = {
        "paper (A100, batch 16)": "paper_baseline_ms",
        "paper, streams": "paper_streams_ms",
        "reference": "reference_ms",
        "fast": "fast_ms",
        "streams": "streams_ms",
    }
    lines = [
        [
            row["network"],
            row["batch_size"],
            *("–" if row[key] is None else f"{row[key]:.2f}" for key in columns.values()),
        ]
        for row in rows
    ]
    return Result(rows, table(("generators' forward pass, ms", "batch", *columns), lines))


@item(minutes=3)
def overlap(context: Context) -> Result:
    """The cycles on two streams at batch 1 and 16: how long both run at once; each profile.html draws it"""
    streams = {"mode": "streams", "kernels": "plain", "compile": "off"}
    batches = {"batch 1": 1} if context.tiny else {"batch 1": 1, "batch 16": 16}
    metrics, rows = {}, []
    for name, batch in batches.items():
        result = metrics[name] = _profile(context, streams, batch=batch, out=f"streams-{batch}")
        both = (result["streams"] or {}).get("overlap", {}).get("share_of_busy")
        idle = result["temporal"]["idle"]["share_of_window"]
        rows.append((name, f"{result['step_ms']:.1f}", _percent(both), _percent(idle)))
    return Result(metrics, table(("", "ms/step", "two streams at once, of busy time", "idle"), rows))


@item(minutes=2)
def epochs(context: Context) -> Result:
    """An epoch of apples and oranges at 256x256: cyclegan, without identity, onepair with a simple decoder"""
    data: dict[str, Any] = {"path": (context.set("apple2orange"),), **APPLES}
    from benchmarks.epochs import measure_epochs
    from velogan.observe.progress import Display
    from velogan.recipes import RECIPES

    cut: dict[str, Any] = {}
    if context.tiny:
        data |= {"load_size": 36, "crop_size": 32, "render_count": 10, "render_test": 2}
        cut = {"generator": {"channels": 4, "blocks": 1}, "discriminator": {"channels": 4}}
    engine: dict[str, Any] = {"engine": {"compile": "off"}}
    full = RECIPES["cyclegan"]().change(data=data, **cut).change(**engine)
    pair = RECIPES["onepair"]().change(data=data, **cut).change(generator={"decoder": "simple"}, **engine)
    configs = {"cyclegan": full, "cyclegan, no identity": full.change(method={"identity": 0.0}), "onepair": pair}
    with Display() as display:
        result = measure_epochs(configs, fraction=1.0 if context.tiny else 0.25, display=display)
    lines = [
        (row["method"], f"{60 * row['minutes']['1']:.1f}", f"{row['minutes']['15']:.2f}", f"{row['speed_up']:.2f}x")
        for row in result["rows"]
    ]
    paper = [
        ("Cycle-GAN of the text", f"{60 * 66.27:.0f}", "994.09", "1.00x"),
        ("proposal of the text", f"{60 * 32.92:.0f}", "493.80", "2.01x"),
    ]
    head = (f"epoch of {result['images_of_epoch']} images", "s", "15 epochs, min", "speed-up")
    return Result(result, table(head, [*paper, *lines]))


@item(minutes=1.5)
def fast(context: Context) -> Result:
    """Steps of the preset `fast` at 128x128 and 256x256, images per second"""
    from benchmarks.bench.candidate import BenchCandidate
    from benchmarks.bench.measure import warm_up
    from velogan.recipes import RECIPES

    rows = []
    for side in (32,) if context.tiny else (128, 256):
        config = RECIPES["fast"]().change(data={"crop_size": side})
        if context.tiny:
            config = config.change(discriminator={"network": "basic", "channels": 4}, generator={"channels": 4})
        engine = {"mode": "eager"} if context.tiny else NATIVE
        candidate = BenchCandidate(f"fast at {side}", config, engine=engine, print_line=print)
        warm_up(candidate.device)
        candidate.warm_up()
        seconds = statistics.median(candidate.timed(candidate.run) for _ in range(1 if context.tiny else 4))
        rows.append(
            (
                f"{side}x{side}",
                config.images_per_update,
                f"{1000 * seconds:.2f}",
                f"{config.images_per_update / seconds:.0f}",
            )
        )
    return Result(rows, table(("`fast`", "batch", "ms/step", "images/s"), rows))


@item(minutes=5, min_minutes=4, is_timed=False)
def fifteen(context: Context) -> Result:
    """Fifteen epochs of real apples and oranges at 256x256 by each method, with scores and pictures side by side"""
    common = ("--epochs", "15", "--image-size", "256", "--engine.compile", "off")
    trainings = [
        Training("cyclegan", "apple2orange", ("cyclegan", *common)),
        Training("cyclegan-no-identity", "apple2orange", ("cyclegan", *common, *UNNAMED)),
        Training("onepair-simple", "apple2orange", ("onepair", *common, *SIMPLE)),
    ]
    rows = train_all(context, trainings[-1:] if context.tiny else trainings)
    picture = _side_by_side(context, rows)
    return Result({"rows": rows, "picture": picture}, [*scores_table(rows), "", f"Pictures: {picture}"])


@item(minutes=2)
def curves(context: Context) -> Result:
    """Loss curves of the modes from one seed, one over the other"""
    from benchmarks.curves import curve
    from benchmarks.overlay import draw

    modes = ("reference", "eager") if context.tiny else ("reference", "eager", "graph", "streams")
    result = [curve(mode, steps=20 if context.tiny else 400) for mode in modes]
    (context.out / "curves.json").write_text(json.dumps(result) + "\n")
    (context.out / "curves.svg").write_text(draw(result))
    return Result(
        result,
        table(
            ("mode", "first ten steps", "last ten"),
            [(row["mode"], f"{row['loss'][0]:.3f}", f"{row['loss'][-1]:.3f}") for row in result],
        ),
    )


@item(minutes=5)
def compiled(context: Context) -> Result:
    """The step compiled and captured, beside the captured one: what torch.compile adds"""
    return _bench(context, {("resnet_9", 1): ("reference", "captured", "compiled, captured")})


PLANS = ROOT / "benchmarks" / "plans"
STUDY = "../studies/searches/paper.yaml"
TINY_SETS = {
    "images": 8,
    "seeds": 1,
    "image_size": 32,
    "config": {
        "data": {"render_count": 20, "render_test": 4},
        "generator": {"blocks": 1},
        "discriminator": {"channels": 4},
    },
}
"""Fields that replace those of a plan file if `--tiny` is set."""


@item(minutes=60, min_minutes=12, is_timed=False)
def sets(context: Context) -> Result:
    """All sets at 256x256 by each recipe for the same minutes: the table and the page of benchmarks/sets.py"""
    within = ("--within", f"{context.remaining_s / 60:.1f}")
    return _run_sets(context, "sets-gpu.yaml", *within, tiny={**TINY_SETS, "presets": ["cyclegan"], "size": "xs"})


@item(minutes=90, min_minutes=9, is_timed=False)
def searches(context: Context) -> Result:
    """CycleGANAS' comparisons at 128x128 on horses, facades and apples; `--only searches` resumes OUT"""
    of = ("--last", "--only", "horse2zebra", "facades", "apple2orange")
    result = _run_sets(context, STUDY, *of, module="benchmarks.studies.searches")
    from benchmarks.scatter import draw, make_panels

    (context.out / "scatter.svg").write_text(draw(make_panels(result.metrics)), encoding="utf-8")
    return result


@item(minutes=60, min_minutes=9, is_timed=False)
def optimizers(context: Context) -> Result:
    """One optimizer, several, and a rate for each on unlike domains; `--only optimizers` resumes OUT"""
    return _run_sets(context, "optimizers.yaml", "--last", "--only", "cityscapes", "horse2zebra", "facades")


def _run_sets(
    context: Context, name: str, *words: str, tiny: Mapping[str, Any] = TINY_SETS, module: str = "benchmarks.sets"
) -> Result:
    """Run benchmarks/sets.py with a plan and the arguments `words`; `tiny` replaces fields of it."""
    plan = PLANS / name
    if context.tiny:
        tree = yaml.safe_load(plan.read_text(encoding="utf-8")) | dict(tiny)
        tree.pop("minutes", None)
        for search in tree.get("searches", {}).values():
            search["train.length"] = "2 images"
        plan, words = context.out / "plan.yaml", ("--limit", "4", "--last")
        plan.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    elif context.data is None:
        raise ValueError("it needs sets: give a folder that has them as --data")
    else:
        words += ("--sets", str(context.data), "--parallel", str(context.parallel))
        words += ("--squeezenet", str(weights)) if (weights := context.data / SQUEEZENET).is_file() else ()
    from benchmarks.sets import markdown, tabled

    code, _ = context.call(["-m", module, str(plan), "--out", str(context.out), *words], "sets")
    if not (context.out / "sets.json").is_file():
        raise ValueError(f"{module} ended with exit code {code} before all was trained: see sets.log")
    runs = json.loads((context.out / "sets.json").read_text())
    failed = [f"failed: {run['set']}, {run['recipe']}: {run['reason']}" for run in runs if run["reason"]]
    shared = [] if context.tiny else [f"{context.parallel} trainings shared the GPU at a time."]
    return Result(runs, [*shared, *markdown(tabled(runs)), *failed])


_PLAIN = ("--generator.output", "image")
_HINGE = ("--method.gan", "hinge", "--method.augment", "shift", "cutout")

CANDIDATES: dict[str, tuple[str, ...]] = {
    "fast": ("fast", "--size", "s"),
    "image": ("fast", "--size", "s", *_PLAIN, "--method.edges", "0", "--method.source-as-fake-fraction", "0"),
    "patches": ("fast", "--size", "s", *_PLAIN, "--method", "contrast", "--method.direction", "both", *_HINGE),
    "onepair-plus": ("onepair-plus", "--size", "s", "--method.direction", "both"),
}
"""Candidates for the recommended recipe, by name: flags of `velogan train`."""


@item(minutes=22, min_minutes=7, is_timed=False)
def recipes(context: Context) -> Result:
    """Objects, maps and landscapes at 256x256 by each candidate of the recommended recipe, for the same minutes"""
    common = ("--image-size", "256", "--engine.compile", "off", "--data.workers", "2")
    trainings = [
        Training(f"{recipe}-{name}", name, (*flags, *common), minutes=5)
        for name in ("horse2zebra", "maps", "monet2photo")
        for recipe, flags in CANDIDATES.items()
    ]
    rows = train_all(context, trainings[1:2] if context.tiny else trainings)
    return Result(rows, [f"{context.parallel} trainings shared the GPU at a time.", "", *scores_table(rows)])


@item(minutes=30, min_minutes=6, is_timed=False)
def seeds(context: Context) -> Result:
    """Five seeds of horses and maps with the recommended recipe: how much they differ"""
    common = (*CANDIDATES["fast"], "--image-size", "256", "--engine.compile", "off", "--data.workers", "2")
    trainings = [
        Training(f"{name}-{seed}", name, common, seed=seed, minutes=10)
        for name in ("horse2zebra", "maps")
        for seed in range(5)
    ]
    rows = train_all(context, trainings[:1] if context.tiny else trainings)
    return Result(rows, [f"{context.parallel} trainings shared the GPU at a time.", "", *scores_table(rows)])


@item(minutes=30, min_minutes=6, is_timed=False)
def hour(context: Context) -> Result:
    """An hour of horses and of landscapes with the recommended recipe; `--only hour` resumes OUT"""
    flags = (*CANDIDATES["fast"], "--image-size", "256", "--engine.compile", "off", "--minutes", "60")
    trainings = [Training(name, name, flags) for name in ("horse2zebra", "monet2photo")]
    rows = train_all(context, trainings[:1] if context.tiny else trainings)
    return Result(rows, scores_table(rows))


def _bench(context: Context, cases: Mapping[tuple[str, int], tuple[str, ...]]) -> Result:
    import torch

    from benchmarks.bench.cases import Case
    from benchmarks.bench.measure import bench

    modes = {**MODES, "compiled, captured": {"mode": "graph", "compile": "on"}}
    if not torch.cuda.is_available():
        modes = {"reference": {"mode": "reference"}, "eager": {"mode": "eager"}}
    side = 32 if context.tiny else 256
    plan = {
        Case("resnet_6" if context.tiny else network, "basic", side, batch): {
            name: modes[name] for name in names if name in modes
        }
        for (network, batch), names in list(cases.items())[: 1 if context.tiny else None]
    }
    result = bench(plan, rounds=1 if context.tiny else 4, seconds=context.remaining_s - 20, print_line=print)
    lines = [
        (
            f"{row['network']}, batch {row['batch_size']}",
            row["mode"],
            f"{row['step_ms']:.1f}",
            _times(row["ratio_to_reference"]),
            f"{1000 * row['batch_size'] / row['step_ms']:.3g}",
            f"{row['tflops']:.3g}",
            _percent(row["roof_share"]),
            f"{row['peak_memory_mb']:,.0f}",
            _percent(row["host_idle_share"]),
            f"{row['first_step_s']:.1f}",
        )
        for row in result["rows"]
    ]
    head = ("case", "mode", "ms/step", "ratio", "images/s", "TFLOP/s", "roofline", "MB", "idle", "first s")
    left_out = [
        f"left out: {case['mode']} ({case['network']}, batch {case['batch_size']}): {case['reason']}"
        for case in result["left_out"]
    ]
    return Result(result, [*table(head, lines), *left_out])


def _profile(context: Context, engine: Mapping[str, Any], *, batch: int = 1, out: str = "") -> dict[str, Any]:
    import torch

    from velogan.config import Config
    from velogan.measure.profile import profile as run_profile
    from velogan.observe.progress import Display

    data = {"render_count": max(8, batch), "render_test": 1, "batch_size": batch}
    config = Config().change(data=data, engine=dict(engine))
    if context.tiny:
        config = config.change(
            data={"crop_size": 32}, generator={"channels": 4, "blocks": 1}, discriminator={"channels": 4}
        )
    if not torch.cuda.is_available():
        config = config.change(engine={"mode": "eager"})
    with Display() as display:
        return run_profile(config, steps=2 if context.tiny else 8, out=context.out / out, display=display)


def _side_by_side(context: Context, rows: list[dict[str, Any]]) -> str | None:
    """Write a grid of six test pictures (rows) and their translations by each run (columns); return its path."""
    from PIL import Image

    from velogan.api import load

    source = Path(context.set("apple2orange")) / "testA"
    runs = [row["run"] for row in rows if "scores" in row]
    if not runs or not source.is_dir():
        return None
    side = 256
    inputs = [Image.open(file).convert("RGB").resize((side, side)) for file in sorted(source.iterdir())[:6]]
    columns = [inputs, *([load(run).translate(image) for image in inputs] for run in runs)]
    sheet = Image.new("RGB", (side * len(columns), side * len(inputs)))
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            sheet.paste(picture, (x * side, y * side))
    sheet.save(context.out / "pictures.jpg", quality=88)
    return str(context.out / "pictures.jpg")


def _memory_share(kinds: Mapping[str, Any], name: str) -> float | None:
    total = sum(kind["microseconds"] for kind in kinds.values())
    return sum(kind["microseconds"] for key, kind in kinds.items() if key.startswith(name)) / total if total else None


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
