"""The command line. Everything it does is one call into the rooms; standard output's last line is the result."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

os.environ.setdefault("PYDANTIC_ERRORS_INCLUDE_URL", "0")  # a wrong field's message should fit the terminal

from pydantic import ValidationError

from velogan import __version__
from velogan.config import SIZES, Config, differences, explain, nearest, read_config, write_yaml
from velogan.engine.nonfinite import NonFiniteError
from velogan.engine.parallel import RankError, ToldElsewhere, first, local_rank, several
from velogan.flags import (
    Bench,
    DataCheck,
    DataRender,
    Demo,
    Evaluate,
    Export,
    Fields,
    Filling,
    Import,
    Profile,
    Report,
    Search,
    Simulate,
    Sweep,
    Train,
    Translate,
)
from velogan.methods.base import ends
from velogan.observe.progress import printable
from velogan.recipes import DEFAULT, DEMOS, RECIPES, to_search

if TYPE_CHECKING:
    from velogan.cluster.simulate import Cluster
    from velogan.cluster.translate import Total
    from velogan.deploy.maps import Map
    from velogan.deploy.model import Translator
    from velogan.deploy.translate import Summary
    from velogan.methods.base import Spec
    from velogan.networks.generators import GeneratorConfig
    from velogan.networks.sizes import Size
    from velogan.observe.progress import Display
    from velogan.session import Result
    from velogan.sweep.plan import Plan
    from velogan.types import Direction

_MOST = 10**12
"""Of what a simulation is asked about, so that nothing in it overflows."""

COMMANDS = {
    ("train",): Train,
    ("search",): Search,
    ("translate",): Translate,
    ("evaluate",): Evaluate,
    ("import",): Import,
    ("export",): Export,
    ("demo",): Demo,
    ("bench",): Bench,
    ("profile",): Profile,
    ("report",): Report,
    ("sweep",): Sweep,
    ("simulate",): Simulate,
    ("data", "render"): DataRender,
    ("data", "check"): DataCheck,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns 0 done, 1 a part failed, 2 bad input.

    Of several processes that torchrun started the first one speaks, and whichever has something else to tell.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        command = _parse(argv) if local_rank() == 0 else _parse_silently(argv)
        if several() and not isinstance(command, (Train, Search)):
            raise ValueError(
                f"only train and search run in several processes: start velogan {argv[0]} without torchrun"
            )
        result, code = _HANDLERS[type(command)](command, argv)
    except (ToldElsewhere, RankError) as error:
        if isinstance(error, RankError):
            _complain(error)
        return error.code
    except ValueError as error:
        if local_rank() == 0:
            _complain(error)
        return 2
    except BrokenPipeError:  # `velogan ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, NonFiniteError) as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        print("velogan: interrupted", file=sys.stderr)
        return 130
    if command.json and first():
        print(json.dumps(result, default=str))
    return code


def _complain(error: Exception) -> None:
    text = explain(error, source="the flags") if isinstance(error, ValidationError) else str(error)
    lines = map(printable, text.split("\n"))
    print("velogan: " + "\n".join(lines), file=sys.stderr)


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
    if not issubclass(kind, Fields):
        return tyro.cli(kind, args=rest, prog=prog)
    base = _base_config(rest, _preset(rest) if kind is Sweep else next(iter(rest), DEFAULT), search=kind is Search)
    parse = partial(tyro.cli, kind, args=_plain_flags(rest, base), prog=prog, default=kind(fields=base))
    try:
        with redirect_stderr(StringIO()):
            return parse()
    except SystemExit as end:
        if not end.code:  # it was --help
            raise
        if refused := _refused(end):
            raise ValueError(explain(refused, source="the flags", section=_section(refused.title))) from None
    return parse()  # says what is wrong, as wide and coloured as the terminal is


def _refused(error: BaseException | None) -> ValidationError | None:
    """The refusal of a field's value that an error goes back to."""
    while error is not None and not isinstance(error, ValidationError):
        error = error.__context__
    return error


def _section(title: str) -> str:
    """The section whose fields a class of this name has: `train` for TrainConfig."""
    of = {getattr(field.annotation, "__name__", ""): name for name, field in Config.model_fields.items()}
    return of.get(title, "method")


def _parse_silently(argv: list[str]) -> Any:
    """As `_parse`: what is wrong with the flags, another process of this host says."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
        return _parse(argv)


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


def _preset(argv: list[str]) -> str:
    """The first preset among a sweep's words, which may stand behind its flags."""
    behind = zip(["", *argv], argv)
    return next((word for flag, word in behind if word in RECIPES and not flag.startswith("--")), DEFAULT)


def _base_config(argv: list[str], preset: str, *, search: bool = False) -> Config:
    """What the field flags change: the preset's configuration, or the file named by --config."""
    file, method = _value(argv, "--config"), _value(argv, "--method")
    base = read_config(Path(file)) if file is not None else RECIPES.get(preset, RECIPES[DEFAULT])()
    if search:
        size, inner, budget = (_value(argv, flag) for flag in ("--size", "--inner", "--budget"))
        return to_search(base.sized(size) if size in SIZES else base, inner=inner, budget=budget)
    return base if method is None else base.change(method=method)


def _value(argv: list[str], flag: str) -> str | None:
    """What a flag is given, before all flags are parsed."""
    for word, behind in zip(argv, [*argv[1:], None]):
        if word == flag:
            return behind
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _plain_flags(argv: list[str], base: Config) -> list[str]:
    """Lets `--data.strict true` be written as well as `--data.strict` and `--data.no-strict`."""
    switches = {
        f"--{section}.{name}".replace("_", "-"): (section, name)
        for section, fields in base.model_dump().items()
        if isinstance(fields, dict)
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
    train = _length(asked)
    config = _configure_common(asked)
    _check_data(asked)
    config = _of_genotype(asked, config)
    if asked.start is not None:
        train["start"] = str(asked.start)
    if asked.on_nonfinite is not None:
        train["on_nonfinite"] = asked.on_nonfinite
    return config.change(train=train)


def _length(asked: Filling) -> dict[str, Any]:
    """What the flags say of the run's length, as fields of the section train."""
    lengths = {"minutes": asked.minutes, "images": asked.images, "epochs": asked.epochs}
    given = {unit: amount for unit, amount in lengths.items() if amount is not None}
    if len(given) > 1:
        raise ValueError(f"--{' and --'.join(given)} contradict each other: give one length")
    return {"length": " ".join(f"{amount} {unit}" for unit, amount in given.items())} if given else {}


def _check_data(asked: Filling) -> None:
    if not _data_is_named(asked, asked.preset):
        raise ValueError("--data is missing: name a folder with trainA and trainB, two folders, or apples2oranges")


def _of_genotype(asked: Train, config: Config) -> Config:
    """With the networks of --genotype; their sizes are printed."""
    from velogan.networks.genotype import read_genotype

    given = {"--hidden": asked.hidden, "--match-size": asked.match_size}
    named = [f"{flag} {value}" for flag, value in given.items() if value is not None]
    if asked.genotype is None:
        if named:
            raise ValueError(f"{named[0]} is the width of a genotype's networks: add --genotype FILE, or leave it out")
        if asked.sizes_only:
            raise ValueError("--sizes-only takes the sizes of a genotype: add --genotype FILE, or leave it out")
        return config
    if len(named) > 1:
        raise ValueError(f"{' and '.join(named)} contradict each other: give one of the two")
    _check_hidden(asked.hidden)
    found = config.built_from(read_genotype(asked.genotype), hidden=asked.hidden, match=asked.match_size)
    config = config.scaled_to(found) if asked.sizes_only else found
    spec = config.spec
    _sizes({way: spec.generators[way] for way in config.method.directions}, spec)
    return config


def _check_hidden(hidden: int | None) -> None:
    if hidden is not None and not 1 <= hidden <= 4096:
        raise ValueError(f"--hidden {hidden}: give a whole number from 1 to 4096")


def _configure_common(asked: Fields) -> Config:
    config = asked.fields.sized(asked.size) if asked.size else asked.fields
    train = {"seed": asked.seed} if asked.seed is not None else {}
    data: dict[str, Any] = {"path": asked.data} if asked.data else {}
    if asked.image_size is not None:
        data["crop_size"] = asked.image_size
    return config.change(train=train, data=data)


def _data_is_named(asked: Fields, *presets: str) -> bool:
    named = asked.data or asked.config is not None or asked.fields.data.path != Config().data.path
    return bool(named) or all(preset in DEMOS for preset in presets)


def _train(asked: Train, argv: list[str]) -> tuple[dict[str, Any], int]:
    config = _configure(asked)
    if asked.dry_run:
        return _shown(config), 0
    return dataclasses.asdict(_run(asked, config, argv)), 0


def _shown(config: Config) -> dict[str, Any]:
    """Prints what a command would do."""
    if first():
        print(write_yaml(config), end="")
    return config.model_dump(mode="json")


def _run(asked: Filling, config: Config, argv: list[str]) -> Result:
    if asked.out is None:
        raise ValueError("--out is missing: name the folder that the run is kept in")
    from velogan.observe.progress import Display
    from velogan.run import train

    preset = str(asked.config) if asked.config else asked.preset
    with Display(quiet=not first()) as display:
        result = train(
            config,
            asked.out,
            display=display,
            origin={"preset": preset, "command": shlex.join(["velogan", *argv]), "changed": _changed(asked, config)},
        )
        state = "done" if result.finished else "stopped, and the same command continues"
        display.say(f"{state}: {result.images_seen:,} images seen; page: {asked.out / 'report.html'}")
    return result


def _search(asked: Search, argv: list[str]) -> tuple[dict[str, Any], int]:
    if asked.cells is not None and not 2 <= asked.cells <= 100:
        raise ValueError(f"--cells {asked.cells}: give a whole number from 2 to 100")
    if asked.count:
        return _count(asked), 0
    config = _configure_search(asked)
    if asked.dry_run:
        return _shown(config), 0
    result = _run(asked, config, argv)
    return _found(result) if first() else {}, 0


def _count(asked: Search) -> dict[str, Any]:
    from velogan.networks.cells import count

    found = count(space=asked.space) if asked.cells is None else count(blocks=asked.cells - 2, space=asked.space)
    if not asked.json:
        for name, number in found._asdict().items():
            print(f"{name:<13} {number}  ({number:.3g})")
    return found._asdict()


def _configure_search(asked: Search) -> Config:
    """The configuration that the flags of `search` add up to."""
    train = _length(asked)
    _check_hidden(asked.hidden)
    config = _configure_common(dataclasses.replace(asked, size=None))  # which is in the configuration already
    _check_data(asked)
    given: dict[str, dict[str, Any]] = {
        "method": {"scheme": asked.method, "patience": asked.patience},
        "generator": {"channels": asked.hidden, "blocks": None if asked.cells is None else asked.cells - 2},
        "discriminator": {},
    }
    if asked.space != "paper":
        given["generator"]["space"] = asked.space
        given["discriminator"]["space"] = asked.space if config.discriminator.network == "cells" else None
    sections = {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in given.items()
    }
    return config.change(**sections, train=train)


def _found(result: Result) -> dict[str, Any]:
    """What a search has found, and how large that is, which is printed."""
    from velogan.chosen import GENOTYPE
    from velogan.networks.genotype import read_genotype

    file, config = result.run / GENOTYPE, read_config(result.run)
    genotype, spec = read_genotype(file), config.spec
    own = config.generator.encoding
    generators: dict[Direction, GeneratorConfig] = {
        way: spec.generators[way].model_copy(update={"operations": names, "channels": genotype.hidden.get(way, own)})
        for way, names in genotype.generators.items()
    }
    side = genotype.provenance.get("side", config.data.crop_size)
    sizes = _sizes(generators, spec, side=side)
    print(f"found: {file}", file=sys.stderr)
    return {
        "run": result.run,
        "genotype": file,
        "sizes": {
            way: {"hidden": generators[way].channels, "side": side, **dataclasses.asdict(one), "bytes": one.bytes}
            for way, one in sizes.items()
        },
        "images_seen": result.images_seen,
        "seconds": result.seconds,
    }


def _sizes(generators: Mapping[Direction, GeneratorConfig], spec: Spec, *, side: int = 256) -> dict[Direction, Size]:
    """Of generators by direction; a table of them is printed."""
    from velogan.networks.sizes import size, table

    channels = {way: [spec.channels[letter] for letter in ends(way)] for way in generators}
    sizes: dict[Direction, Size] = {
        way: size(one, in_channels=channels[way][0], out_channels=channels[way][1], side=side)
        for way, one in generators.items()
    }
    print(table(list(sizes.values()), list(sizes), side=side), file=sys.stderr)
    return sizes


def _changed(asked: Filling, config: Config) -> dict[str, Any]:
    """The preset's values of the fields that differ from it."""
    return {name: preset for name, (_, preset) in differences(config, RECIPES[asked.preset]()).items()}


def _translate(asked: Translate, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.deploy.translate import translate
    from velogan.engine.memory import peak_memory_mb
    from velogan.observe.progress import Display

    if asked.workers is not None:
        if asked.doubt:
            raise ValueError(f"--doubt is for one process, but --workers is {asked.workers}: leave one of them out")
        return _translate_at_scale(asked, asked.workers)
    for flag, given in (("--column", asked.column), ("--address", asked.address)):
        if given is not None:
            raise ValueError(f"{flag} {given} is for many processes: add --workers N, or leave it out")
    if asked.input.suffix in (".tar", ".parquet") and not asked.input.is_dir():
        raise ValueError(f"input {asked.input} is of many pictures in one file: add --workers N")
    model = _translator(asked)
    maps = _maps(asked, model) if asked.doubt else None
    with Display() as display:
        done = translate(
            model,
            asked.input,
            asked.output,
            overwrite=asked.overwrite,
            format=asked.format,
            tile=asked.tile,
            progress=display.task("translating"),
        )
        example = done.renamed[0] if done.renamed else None
        _tell_translated(display, done, renamed=len(done.renamed), example=example)
        doubts = maps(done, display) if maps else []
    result, code = _translated(done, peak_memory_mb())
    if maps:
        result["doubt"] = [_doubt(one) for one in doubts]
    return result, 1 if any(one.reason for one in doubts) else code


def _maps(asked: Translate, model: Translator) -> Callable[[Summary, Display], list[Map]]:
    """What writes the maps of doubt after the translations. What cannot be is said now, before anything is written."""
    from velogan.deploy.maps import map_jobs, write_maps
    from velogan.evaluation.doubt import doubter_of

    doubter = doubter_of(model)
    jobs = map_jobs(asked.input, asked.output, format=asked.format)

    def write(done: Summary, display: Display) -> list[Map]:
        failed = [name for name, _ in done.failed]
        progress = display.task("maps of doubt")
        made = write_maps(doubter, jobs, overwrite=asked.overwrite, tile=asked.tile, without=failed, progress=progress)
        for one in made:
            if one.reason:
                display.say(f"{one.name}: no map of doubt: {one.reason}")
        return made

    return write


def _doubt(made: Map) -> dict[str, Any]:
    if made.doubt is None:
        return {"name": made.name, "reason": made.reason}
    highest = dataclasses.asdict(made.doubt.highest)
    return {
        "name": made.name,
        "map": str(made.file),
        "mean": round(made.doubt.mean, 5),
        "highest": {**highest, "mean": round(highest["mean"], 5)},
    }


def _translate_at_scale(asked: Translate, workers: int) -> tuple[dict[str, Any], int]:
    from velogan.cluster.translate import Options, translate_at_scale
    from velogan.observe.progress import Display

    device = _translator(dataclasses.replace(asked, exact=True)).device  # what is wrong with it, it says at once
    with Display() as display:
        done = translate_at_scale(
            partial(_translator_of_worker, dataclasses.replace(asked, model=asked.model.absolute())),
            asked.input,
            asked.output,
            workers=workers,
            options=Options(asked.format, asked.tile, asked.overwrite, asked.column),
            gpus=asked.device != "cpu" and (device.type == "cuda" or asked.address is not None),
            address=asked.address,
            progress=display.count("translating"),
        )
        _tell_translated(display, done, renamed=done.renamed, example=done.example)
    result, code = _translated(done, done.peak_memory_mb)
    return {**result, "workers": workers}, code


def _translator(asked: Translate) -> Translator:
    from velogan.data.domains.sources import code_directory
    from velogan.deploy.model import load_translator
    from velogan.engine.resolve import resolve_device
    from velogan.kernels.inference import Accelerator

    device = resolve_device(asked.device)
    return load_translator(
        asked.model,
        direction=asked.direction,
        weights=asked.weights,
        checkpoint=asked.checkpoint,
        device=device,
        accelerate=None if asked.exact else Accelerator(device, code_directory() / "kernels"),
    )


def _translator_of_worker(asked: Translate, gpus: int) -> Translator:
    return _translator(asked if gpus else dataclasses.replace(asked, device="cpu"))


def _tell_translated(display: Display, done: Summary | Total, *, renamed: int, example: tuple[str, str] | None) -> None:
    for name, reason in done.failed:
        display.say(f"{name}: {reason}")
    if example is not None:
        name, suffix = example
        more = f" and {renamed - 1} more" if renamed > 1 else ""
        display.say(f"{name}{more} saved in a format that can hold the result: {suffix}")
    display.say(f"{done.translated} translated, {done.skipped} there already, {len(done.failed)} failed")


def _translated(done: Summary | Total, peak_mb: float) -> tuple[dict[str, Any], int]:
    result = {
        "translated": done.translated,
        "skipped": done.skipped,
        "failed": [{"name": name, "reason": reason} for name, reason in done.failed],
        "tiled": done.tiled,
        "images_per_s": round(done.translated / done.seconds, 3),
        "peak_memory_mb": round(peak_mb, 1),
    }
    return result, 1 if done.failed else 0


def _evaluate(asked: Evaluate, argv: list[str]) -> tuple[dict[str, Any], int]:
    from rich.console import Console

    from velogan.engine.resolve import resolve_device
    from velogan.evaluation.compare import compare
    from velogan.evaluation.evaluate import evaluate
    from velogan.evaluation.features import MISSING_LITE
    from velogan.evaluation.table import duplicates_line, render_table
    from velogan.networks.pretrained import find_lite
    from velogan.observe.progress import Display
    from velogan.report import write_report

    inception = Path(asked.inception) if asked.inception not in (None, "auto") else asked.inception
    classes = dict(_class(text) for text in asked.classes)
    features = asked.features or ("lite0" if find_lite("lite0") else "none")
    common: Any = {"squeezenet": asked.squeezenet, "inception": inception, "classes": classes or None}
    common |= {"features": features, "device": resolve_device(asked.device)}
    if asked.against is not None and (asked.data or asked.checkpoint is not None or asked.exact):
        raise ValueError("--against compares two folders of pictures: leave --data, --checkpoint and --exact out")
    if len(asked.data) > 2:
        raise ValueError(f"--data {' '.join(asked.data)}: name one folder, or two")
    with Display() as display:
        common |= {"limit": asked.limit, "task": display.task}
        if asked.against is not None:
            result = compare(asked.run, asked.against, **common)
        else:
            chosen = {"data": asked.data, "checkpoint": asked.checkpoint, "exact": asked.exact}
            result = evaluate(asked.run, **chosen, **common)
        missing = MISSING_LITE if asked.features is None and features == "none" else None
        for line in filter(None, [duplicates_line(result), missing]):
            display.say(line)
    Console(stderr=asked.json).print(render_table(result))
    if asked.against is None:
        write_report([asked.run])
    return result, 0


def _import(asked: Import, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.imported import import_reference

    result = import_reference(asked.source, asked.run)
    for one in result["networks"]:
        print(f"{one['role']}: {one['network']}, {one['parameters']:,} parameters", file=sys.stderr)
    return result, 0


def _export(asked: Export, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.deploy.bundle import write_export

    common: Any = {"direction": asked.direction, "weights": asked.weights, "checkpoint": asked.checkpoint}
    result = write_export(asked.model, asked.out, format=asked.format, **common)
    difference, size = result["max_difference"], result["megabytes"]
    print(f"{asked.out}: {size} MB, at most {difference:.2g} from PyTorch; card: {result['card']}", file=sys.stderr)
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
        command = shlex.join(["velogan", *argv])
        return demo(asked.out, preset=asked.preset, minutes=asked.minutes, display=display, command=command), 0


def _bench(asked: Bench, argv: list[str]) -> tuple[dict[str, Any], int]:
    from rich.console import Console

    from velogan.engine.resolve import resolve_device
    from velogan.measure.bench import bench, bench_paper, make_chain, make_plan, render
    from velogan.observe.progress import Display

    if asked.rounds < 1:
        raise ValueError(f"--rounds {asked.rounds}: at least one round is needed")
    if (asked.paper and (asked.only or asked.all or asked.waterfall)) or (asked.all and asked.waterfall):
        raise ValueError("--paper stands alone, and --waterfall takes no --all: leave the others out")
    device = resolve_device("auto")
    with Display() as display:
        if asked.paper:
            result = bench_paper(rounds=asked.rounds, say=display.say)
        else:
            make = make_chain if asked.waterfall else partial(make_plan, everything=asked.all)
            result = bench(make(asked.only, device=device), rounds=asked.rounds, say=display.say)
    console = Console(stderr=asked.json)
    for part in render(result):
        console.print(part)
    return result, 0


def _profile(asked: Profile, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.measure.profile import profile
    from velogan.observe.progress import Display

    config = _configure_common(asked)
    if not _data_is_named(asked, asked.preset):  # a step's time does not depend on what is in the pictures
        config = config.change(data={"render_count": 8, "render_test": 1})
    with Display() as display:
        result = profile(config, steps=asked.steps, out=asked.out, display=display)
        display.say(f"look at it: {Path(result['page']).resolve()}")
    keys = ("step_ms", "temporal", "idle", "kernels", "launches", "owners", "page", "trace")
    return {key: result[key] for key in keys}, 0


def _report(asked: Report, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.report import write_report

    page = write_report(list(asked.runs), out=asked.out)
    print(page, file=sys.stderr if asked.json else sys.stdout)
    return {"page": str(page)}, 0


def _sweep(asked: Sweep, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.sweep.sweep import check_folders, sweep
    from velogan.sweep.table import Table

    plan = _plan(asked, argv)
    if asked.dry_run:
        return _sweep_dry(asked, plan), 0
    if asked.out is None:
        raise ValueError("--out is missing: name the folder that the sweep is kept in")
    check_folders(asked.out, plan.known_trials())
    command = shlex.join(["velogan", *argv])
    common: dict[str, Any] = {"parallel": asked.parallel, "address": asked.address}
    result = sweep(plan, asked.out, command=command, table=Table(quiet=asked.json), **common)
    failed = any(one["status"] == "failed" for one in result["trials"])
    if not asked.json:
        print(f"best: {result['best'] or 'none'}; page: {result['page']}")
    return result, 1 if failed else 0


def _plan(asked: Sweep, argv: list[str]) -> Plan:
    """The plan of a file, or of flags. ValueError where both say which runs there are."""
    from velogan.sweep.axes import parse_axis
    from velogan.sweep.planfile import make_plan, read_plan

    if asked.parallel is not None and asked.parallel < 1:
        raise ValueError(f"--parallel {asked.parallel}: at least one run at a time")
    if len(asked.presets) == 1 and asked.presets[0].endswith((".yaml", ".yml")):
        here = {"presets": asked.presets, "out": asked.out, "parallel": asked.parallel, "address": asked.address}
        alone = Sweep(fields=Config(), dry_run=asked.dry_run, json=asked.json, **here)
        given = [field.name for field in dataclasses.fields(Sweep) if _of(asked, field) != _of(alone, field)]
        if given:
            raise ValueError(
                f"--{given[0].replace('_', '-')} and {asked.presets[0]}: a plan file says itself which runs there are; "
                "write it there"
            )
        return read_plan(Path(asked.presets[0]))
    presets = asked.presets or (DEFAULT,)
    if unknown := next((one for one in presets if one not in RECIPES), None):
        raise ValueError(f"{unknown} is no preset{nearest(unknown, RECIPES)}; there are {', '.join(RECIPES)}")
    if asked.config is not None and len(presets) > 1:
        raise ValueError("--config and several presets contradict each other: name one of the two")
    if asked.seed is not None:
        raise ValueError(f"--seed {asked.seed}: a sweep has --seeds N, which are 0 to N - 1")
    if not _data_is_named(asked, *presets):
        raise ValueError("--data is missing: name a folder with trainA and trainB, two folders, or apples2oranges")
    rest: Any = {name: getattr(asked, name) for name in ("seeds", "search", "trials", "metric", "stop_early")}
    bases = {preset: _sweep_base(argv[1:], preset) for preset in presets}
    vary = tuple(map(parse_axis, asked.vary))
    return make_plan(bases, minutes=asked.minutes, images=asked.images, vary=vary, **rest)


def _of(asked: Sweep, field: dataclasses.Field[Any]) -> Any:
    return getattr(asked, field.name)


def _sweep_base(argv: list[str], preset: str) -> Config:
    """What the flags make of one preset: each flag holds for all of them."""
    base = _base_config(argv, preset)
    asked = tyro.cli(Sweep, args=_plain_flags(argv, base), prog="velogan sweep", default=Sweep(fields=base))
    return _configure_common(asked)


def _sweep_dry(asked: Sweep, plan: Plan) -> dict[str, Any]:
    from rich.console import Console

    from velogan.measure.probe import probe
    from velogan.sweep.cost import cost, described
    from velogan.sweep.table import costs

    console = Console(stderr=True)
    with console.status("measuring what a step costs here"):
        found = cost(plan, plan.known_trials(), parallel=asked.parallel, probe=probe, say=console.print)
    if not asked.json:
        out = Console()
        out.print(costs(found["trials"]) if found["trials"] else f"{plan.trials} settings that optuna chooses")
        out.print(described(found), soft_wrap=True, highlight=False)
    return found


def _simulate(asked: Simulate, argv: list[str]) -> tuple[dict[str, Any], int]:
    from rich.console import Console

    from velogan.cluster.asked import parse_devices
    from velogan.cluster.load import load_of
    from velogan.cluster.simulate import simulate
    from velogan.cluster.table import render

    numbers = {name: getattr(asked, name) for name in ("per_host", "images", "every", "trials")}
    if wrong := next((name for name, value in numbers.items() if not 1 <= value <= _MOST), None):
        flag = f"--{wrong.replace('_', '-')}"
        raise ValueError(f"{flag} {numbers[wrong]!s:.40}: give a whole number from 1 to {_MOST:,}")
    if asked.step_ms is not None and not 0 < asked.step_ms < _MOST:
        raise ValueError(
            f"--step-ms {asked.step_ms}: give milliseconds above 0, or leave it out to measure a step here"
        )
    devices, cluster = parse_devices(asked.devices), _cluster(asked)
    config = _configure_common(asked)
    load, reference = load_of(config), load_of(config.change(method=RECIPES[DEFAULT]().method.kind))
    if asked.step_ms is None:
        step_s, source = _measured_step(config, per_host=asked.per_host) * load.images, "measured here"
    else:
        step_s, source = asked.step_ms / 1000, "--step-ms"
    plan: dict[str, Any] = {"images": asked.images, "every": asked.every, "trials": asked.trials}
    found = simulate(load, cluster, devices=devices, step_s=step_s, reference=reference, **plan)
    found |= {"step_from": source, "cluster": dataclasses.asdict(cluster)}
    console = Console(stderr=asked.json)
    for part in render(found):
        console.print(part, highlight=False)
    return found, 0


def _cluster(asked: Simulate) -> Cluster:
    from velogan.cluster.asked import parse_bandwidth, parse_latency
    from velogan.cluster.memory import memory_speed
    from velogan.cluster.simulate import ETHERNET, GPU_MEMORY, Cluster, Link

    if asked.per_host > 1 and asked.inside_bandwidth is None:
        raise ValueError(
            f"--per-host {asked.per_host}: say also how fast its devices reach each other, as --inside-bandwidth 400GB"
        )
    link = Link(ETHERNET * parse_bandwidth(asked.bandwidth, "--bandwidth"), parse_latency(asked.latency, "--latency"))
    inside = link
    if asked.inside_bandwidth is not None:
        inside_bandwidth = parse_bandwidth(asked.inside_bandwidth, "--inside-bandwidth")
        inside = Link(inside_bandwidth, parse_latency(asked.inside_latency, "--inside-latency"))
    if asked.memory is not None:
        memory = parse_bandwidth(asked.memory, "--memory")
    else:
        memory = memory_speed() if asked.backend == "gloo" else GPU_MEMORY
    return Cluster(link, inside, per_host=asked.per_host, backend=asked.backend, memory=memory)


def _measured_step(config: Config, *, per_host: int) -> float:
    """Seconds for an image of each domain, on the share of this machine's cores that one of `per_host` devices has."""
    from velogan.measure.probe import probe
    from velogan.sweep.cores import available

    cores = available()
    cores = cores[: max(1, len(cores) // per_host)]
    return probe(config.change(engine={"threads": config.engine.threads or len(cores)}), cores).seconds


def _data_render(asked: DataRender, argv: list[str]) -> tuple[dict[str, Any], int]:
    from velogan.data.rendered.apples2oranges import render_folder
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
    from velogan.data.domains.check import check, render_text
    from velogan.observe.progress import Display

    with Display() as display:
        found = check(asked.path, progress=display.task("checking"))
    print(render_text(found), file=sys.stderr if asked.json else sys.stdout)
    return found, 0


_HANDLERS: dict[type, Callable[[Any, list[str]], tuple[dict[str, Any], int]]] = {
    Train: _train,
    Search: _search,
    Translate: _translate,
    Evaluate: _evaluate,
    Import: _import,
    Export: _export,
    Demo: _demo,
    Bench: _bench,
    Profile: _profile,
    Report: _report,
    Sweep: _sweep,
    Simulate: _simulate,
    DataRender: _data_render,
    DataCheck: _data_check,
}
