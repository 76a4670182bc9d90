"""The nodes of a training by modules, as Ray's actors: placed, asked, and started again where they are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from velogan.scale.connected import connected
from velogan.training.nodes.node import Given, Node, Report, Task
from velogan.training.nodes.placed import Nodes

MOST_LOSSES = 3
"""How often a node may be lost in one task, of seconds or of the images since its checkpoint."""

Make = Callable[[int], Node]
"""Makes a node, in its own process, which computes with so many threads."""


@contextmanager
def on_nodes(makes: Mapping[str, Make], *, address: str | None, cuda: bool, memory: int) -> Iterator[Nodes]:
    """A node for each module, spread over the hosts of the Ray at `address`, or over this host's cores.

    `makes` must be picklable; with `cuda` each node has a GPU, or an equal part of one. `memory`, in bytes, is what
    nodes send at most at a time. OSError where nodes cannot be started.
    """
    import ray
    from ray.exceptions import RayError

    with connected(address, memory=2 * memory):
        try:
            actors = _start(makes, cuda=cuda)
            ray.get([actor.ready.remote() for actor in actors.values()])
        except RayError as error:
            raise _failed(error, "cannot be started") from error
        yield _Actors(ray, actors)


class _Actors:
    """`Nodes` that are actors of `ray`."""

    def __init__(self, ray: Any, actors: Mapping[str, Any]):
        self._ray, self._actors = ray, actors
        self._sent: dict[str, tuple[Given, Any]] = {}
        self._working: dict[Any, str] = {}

    def give(self, name: str, given: Given, task: Task) -> None:
        sent = next((one for one in self._sent.values() if one[0] is given), None) or (given, self._ray.put(given))
        self._sent[name] = sent
        self._working[self._actors[name].advance.remote(sent[1], task)] = name

    def hear(self) -> tuple[str, Report]:
        (ready, *_), _ = self._ray.wait(list(self._working), num_returns=1)
        try:
            return self._working.pop(ready), self._ray.get(ready)
        except self._ray.exceptions.RayError as error:
            raise _failed(error, "cannot go on") from error


def _start(makes: Mapping[str, Make], *, cuda: bool) -> dict[str, Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    hosts = [host for host in ray.nodes() if host["Alive"] and (not cuda or host["Resources"].get("GPU"))]
    if not hosts:
        raise OSError("the training chose a GPU, and no host of this Ray has one: say --engine.device cpu")
    actors: dict[str, Any] = {}
    for number, (name, make) in enumerate(makes.items()):
        host = hosts[number % len(hosts)]
        beside = len(range(number % len(hosts), len(makes), len(hosts)))  # nodes on this host
        has: Mapping[str, float] = host["Resources"]
        actors[name] = (
            ray.remote(_Actor)
            .options(
                num_cpus=0,
                num_gpus=min(1.0, has.get("GPU", 0.0) / beside) if cuda else 0,
                max_restarts=-1,
                max_task_retries=MOST_LOSSES,
                scheduling_strategy=NodeAffinitySchedulingStrategy(host["NodeID"], soft=True),
            )
            .remote(make, max(1, int(has.get("CPU", 1.0)) // beside))
        )
    return actors


class _Actor:
    """A node's process."""

    def __init__(self, make: Make, threads: int):
        self._node = make(threads)

    def ready(self) -> None:
        """Returns when the node is made."""

    def advance(self, given: Given, task: Task) -> Report:
        return self._node.advance(given, task)


def _failed(error: BaseException, what: str) -> OSError:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return OSError(f"the nodes of this training {what}: {lines[-1].strip()}")
