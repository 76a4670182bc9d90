"""Test figures of the chosen runs: measured when nothing is chosen any more, and kept with what they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from velogan.config import read_config
from velogan.engine.device import resolve_device
from velogan.evaluation.evaluate import evaluate
from velogan.evaluation.metric import evaluation_options
from velogan.files import write_text
from velogan.store.checkpoint import digest, find_checkpoint
from velogan.sweep.folder import read_mapping
from velogan.sweep.plan import SweepPlan
from velogan.sweep.status_log import StatusLog


def chosen_figures(
    plan: SweepPlan, result: Mapping[str, Any], out: Path, table: StatusLog
) -> dict[str, dict[str, float]]:
    """Scores on test pictures of the chosen setting's finished runs, by trial; those that are kept are not measured
    again."""
    chosen = next((one["setting"] for one in result["trials"] if one["name"] == result["best"]), None)
    runs = [one for one in result["trials"] if one["setting"] == chosen and one["status"] == "done"]
    return {
        one["name"]: _tested(plan, Path(one["run"]), out / "status" / f"{one['name']}.test.json", table) for one in runs
    }


def _tested(plan: SweepPlan, run: Path, file: Path, table: StatusLog) -> dict[str, float]:
    """Figures of the best checkpoint's averaged generators by name and direction; none without test pictures."""
    try:
        best = find_checkpoint(run, "best")
        of = {"checkpoint": best.name, "sha256": digest(best), "budget": plan.budget, "metric": plan.metric}
        if (kept := read_mapping(file)).get("of") == of:
            return kept["scores"]
        device = resolve_device(read_config(run).engine.device)
        found = evaluate(run, checkpoint="best", device=device, **evaluation_options(plan.metric))["scores"]
    except (ValueError, OSError) as error:
        table.say(f"{run} cannot be tested: {error}")
        return {}
    scores = {
        f"{one['name']}_{one['direction']}": one["value"]
        for one in found
        if one.get("split", "test") == "test" and one["weights"] == "ema"
    }
    write_text(file, json.dumps({"of": of, "scores": scores}, indent=1))
    return scores
