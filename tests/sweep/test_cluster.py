"""A cluster of Ray that loses a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from velogan.store.checkpoint import list_checkpoints
from velogan.sweep.plan import SweepPlan
from velogan.sweep.scheduling import require_tune
from velogan.sweep.sweep import StatusLog, check_plan, sweep
from velogan.sweep.trial import run_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore:::ray"),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes in /proc"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A node with one core; tests add others."""
    require_tune()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def run(cluster: Any, plan: SweepPlan, out: Path, parallel: int, log: StatusLog) -> dict[str, str]:
    result = sweep(
        plan, out, check_plan(plan, out), command="velogan sweep", log=log, parallel=parallel, address=cluster.address
    )
    return {trial["name"]: trial["status"] for trial in result["trials"]}


def process_of(out: Path, name: str) -> int:
    """The worker that trains the trial."""
    return int((run_folder(out, name) / ".lock").read_text().split()[0])


def parents(pid: int) -> list[int]:
    ancestors = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        ancestors.append(pid)
    return ancestors


@pytest.mark.soak
def test_a_lost_node_loses_no_trial(cluster: Any, tiny_plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    raylet = node.all_processes["raylet"][0].process.pid
    base = tiny_plan().bases["cyclegan"].change(train={"checkpoint_every": "10 images"})
    plan = tiny_plan(bases={"cyclegan": base}, seeds=2, images=100)
    names = [trial.name for trial in plan.known_trials()]
    moved: list[str] = []
    over = Event()

    def lose() -> None:
        while not moved:
            if over.is_set():
                return
            time.sleep(0.1)
            with suppress(OSError, IndexError):
                moved.extend(name for name in names if list_checkpoints(run_folder(tmp_path, name)) and on_node(name))
        cluster.remove_node(node, allow_graceful=False)

    def on_node(name: str) -> bool:
        return raylet in parents(process_of(tmp_path, name))

    loser = Thread(target=lose)
    loser.start()
    try:
        assert run(cluster, plan, tmp_path, 2, StatusLog(quiet=True)) == dict.fromkeys(names, "done")
    finally:
        over.set()
        loser.join()
    assert len(moved) == 1
    assert "resuming" in (tmp_path / "status" / f"{moved[0]}.log").read_text()
