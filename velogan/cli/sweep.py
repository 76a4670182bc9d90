"""`velogan sweep`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from velogan.cli.fields import ConfigFlags, build_base_config, configure, normalize_switches
from velogan.cli.flags import Outcome
from velogan.cli.run_command import check_data
from velogan.config import Config
from velogan.files import pluralize
from velogan.recipes import DEFAULT, RECIPES

if TYPE_CHECKING:
    from velogan.sweep.plan import SweepPlan, Trial


@dataclass(kw_only=True)
class Sweep(ConfigFlags):
    """Flags of `velogan sweep`.

    Run the same command again to resume, except with --search optuna; more seeds or values extend a finished sweep.

    velogan sweep --data horse2zebra --out sweeps/rates --vary optimizer.lr=0.01,0.02 --images 3000
    velogan sweep plan.yaml --out sweeps/rates
    """

    HELP_FLAGS = (
        "presets data out vary seeds images minutes size image_size method search trials metric stop_early parallel "
        "address dry_run json"
    )

    presets: Annotated[
        Positional[tuple[str, ...]],
        arg(
            help=f"Presets to compare, or one YAML file with the complete plan. Default: {DEFAULT}.",
            metavar="[PRESET ...|PLAN.yaml]",
        ),
    ] = ()
    out: Annotated[Path | None, arg(help="Folder for all runs, sweep.json and the report.")] = None
    vary: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(
            help="A field with its values or a range of numbers (:log samples uniformly in the logarithm); repeat the "
            "flag for more fields. `size` can be varied too.",
            metavar="FIELD=V,V|LOW..HIGH[:log]",
        ),
    ] = ()
    seeds: Annotated[int, arg(help="Number of runs of each setting, with seeds from 0.")] = 1
    minutes: Annotated[float | None, arg(help="Length of each run in minutes, excluding data preparation.")] = None
    images: Annotated[int | None, arg(help="Length of each run in images per domain.")] = None
    search: Annotated[
        Literal["grid", "random", "optuna"],
        arg(help="grid: all combinations; random: random settings; optuna: settings chosen by the scores."),
    ] = "grid"
    trials: Annotated[int | None, arg(help="Number of settings for random and optuna.")] = None
    metric: Annotated[
        str,
        arg(help="Validation metric to rank runs by: any metric of `evaluate`, optionally with suffix _a2b or _b2a."),
    ] = "validation/distance"
    stop_early: Annotated[
        Literal["asha"] | None,
        arg(help="Stop runs that are not in the best third after 10, 30 and 90 % of their length."),
    ] = None
    parallel: Annotated[
        int | None, arg(help="Number of simultaneous runs. Default: one per GPU, or one per CPU core.")
    ] = None
    address: Annotated[
        str | None, arg(help="Running Ray cluster: ray://HOST:PORT or auto. Default: start Ray on this machine.")
    ] = None
    dry_run: Annotated[bool, arg(help="Print the runs without training.")] = False

    @classmethod
    def base_config(cls, argv: Sequence[str]) -> Config:
        """Return the configuration of the first preset; the fields of that preset define the flags of the command."""
        return build_base_config(argv, _first_preset(argv))

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("--out", self.out)] if self.out is not None else []

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.sweep.sweep import StatusLog, check_plan, sweep

        plan = _build_plan(self, argv)
        trials = check_plan(plan, self.out)
        settings = len(trials) // plan.seeds
        if plan.search == "random" and plan.trials and settings < plan.trials:
            reason = f"the values of --vary give no more than {pluralize(settings, 'setting')}"
            print(f"warning: --trials {plan.trials}: {reason}", file=sys.stderr)
        if self.dry_run:
            return _dry_run(plan, trials, quiet=self.json), 0
        if self.out is None:
            raise ValueError("--out is missing: give the folder for the sweep")
        log, command = StatusLog(quiet=self.json), shlex.join(["velogan", *argv])
        result = sweep(plan, self.out, trials, command=command, log=log, parallel=self.parallel, address=self.address)
        has_failed = any(trial["status"] == "failed" for trial in result["trials"])
        if not self.json:
            print(f"best: {result['best'] or 'none'}; report: {result['page']}")
        return result, 1 if has_failed else 0


def _first_preset(argv: Sequence[str]) -> str:
    """Return the first preset that the command line names, before or after the flags, or else the default."""
    pairs = zip(["", *argv], argv)
    return next((word for flag, word in pairs if word in RECIPES and not flag.startswith("--")), DEFAULT)


def _build_plan(command: Sweep, argv: list[str]) -> SweepPlan:
    """Return the plan of PLAN.yaml, or else of the flags. Raises ValueError if it is invalid or flags contradict it."""
    from velogan.sweep.dimensions import parse_dimension
    from velogan.sweep.plan import SweepPlan, check_preset, read_plan

    if command.parallel is not None and command.parallel < 1:
        raise ValueError(f"--parallel {command.parallel}: give at least 1")
    if command.seed is not None:
        raise ValueError(f"--seed {command.seed} is not a flag of sweep: use --seeds N, for the seeds 0 to N - 1")
    presets = command.presets or (DEFAULT,)
    if presets[0].endswith((".yaml", ".yml")):
        flags = {word.partition("=")[0] for word in argv if word.startswith("--")}
        extra = [*presets[1:], *(flags - {"--out", "--parallel", "--address", "--dry-run", "--dry_run", "--json"})]
        if extra:
            raise ValueError(f"{extra[0]} cannot be combined with {presets[0]}: set it in that file")
        return read_plan(Path(presets[0]))
    for preset in presets:
        check_preset(preset)
    if command.config is not None and len(presets) > 1:
        raise ValueError("--config and several presets contradict each other: give one of the two")
    check_data(command, *presets)
    names = ("seeds", "minutes", "images", "search", "trials", "metric", "stop_early")
    options: dict[str, Any] = {name: getattr(command, name) for name in names}
    bases = {preset: _preset_config(argv[1:], preset) for preset in presets}
    return SweepPlan(bases=bases, vary=tuple(map(parse_dimension, command.vary)), **options)


def _preset_config(argv: list[str], preset: str) -> Config:
    """Return the configuration of one preset with the field flags, which apply to every preset."""
    base = build_base_config(argv, preset)
    command = Sweep.parse_with_tyro(normalize_switches(argv, base), prog="velogan sweep", default=Sweep(fields=base))
    return configure(command)


def _dry_run(plan: SweepPlan, trials: Sequence[Trial], *, quiet: bool) -> dict[str, Any]:
    """Print and return the trials; if optuna chooses them, only their number is known."""
    count = len(trials) or (plan.trials or 0) * plan.seeds
    if not quiet:
        print("\n".join([trial.name for trial in trials] or [f"{plan.trials} settings that optuna chooses"]))
        print(f"{pluralize(count, 'run')} of {plan.budget} each")
    records = [{"name": trial.name, "settings": dict(trial.settings), "seed": trial.seed} for trial in trials]
    return {"trials": records, "count": count, "budget": plan.budget}
