"""The items of `benchmarks/gpu.py`, the most important first. One more is a function with a sentence and `@item`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu_item import ROOT, SQUEEZENET, Asked, Found, Training, item, scores_table, table, train_all

CAPTURED = {"mode": "graph", "compile": "off", "kernels": "plain"}
"""The captured step by PyTorch's own layers."""

NATIVE = {"mode": "graph", "compile": "off", "kernels": "native"}
"""The same with our own kernels for norms, in Triton, which `auto` does not choose before they are measured here."""

WAYS: dict[str, Mapping[str, Any]] = {
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
def tests(asked: Asked) -> Found:
    """The tests that need a GPU"""
    folder = ROOT / "tests" / "engine" if asked.tiny else ROOT / "tests"
    marked = [file.parent if file.name == "conftest.py" else file for file in folder.rglob("*.py") if _marks(file)]
    files = sorted(map(str, marked))
    code, printed = asked.call(["-m", "pytest", "-m", "gpu", "-rfE", "-p", "no:cacheprovider", *files], "pytest")
    lines = [line for line in printed.splitlines() if line.strip()] or ["pytest printed nothing: see pytest.log"]
    broken = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Found({"exit_code": code, "result": lines[-1], "broken": broken}, [lines[-1], *broken])


def _marks(file: Path) -> bool:
    return file.name.startswith(("test_", "conftest")) and "mark.gpu" in file.read_text()


@item(minutes=3.5)
def steps(asked: Asked) -> Found:
    """Whole steps of CycleGAN beside the reference's way, by turns, batch 1 and 8"""
    return _bench(asked, {("resnet_9", 1): tuple(WAYS), ("unet_256", 1): tuple(WAYS), ("resnet_9", 8): tuple(WAYS)})


@item(minutes=1.5)
def profile(asked: Asked) -> Found:
    """The reference's way under the profiler, with the shares of "Cycling Faster Through CycleGAN" beside ours"""
    found = _profiled(asked, {"mode": "reference"})
    temporal, kernels, idle, launches = (found[name] or {} for name in ("temporal", "kernels", "idle", "launches"))
    kinds = kernels["by_memory_kind"]
    rows = [
        ("device idle", "most of the time", temporal["idle"]["share_of_window"]),
        ("computes", "most of the rest", temporal["compute"]["share_of_window"]),
        ("only copies or communicates", "little", temporal["non_compute"]["share_of_window"]),
        ("of kernels' time: computation", "93.5 %", kernels["compute"]["share_of_time"]),
        ("of kernels' time: memory", "6.5 %", kernels["memory"]["share_of_time"]),
        *(
            (f"of memory kernels' time: {ours}", theirs, _of_memory(kinds, ours))
            for ours, theirs in (("Memcpy DtoD", "69 %"), ("Memset", "18.2 %"), ("Memcpy HtoD", "12.8 %"))
        ),
        ("of idle time: waits for the host", "the vast majority", idle.get("host_wait", {}).get("share_of_time")),
        ("kernels that start more than 100 us late", "–", launches.get("delayed", {}).get("share_of_count")),
        ("launches of more than 50 us", "–", launches.get("slow", {}).get("share_of_count")),
        ("kernels shorter than their launch", "–", launches.get("short", {}).get("share_of_count")),
    ]
    return Found(
        found, table(("reference's way, batch 1", "their text", "here"), [(*row[:2], _percent(row[2])) for row in rows])
    )


@item(minutes=1.5)
def kernels(asked: Asked) -> Found:
    """The kernels of the captured step by PyTorch's own layers"""
    return _kernels(asked, CAPTURED)


@item(minutes=1.5)
def native(asked: Asked) -> Found:
    """The kernels of the captured step with our own for norms, in Triton"""
    return _kernels(asked, NATIVE)


def _kernels(asked: Asked, engine: Mapping[str, Any]) -> Found:
    found = _profiled(asked, engine)
    rows = [
        (
            one["name"][:60].replace("|", "/"),
            one["group"],
            f"{one['count'] / found['steps']:.0f}",
            f"{one['microseconds'] / found['steps'] / 1000:.2f}",
            _percent(one["share_of_time"]),
        )
        for one in found["kernels"]["top"]
    ]
    whole = (
        f"{found['step_ms']:.2f} ms a step, {found['kernels']['of']['count'] / found['steps']:.0f} kernels and copies"
    )
    return Found(found, [whole, "", *table(("kernel", "group", "a step", "ms a step", "share"), rows)])


@item(minutes=2.5)
def table_1(asked: Asked) -> Found:
    """Table 1 of "Cycling Faster Through CycleGAN" at batch 16 and 1: plain, and each cycle on its own stream"""
    from benchmarks.bench.cases import Case
    from benchmarks.studies.table_1 import TABLE_1, measured

    side, batches = (32, (1,)) if asked.tiny else (256, (16, 1))
    networks = ("resnet_9",) if asked.tiny else tuple(TABLE_1)
    cases = tuple(Case(network, "basic", side, batch) for batch in batches for network in networks)
    rows = measured(1 if asked.tiny else 5, cases)
    columns = {
        "theirs (A100, batch 16)": "paper_baseline_ms",
        "their streams": "paper_streams_ms",
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
    return Found(rows, table(("generators' forward pass, ms", "batch", *columns), lines))


@item(minutes=3)
def overlap(asked: Asked) -> Found:
    """The cycles on two streams at batch 1 and 16: how long both run at once; each profile.html draws it"""
    streams = {"mode": "streams", "kernels": "plain", "compile": "off"}
    batches = {"batch 1": 1} if asked.tiny else {"batch 1": 1, "batch 16": 16}
    figures, rows = {}, []
    for name, batch in batches.items():
        found = figures[name] = _profiled(asked, streams, batch=batch, out=f"streams-{batch}")
        both = (found["streams"] or {}).get("overlap", {}).get("share_of_busy")
        idle = found["temporal"]["idle"]["share_of_window"]
        rows.append((name, f"{found['step_ms']:.1f}", _percent(both), _percent(idle)))
    return Found(figures, table(("", "ms/step", "two streams at once, of busy time", "idle"), rows))


@item(minutes=2)
def epochs(asked: Asked) -> Found:
    """An epoch of apples and oranges at 256x256: cyclegan, without identity, onepair with a simple decoder"""
    data: dict[str, Any] = {"path": (asked.set("apple2orange"),), **APPLES}
    from benchmarks.epochs import measure_epochs
    from velogan.observe.progress import Display
    from velogan.recipes import RECIPES

    cut: dict[str, Any] = {}
    if asked.tiny:
        data |= {"load_size": 36, "crop_size": 32, "render_count": 10, "render_test": 2}
        cut = {"generator": {"channels": 4, "blocks": 1}, "discriminator": {"channels": 4}}
    engine: dict[str, Any] = {"engine": {"compile": "off"}}
    full = RECIPES["cyclegan"]().change(data=data, **cut).change(**engine)
    pair = RECIPES["onepair"]().change(data=data, **cut).change(generator={"decoder": "simple"}, **engine)
    configs = {"cyclegan": full, "cyclegan, no identity": full.change(method={"identity": 0.0}), "onepair": pair}
    with Display() as display:
        found = measure_epochs(configs, fraction=1.0 if asked.tiny else 0.25, display=display)
    lines = [
        (row["method"], f"{60 * row['minutes']['1']:.1f}", f"{row['minutes']['15']:.2f}", f"{row['speed_up']:.2f}x")
        for row in found["rows"]
    ]
    theirs = [
        ("their Cycle-GAN", f"{60 * 66.27:.0f}", "994.09", "1.00x"),
        ("their proposal", f"{60 * 32.92:.0f}", "493.80", "2.01x"),
    ]
    head = (f"epoch of {found['images_of_epoch']} images", "s", "15 epochs, min", "speed-up")
    return Found(found, table(head, [*theirs, *lines]))


@item(minutes=1.5)
def fast(asked: Asked) -> Found:
    """Steps of the preset `fast` at 128x128 and 256x256, images a second"""
    from benchmarks.bench.candidate import BenchCandidate
    from benchmarks.bench.measure import warm_up
    from velogan.recipes import RECIPES

    rows = []
    for side in (32,) if asked.tiny else (128, 256):
        config = RECIPES["fast"]().change(data={"crop_size": side})
        if asked.tiny:
            config = config.change(discriminator={"network": "basic", "channels": 4}, generator={"channels": 4})
        engine = {"mode": "eager"} if asked.tiny else NATIVE
        one = BenchCandidate(f"fast at {side}", config, engine=engine, print_line=print)
        warm_up(one.device)
        one.warm_up()
        seconds = statistics.median(one.timed(one.run) for _ in range(1 if asked.tiny else 4))
        rows.append(
            (
                f"{side}x{side}",
                config.images_per_update,
                f"{1000 * seconds:.2f}",
                f"{config.images_per_update / seconds:.0f}",
            )
        )
    return Found(rows, table(("`fast`", "batch", "ms/step", "images/s"), rows))


@item(minutes=5, least=4, timed=False)
def fifteen(asked: Asked) -> Found:
    """Fifteen epochs of real apples and oranges at 256x256 by each method, with scores and pictures side by side"""
    common = ("--epochs", "15", "--image-size", "256", "--engine.compile", "off")
    trainings = [
        Training("cyclegan", "apple2orange", ("cyclegan", *common)),
        Training("cyclegan-no-identity", "apple2orange", ("cyclegan", *common, *UNNAMED)),
        Training("onepair-simple", "apple2orange", ("onepair", *common, *SIMPLE)),
    ]
    rows = train_all(asked, trainings[-1:] if asked.tiny else trainings)
    picture = _side_by_side(asked, rows)
    return Found({"rows": rows, "picture": picture}, [*scores_table(rows), "", f"Pictures: {picture}"])


@item(minutes=2)
def curves(asked: Asked) -> Found:
    """Loss curves of the modes from one seed, one over the other"""
    from benchmarks.curves import curve
    from benchmarks.overlay import draw

    modes = ("reference", "eager") if asked.tiny else ("reference", "eager", "graph", "streams")
    found = [curve(mode, steps=20 if asked.tiny else 400) for mode in modes]
    (asked.out / "curves.json").write_text(json.dumps(found) + "\n")
    (asked.out / "curves.svg").write_text(draw(found))
    return Found(
        found,
        table(
            ("mode", "first ten steps", "last ten"),
            [(one["mode"], f"{one['loss'][0]:.3f}", f"{one['loss'][-1]:.3f}") for one in found],
        ),
    )


@item(minutes=5)
def compiled(asked: Asked) -> Found:
    """The step compiled and captured, beside the captured one: what torch.compile adds"""
    return _bench(asked, {("resnet_9", 1): ("reference", "captured", "compiled, captured")})


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
"""Words of a plan file in place of its own where sizes are tiny."""


@item(minutes=60, least=12, timed=False)
def sets(asked: Asked) -> Found:
    """All sets at 256x256 by each recipe for the same minutes: the table and the page of benchmarks/sets.py"""
    within = ("--within", f"{asked.left / 60:.1f}")
    return _by_sets(asked, "sets-gpu.yaml", *within, tiny={**TINY_SETS, "presets": ["cyclegan"], "size": "xs"})


@item(minutes=90, least=9, timed=False)
def searches(asked: Asked) -> Found:
    """CycleGANAS' comparisons at 128x128 on horses, facades and apples; `--only searches` goes on with what OUT has"""
    of = ("--last", "--only", "horse2zebra", "facades", "apple2orange")
    found = _by_sets(asked, STUDY, *of, module="benchmarks.studies.searches")
    from benchmarks.scatter import draw, panels

    (asked.out / "scatter.svg").write_text(draw(panels(found.figures)), encoding="utf-8")
    return found


@item(minutes=60, least=9, timed=False)
def optimizers(asked: Asked) -> Found:
    """One optimizer, several, and each its rate on unlike domains; `--only optimizers` goes on with what OUT has"""
    return _by_sets(asked, "optimizers.yaml", "--last", "--only", "cityscapes", "horse2zebra", "facades")


def _by_sets(
    asked: Asked, name: str, *words: str, tiny: Mapping[str, Any] = TINY_SETS, module: str = "benchmarks.sets"
) -> Found:
    """What benchmarks/sets.py makes of the plan, on all sets or as `words` say; `tiny` is in place of its words."""
    plan = PLANS / name
    if asked.tiny:
        tree = yaml.safe_load(plan.read_text(encoding="utf-8")) | dict(tiny)
        tree.pop("minutes", None)
        for search in tree.get("searches", {}).values():
            search["train.length"] = "2 images"
        plan, words = asked.out / "plan.yaml", ("--limit", "4", "--last")
        plan.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    elif asked.data is None:
        raise ValueError("it needs sets: give a folder that has them as --data")
    else:
        words += ("--sets", str(asked.data), "--parallel", str(asked.at_once))
        words += ("--squeezenet", str(weights)) if (weights := asked.data / SQUEEZENET).is_file() else ()
    from benchmarks.sets import markdown, tabled

    code, _ = asked.call(["-m", module, str(plan), "--out", str(asked.out), *words], "sets")
    if not (asked.out / "sets.json").is_file():
        raise ValueError(f"{module} ended with exit code {code} before all was trained: see sets.log")
    runs = json.loads((asked.out / "sets.json").read_text())
    failed = [f"failed: {one['set']}, {one['recipe']}: {one['reason']}" for one in runs if one["reason"]]
    shared = [] if asked.tiny else [f"{asked.at_once} trainings shared the GPU at a time."]
    return Found(runs, [*shared, *markdown(tabled(runs)), *failed])


_PLAIN = ("--generator.output", "image")
_JUDGED = ("--method.gan", "hinge", "--method.augment", "shift", "cutout")

CANDIDATES: dict[str, tuple[str, ...]] = {
    "fast": ("fast", "--size", "s"),
    "image": ("fast", "--size", "s", *_PLAIN, "--method.edges", "0", "--method.source-as-fake-fraction", "0"),
    "patches": ("fast", "--size", "s", *_PLAIN, "--method", "contrast", "--method.direction", "both", *_JUDGED),
    "onepair-plus": ("onepair-plus", "--size", "s", "--method.direction", "both"),
}
"""What may be recommended, by name: flags of `velogan train`."""


@item(minutes=22, least=7, timed=False)
def recipes(asked: Asked) -> Found:
    """Things, maps and landscapes at 256x256 by each recipe that may be recommended, for the same minutes"""
    common = ("--image-size", "256", "--engine.compile", "off", "--data.workers", "2")
    trainings = [
        Training(f"{recipe}-{name}", name, (*flags, *common), minutes=5)
        for name in ("horse2zebra", "maps", "monet2photo")
        for recipe, flags in CANDIDATES.items()
    ]
    rows = train_all(asked, trainings[1:2] if asked.tiny else trainings)
    return Found(rows, [f"{asked.at_once} trainings shared the GPU at a time.", "", *scores_table(rows)])


@item(minutes=30, least=6, timed=False)
def seeds(asked: Asked) -> Found:
    """Five seeds of horses and maps with the recommended recipe: does one end far below the others?"""
    common = (*CANDIDATES["fast"], "--image-size", "256", "--engine.compile", "off", "--data.workers", "2")
    trainings = [
        Training(f"{name}-{seed}", name, common, seed=seed, minutes=10)
        for name in ("horse2zebra", "maps")
        for seed in range(5)
    ]
    rows = train_all(asked, trainings[:1] if asked.tiny else trainings)
    return Found(rows, [f"{asked.at_once} trainings shared the GPU at a time.", "", *scores_table(rows)])


@item(minutes=30, least=6, timed=False)
def hour(asked: Asked) -> Found:
    """An hour of horses and of landscapes with the recommended recipe; `--only hour` goes on with what OUT has"""
    flags = (*CANDIDATES["fast"], "--image-size", "256", "--engine.compile", "off", "--minutes", "60")
    trainings = [Training(name, name, flags) for name in ("horse2zebra", "monet2photo")]
    rows = train_all(asked, trainings[:1] if asked.tiny else trainings)
    return Found(rows, scores_table(rows))


def _bench(asked: Asked, cases: Mapping[tuple[str, int], tuple[str, ...]]) -> Found:
    import torch

    from benchmarks.bench.cases import Case
    from benchmarks.bench.measure import bench

    ways = {**WAYS, "compiled, captured": {"mode": "graph", "compile": "on"}}
    if not torch.cuda.is_available():
        ways = {"reference": {"mode": "reference"}, "eager": {"mode": "eager"}}
    side = 32 if asked.tiny else 256
    plan = {
        Case("resnet_6" if asked.tiny else network, "basic", side, batch): {
            name: ways[name] for name in named if name in ways
        }
        for (network, batch), named in list(cases.items())[: 1 if asked.tiny else None]
    }
    found = bench(plan, rounds=1 if asked.tiny else 4, seconds=asked.left - 20, print_line=print)
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
        for row in found["rows"]
    ]
    head = ("case", "mode", "ms/step", "ratio", "images/s", "TFLOP/s", "roofline", "MB", "idle", "first s")
    left_out = [
        f"left out: {one['mode']} ({one['network']}, batch {one['batch_size']}): {one['reason']}"
        for one in found["left_out"]
    ]
    return Found(found, [*table(head, lines), *left_out])


def _profiled(asked: Asked, engine: Mapping[str, Any], *, batch: int = 1, out: str = "") -> dict[str, Any]:
    import torch

    from velogan.config import Config
    from velogan.measure.profile import profile as measured
    from velogan.observe.progress import Display

    data = {"render_count": max(8, batch), "render_test": 1, "batch_size": batch}
    config = Config().change(data=data, engine=dict(engine))
    if asked.tiny:
        config = config.change(
            data={"crop_size": 32}, generator={"channels": 4, "blocks": 1}, discriminator={"channels": 4}
        )
    if not torch.cuda.is_available():
        config = config.change(engine={"mode": "eager"})
    with Display() as display:
        return measured(config, steps=2 if asked.tiny else 8, out=asked.out / out, display=display)


def _side_by_side(asked: Asked, rows: list[dict[str, Any]]) -> str | None:
    """One picture: a line for each of six test pictures, its translations by each run beside it; its path."""
    from PIL import Image

    from velogan.api import load

    source = Path(asked.set("apple2orange")) / "testA"
    runs = [row["run"] for row in rows if "scores" in row]
    if not runs or not source.is_dir():
        return None
    side = 256
    inputs = [Image.open(file).convert("RGB").resize((side, side)) for file in sorted(source.iterdir())[:6]]
    columns = [inputs, *([load(run).translate(one) for one in inputs] for run in runs)]
    sheet = Image.new("RGB", (side * len(columns), side * len(inputs)))
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            sheet.paste(picture, (x * side, y * side))
    sheet.save(asked.out / "pictures.jpg", quality=88)
    return str(asked.out / "pictures.jpg")


def _of_memory(kinds: Mapping[str, Any], name: str) -> float | None:
    whole = sum(kind["microseconds"] for kind in kinds.values())
    return sum(kind["microseconds"] for key, kind in kinds.items() if key.startswith(name)) / whole if whole else None


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
