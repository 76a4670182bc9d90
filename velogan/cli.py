"""The command line. Everything it does is one call into the rooms; standard output's last line is the result."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a wrong field's message should fit the terminal

from velogan import __version__
from velogan.config import Config, Size, differences, nearest, read_config, write_yaml
from velogan.recipes import RECIPES

Json = Annotated[bool, tyro.conf.arg(help="Print the result as one JSON object, the last line on stdout.")]


Preset = Literal["cyclegan", "small", "demo"]


@dataclass(kw_only=True)
class Train:
    """Train a translator between two folders of images, or continue a run: the same command again.

    velogan train --data horse2zebra --out runs/zebras --minutes 60 --size s --image-size 128
    """

    preset: Annotated[
        tyro.conf.Positional[Preset],
        tyro.conf.arg(help="Where the fields below start; cyclegan is the paper."),
    ] = "cyclegan"
    data: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="A folder with trainA and trainB, or two folders, or apples2oranges.", metavar="PATH [PATH]"
        ),
    ] = ()
    out: Annotated[Path | None, tyro.conf.arg(help="The run folder: made, or continued where it holds this run.")] = (
        None
    )
    config: Annotated[Path | None, tyro.conf.arg(help="Start from this YAML file or run folder, not a preset.")] = None
    minutes: Annotated[float | None, tyro.conf.arg(help="Train for so long.")] = None
    images: Annotated[int | None, tyro.conf.arg(help="Train on so many images of each domain.")] = None
    epochs: Annotated[float | None, tyro.conf.arg(help="Train for so many epochs.")] = None
    size: Annotated[Size | None, tyro.conf.arg(help="Width and depth of the networks; l is the paper's.")] = None
    image_size: Annotated[int | None, tyro.conf.arg(help="Side of the images in pixels.")] = None
    seed: Annotated[int | None, tyro.conf.arg(help="Every random choice follows from it.")] = None
    dry_run: Annotated[bool, tyro.conf.arg(help="Print the whole configuration as YAML and stop.")] = False
    json: Json = False
    fields: Annotated[Config, tyro.conf.arg(name="")]


@dataclass(kw_only=True)
class Translate:
    """Translate one image or a folder of images with a trained run or a weights file."""

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|FILE", help="A run folder or a .safetensors file."),
    ]
    input: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="INPUT", help="An image, or a folder.")]
    output: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUTPUT", help="The image or folder to write.")]
    direction: Annotated[Literal["a2b", "b2a"] | None, tyro.conf.arg(help="Which way; a2b unless a file says.")] = None
    weights: Annotated[Literal["ema", "raw"] | None, tyro.conf.arg(help="Averaged (where kept) or raw weights.")] = None
    checkpoint: Annotated[Literal["last", "best"], tyro.conf.arg(help="Which checkpoint of a run.")] = "last"
    overwrite: Annotated[bool, tyro.conf.arg(help="Replace files that exist already.")] = False
    device: Annotated[str, tyro.conf.arg(help="auto, cpu, cuda.")] = "auto"
    json: Json = False


@dataclass(kw_only=True)
class Evaluate:
    """Score a run on held-out pictures; every figure with its floor and ceiling."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="A run folder.")]
    data: Annotated[str | None, tyro.conf.arg(help="Judge on this data instead of the run's own.", metavar="PATH")] = (
        None
    )
    squeezenet: Annotated[
        Path | None,
        tyro.conf.arg(help="SqueezeNet 1.0 weights (.npz), for squeeze-FID, squeeze-KID and class shares."),
    ] = None
    classes: Annotated[
        tuple[str, ...],
        tyro.conf.arg(help="ImageNet classes whose share is measured: zebra=340.", metavar="NAME=NUMBER ..."),
    ] = ()
    checkpoint: Annotated[Literal["last", "best"], tyro.conf.arg(help="Which checkpoint.")] = "last"
    both_weights: Annotated[bool, tyro.conf.arg(help="Score the raw weights beside their moving average.")] = False
    limit: Annotated[int | None, tyro.conf.arg(help="At most so many test pictures of each domain.")] = None
    json: Json = False


@dataclass(kw_only=True)
class Demo:
    """Watch apples become oranges: render, train, translate, score and report, in minutes."""

    minutes: Annotated[float | None, tyro.conf.arg(help="Training time.")] = None
    out: Annotated[Path, tyro.conf.arg(help="The run folder.")] = Path("runs/demo")
    json: Json = False


@dataclass(kw_only=True)
class Bench:
    """Measure the engine's modes against each other and against this machine's roof, in one process."""

    network: Annotated[tuple[str, ...], tyro.conf.arg(help="resnet_9, resnet_6, unet_256, unet_128.")] = ("resnet_9",)
    image_size: Annotated[int, tyro.conf.arg(help="Side of the images in pixels.")] = 256
    batch_size: Annotated[int, tyro.conf.arg(help="Images of each domain in a step.")] = 1
    rounds: Annotated[int, tyro.conf.arg(help="Timed rounds; modes take turns in each.")] = 5
    json: Json = False


@dataclass(kw_only=True)
class Report:
    """Write the page of one run, or a comparison of several."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help="Run folders.")]
    out: Annotated[Path | None, tyro.conf.arg(help="The page; RUN/report.html for one run.")] = None
    json: Json = False


@dataclass(kw_only=True)
class DataRender:
    """Render the built-in data set into a folder, with truth and masks for its test pictures."""

    name: Annotated[tyro.conf.Positional[Literal["apples2oranges"]], tyro.conf.arg(help="The data set.")]
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR", help="The folder to write.")]
    count: Annotated[int, tyro.conf.arg(help="Training pictures in each domain.")] = 400
    test_count: Annotated[int, tyro.conf.arg(help="Test pictures in each domain.")] = 48
    image_size: Annotated[int, tyro.conf.arg(help="Side in pixels.")] = 256
    seed: Annotated[int, tyro.conf.arg(help="Seed of the pictures.")] = 0
    json: Json = False


@dataclass(kw_only=True)
class DataCheck:
    """Look through a data set before training: counts, sizes, unreadable files, duplicates."""

    path: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH [PATH]", help="The data set.")]
    json: Json = False


COMMANDS = {
    ("train",): Train,
    ("translate",): Translate,
    ("evaluate",): Evaluate,
    ("demo",): Demo,
    ("bench",): Bench,
    ("report",): Report,
    ("data", "render"): DataRender,
    ("data", "check"): DataCheck,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns 0 done, 1 a part failed, 2 bad input."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        command = _parse(argv)
        result, code = _HANDLERS[type(command)](command, argv)
    except ValueError as error:
        print(f"velogan: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `velogan ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"velogan: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("velogan: interrupted", file=sys.stderr)
        return 130
    if command.json:
        print(json.dumps(result, default=str))
    return code


def _parse(argv: list[str]) -> Any:
    """The command as its dataclass. A wrong flag ends the process with a message and exit code 2."""
    words = next((words for words in COMMANDS if tuple(argv[: len(words)]) == words), None)
    if words is None:
        if argv == ["--version"]:
            print(f"velogan {__version__}")
        else:
            asked = not argv or argv[-1] in ("--help", "-h") or argv == ["data"]
            print(_overview([] if asked else argv), file=sys.stdout if asked else sys.stderr)
            raise SystemExit(0 if asked else 2)
        raise SystemExit(0)
    kind, rest = COMMANDS[words], argv[len(words) :]
    prog = " ".join(("velogan", *words))
    if kind is not Train:
        return tyro.cli(kind, args=rest, prog=prog)
    base = _base_config(rest)
    start = Train(fields=base)
    return tyro.cli(Train, args=_plain_flags(rest, base), prog=prog, default=start)


def _overview(argv: list[str]) -> str:
    lines = ["usage: velogan COMMAND ...   (velogan COMMAND --help says more)", ""]
    for words, kind in COMMANDS.items():
        first = (kind.__doc__ or "").splitlines()[0]
        lines.append(f"  {' '.join(words):<12} {first}")
    if argv and argv[0] not in ("--help", "-h"):
        names = [" ".join(words) for words in COMMANDS]
        asked = " ".join(argv[:2]) if argv[0] == "data" else argv[0]
        lines.insert(0, f"velogan: there is no command {asked!r}{nearest(asked, names)}")
    return "\n".join(lines)


def _base_config(argv: list[str]) -> Config:
    """What the field flags change: the preset's configuration, or the file named by --config."""
    for i, word in enumerate(argv):
        if word == "--config" and i + 1 < len(argv):
            return read_config(Path(argv[i + 1]))
        if word.startswith("--config="):
            return read_config(Path(word.partition("=")[2]))
    preset = next((word for word in argv[:1] if word in RECIPES), "cyclegan")
    return RECIPES[preset]()


def _plain_flags(argv: list[str], base: Config) -> list[str]:
    """Lets `--data.strict true` be written as well as `--data.strict` and `--data.no-strict`."""
    switches = {
        f"--{section}.{name}".replace("_", "-"): (section, name)
        for section, fields in base.model_dump().items()
        for name, value in fields.items()
        if isinstance(value, bool)
    }
    flags: list[str] = []
    for word in (part for given in argv for part in _split_switch(given, switches)):
        before = flags[-1].replace("_", "-") if flags else ""
        if before in switches and word.lower() in ("true", "false"):
            section, name = switches[before]
            flags[-1] = f"--{section}.{'' if word.lower() == 'true' else 'no-'}{name}".replace("_", "-")
        else:
            flags.append(word)
    return flags


def _split_switch(word: str, switches: Container[str]) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name.replace("_", "-") in switches else [word]


def _configure(asked: Train) -> Config:
    """The configuration that the flags of `train` add up to."""
    lengths = {"minutes": asked.minutes, "images": asked.images, "epochs": asked.epochs}
    given = {unit: amount for unit, amount in lengths.items() if amount is not None}
    if len(given) > 1:
        raise ValueError(f"--{' and --'.join(given)} contradict each other: give one length")
    config = asked.fields.sized(asked.size) if asked.size else asked.fields
    train: dict[str, Any] = {}
    for unit, amount in given.items():
        train["length"] = f"{amount} {unit}"
    if asked.seed is not None:
        train["seed"] = asked.seed
    data: dict[str, Any] = {"path": asked.data} if asked.data else {}
    if asked.image_size is not None:
        data["crop_size"] = asked.image_size
    if not asked.data and asked.config is None and config.data.path == Config().data.path and asked.preset != "demo":
        raise ValueError("--data is missing: name a folder with trainA and trainB, two folders, or apples2oranges")
    return config.change(train=train, data=data)


def _train(asked: Train, argv: list[str]) -> tuple[dict[str, Any], int]:
    config = _configure(asked)
    if asked.dry_run:
        print(write_yaml(config), end="")
        return config.model_dump(mode="json"), 0
    if asked.out is None:
        raise ValueError("--out is missing: name the folder that the run is kept in")
    from velogan.observe.progress import Display
    from velogan.run import train

    preset = str(asked.config) if asked.config else asked.preset
    with Display() as display:
        result = train(
            config,
            asked.out,
            display=display,
            origin={"preset": preset, "command": shlex.join(["velogan", *argv]), "changed": _changed(asked, config)},
        )
        state = "done" if result.finished else "stopped, and the same command continues"
        display.say(f"{state}: {result.images_seen:,} images seen; page: {asked.out / 'report.html'}")
    return dataclasses.asdict(result), 0


def _changed(asked: Train, config: Config) -> dict[str, Any]:
    """The preset's values of the fields that differ from it."""
    return {name: preset for name, (_, preset) in differences(config, RECIPES[asked.preset]()).items()}


def _translate(asked: Translate, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.deploy.model import load_translator
    from velogan.deploy.translate import translate
    from velogan.engine.resolve import resolve_device
    from velogan.observe.progress import Display

    model = load_translator(
        asked.model,
        direction=asked.direction,
        weights=asked.weights,
        checkpoint=asked.checkpoint,
        device=resolve_device(asked.device),
    )
    with Display() as display:
        done = translate(
            model, asked.input, asked.output, overwrite=asked.overwrite, progress=display.task("translating")
        )
        for name, reason in done.failed:
            display.say(f"{name}: {reason}")
        display.say(f"{done.translated} translated, {done.skipped} there already, {len(done.failed)} failed")
    failed = [{"name": name, "reason": reason} for name, reason in done.failed]
    result = {"translated": done.translated, "skipped": done.skipped, "failed": failed}
    return result, 1 if done.failed else 0


def _evaluate(asked: Evaluate, argv: list[str]) -> tuple[dict[str, Any], int]:
    from rich.console import Console

    from velogan.evaluate import evaluate, render_table
    from velogan.observe.progress import Display
    from velogan.report import write_report

    classes = dict(_class(text) for text in asked.classes)
    with Display() as display:
        result = evaluate(
            asked.run,
            data=asked.data,
            squeezenet=asked.squeezenet,
            classes=classes or None,
            checkpoint=asked.checkpoint,
            both_weights=asked.both_weights,
            limit=asked.limit,
            task=display.task,
        )
    Console(stderr=asked.json).print(render_table(result))
    write_report([asked.run])
    return result, 0


def _class(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdigit():
        raise ValueError(f"--classes {text}: write NAME=NUMBER with the ImageNet class, for example zebra=340")
    return name, int(number)


def _demo(asked: Demo, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.demo import demo
    from velogan.observe.progress import Display

    with Display() as display:
        return demo(asked.out, minutes=asked.minutes, display=display, command=shlex.join(["velogan", *argv])), 0


def _bench(asked: Bench, argv: list[str]) -> tuple[dict[str, Any], int]:
    from rich.console import Console

    from velogan.bench import bench, render_table
    from velogan.observe.progress import Display

    with Display() as display:
        result = bench(
            networks=asked.network,
            image_size=asked.image_size,
            batch_size=asked.batch_size,
            rounds=asked.rounds,
            say=display.say,
        )
    Console(stderr=asked.json).print(render_table(result))
    return result, 0


def _report(asked: Report, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.report import write_report

    page = write_report(list(asked.runs), out=asked.out)
    print(page, file=sys.stderr if asked.json else sys.stdout)
    return {"page": str(page)}, 0


def _data_render(asked: DataRender, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.data.rendered import render_folder
    from velogan.observe.progress import Display

    with Display() as display:
        folder = render_folder(
            asked.directory,
            count=asked.count,
            test_count=asked.test_count,
            image_size=asked.image_size,
            seed=asked.seed,
            progress=display.task("rendering"),
        )
        display.say(f"{asked.count} + {asked.test_count} pictures in each domain: {folder}")
    return {"directory": str(folder), "train": asked.count, "test": asked.test_count}, 0


def _data_check(asked: DataCheck, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.data.check import check, render_text
    from velogan.observe.progress import Display

    with Display() as display:
        found = check(asked.path, progress=display.task("checking"))
    print(render_text(found), file=sys.stderr if asked.json else sys.stdout)
    return found, 0


_HANDLERS: dict[type, Callable[[Any, list[str]], tuple[dict[str, Any], int]]] = {
    Train: _train,
    Translate: _translate,
    Evaluate: _evaluate,
    Demo: _demo,
    Bench: _bench,
    Report: _report,
    DataRender: _data_render,
    DataCheck: _data_check,
}
