"""`velogan sweep`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from velogan.cli.fields import Fields, base_config, configure, plain_flags
from velogan.cli.filling import check_data
from velogan.cli.flags import Outcome
from velogan.config import Config
from velogan.files import counted, nearest
from velogan.recipes import DEFAULT, RECIPES

if TYPE_CHECKING:
    from velogan.sweep.plan import SweepPlan, Trial


@dataclass(kw_only=True)
class Sweep(Fields):
    """Flags of `velogan sweep`.

    The same command again goes on; more seeds or values extend what is finished.

    velogan sweep --data horse2zebra --out sweeps/rates --vary optimizer.lr=0.01,0.02

    velogan sweep plan.yaml --out sweeps/rates
    """

    FIRST = ("presets", "data", "out", "vary", "seeds", "images", "minutes", "size", "image_size", "method", "search")
    FIRST += ("trials", "metric", "stop_early", "parallel", "address", "dry_run", "json")

    presets: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            help=f"Presets to compare, or one YAML file with the whole plan. Default: {DEFAULT}.",
            metavar="[PRESET ...|PLAN.yaml]",
        ),
    ] = ()
    out: Annotated[Path | None, tyro.conf.arg(help="The folder for all runs, sweep.json and the page.")] = None
    vary: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(
            help="A field and its values, or a range of numbers (log: even in the logarithm); once for each field. "
            "`size` can be varied too.",
            metavar="FIELD=V,V|LOW..HIGH[:log]",
        ),
    ] = ()
    seeds: Annotated[int, tyro.conf.arg(help="Runs of each setting, with seeds from 0.")] = 1
    minutes: Annotated[
        float | None, tyro.conf.arg(help="Length of each run, all counted but the preparing of pictures.")
    ] = None
    images: Annotated[int | None, tyro.conf.arg(help="Images of each domain that each run trains on.")] = None
    search: Annotated[
        Literal["grid", "random", "optuna"],
        tyro.conf.arg(help="grid: all combinations; random, optuna: --trials settings, drawn or chosen by the scores."),
    ] = "grid"
    trials: Annotated[int | None, tyro.conf.arg(help="How many settings random and optuna try.")] = None
    metric: Annotated[
        str,
        tyro.conf.arg(
            help="The figure of held-out pictures to choose by: any that evaluate gives, with _a2b or _b2a of one way."
        ),
    ] = "validation/distance"
    stop_early: Annotated[
        Literal["asha"] | None, tyro.conf.arg(help="Stop runs that are not in the best third at 10, 30, 90 %.")
    ] = None
    parallel: Annotated[
        int | None, tyro.conf.arg(help="Runs at a time. Default: one for each GPU, else for each core.")
    ] = None
    address: Annotated[
        str | None, tyro.conf.arg(help="A Ray that runs already: ray://HOST:PORT or auto. Default: one of our own.")
    ] = None
    dry_run: Annotated[bool, tyro.conf.arg(help="Print the runs, and stop.")] = False

    @classmethod
    def base(cls, argv: Sequence[str]) -> Config:
        """The first preset's configuration: what all of them share is parsed with it."""
        return base_config(argv, _preset(argv))

    def places(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)] if self.out is not None and not self.dry_run else []

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.sweep.status_log import StatusLog
        from velogan.sweep.sweep import sweep

        plan = _plan(self, argv)
        trials = plan.known_trials()
        settings = len(trials) // plan.seeds
        if plan.search == "random" and plan.trials and settings < plan.trials:
            there = f"the values of --vary have no more than {counted(settings, 'setting')}, found at random"
            print(f"careful: --trials {plan.trials}: {there}", file=sys.stderr)
        if self.dry_run:
            return _dry_run(plan, trials, quiet=self.json), 0
        if self.out is None:
            raise ValueError("--out is missing: name the folder that the sweep is kept in")
        command = shlex.join(["velogan", *argv])
        common: dict[str, Any] = {"parallel": self.parallel, "address": self.address}
        result = sweep(plan, self.out, command=command, table=StatusLog(quiet=self.json), **common)
        failed = any(one["status"] == "failed" for one in result["trials"])
        if not self.json:
            print(f"best: {result['best'] or 'none'}; page: {result['page']}")
        return result, 1 if failed else 0


def _preset(argv: Sequence[str]) -> str:
    """The first preset among a sweep's words, which may stand behind its flags."""
    behind = zip(["", *argv], argv)
    return next((word for flag, word in behind if word in RECIPES and not flag.startswith("--")), DEFAULT)


def _plan(asked: Sweep, argv: list[str]) -> SweepPlan:
    """The plan of a file, or of flags. ValueError where both say which runs there are."""
    from velogan.sweep.dimensions import parse_dimension
    from velogan.sweep.planfile import make_plan, read_plan

    if asked.parallel is not None and asked.parallel < 1:
        raise ValueError(f"--parallel {asked.parallel}: at least one run at a time")
    if len(asked.presets) == 1 and asked.presets[0].endswith((".yaml", ".yml")):
        here = {"presets": asked.presets, "out": asked.out, "parallel": asked.parallel, "address": asked.address}
        alone = Sweep(fields=Config(), dry_run=asked.dry_run, json=asked.json, **here)
        names = [field.name for field in dataclasses.fields(Sweep)]
        given = [name for name in names if getattr(asked, name) != getattr(alone, name)]
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
    check_data(asked, *presets)
    rest: Any = {name: getattr(asked, name) for name in ("seeds", "search", "trials", "metric", "stop_early")}
    bases = {preset: _sweep_base(argv[1:], preset) for preset in presets}
    vary = tuple(map(parse_dimension, asked.vary))
    return make_plan(bases, minutes=asked.minutes, images=asked.images, vary=vary, **rest)


def _sweep_base(argv: list[str], preset: str) -> Config:
    """What the flags make of one preset: each flag holds for all of them."""
    base = base_config(argv, preset)
    asked = Sweep.parsed(plain_flags(argv, base), prog="velogan sweep", default=Sweep(fields=base))
    return configure(asked)


def _dry_run(plan: SweepPlan, trials: Sequence[Trial], *, quiet: bool) -> dict[str, Any]:
    """List the trials; none are known in advance if optuna chooses them."""
    count = len(trials) or (plan.trials or 0) * plan.seeds
    if not quiet:
        print("\n".join([trial.name for trial in trials] or [f"{plan.trials} settings that optuna chooses"]))
        print(f"{counted(count, 'run')} of {plan.budget} each")
    listed = [{"name": trial.name, "settings": dict(trial.settings), "seed": trial.seed} for trial in trials]
    return {"trials": listed, "count": count, "budget": plan.budget}
