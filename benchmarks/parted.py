"""Steps of two processes that are recorded in pieces, beside plain steps of the two, and of one with both batches.

    python -m benchmarks.parted

Two processes share the device: one GPU, where there is one, and gloo carries what they exchange. Prints a line of JSON:
the largest differences of weights after some steps, how far they moved, and on a GPU milliseconds of a step each way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from velogan.config import Config
from velogan.engine.capture import CapturedStep, CudaRecorder, Recorder
from velogan.engine.nonfinite import Latch
from velogan.engine.optimizers import make_capturable
from velogan.engine.ranks import Ranks
from velogan.engine.step import Step
from velogan.training.choices import decide
from velogan.training.trial import step_of

STEPS = 3
DRAWS = (0, 10, 20)
"""Where images begin of which the middle one counts: rounding may turn a ReLU's gradient on or off in one of them."""


class Again:
    """A recorder for CPUs: it runs the work a few times, and at every replay once more into the first tensors."""

    def record(self, work: Callable[[], dict[str, Tensor]]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        outputs = [work() for _ in range(3)][-1]

        def replay() -> None:
            for name, value in work().items():
                outputs[name].copy_(value)

        return outputs, replay


def tiny(device: str, **sections: Any) -> Config:
    """A small game whose sums have one order: no reflection on a GPU, whose gradient adds up in any."""
    cuda = device == "cuda"
    small = Config().change(
        data={"crop_size": 128 if cuda else 32, "batch_size": 1},
        generator={"channels": 4, **({"network": "unet_128"} if cuda else {"blocks": 1})},
        discriminator={"channels": 4},
        engine={"mode": "eager", "precision": "fp32", "device": device, "threads": 1},
    )
    small = small.change(**sections)
    return small.model_copy(update={"engine": decide(small)[0]})


def built(
    config: Config, ranks: Ranks, recorder: Recorder | None
) -> tuple[Step | CapturedStep, list[nn.Parameter], int]:
    """A step for these ranks, recorded where there is a `recorder`; its weights, and the draws that it needs."""
    side = config.data.crop_size
    step, objective, nets = step_of(config, shape=(side, side), ranks=ranks)
    assert isinstance(step, Step)
    weights = [value for net in nets.values() for value in net.parameters()]
    if step.latch is None:
        step.latch = Latch(weights[0].device)
        for optimizer in step.optimizers.values():
            optimizer.found_inf = step.latch.broken  # pyright: ignore[reportAttributeAccessIssue]
    if recorder is None:
        make_capturable(step.optimizers)
        return step, weights, objective.draws["train"]
    return CapturedStep(step, state=objective.state, recorder=recorder), weights, objective.draws["train"]


def batch_of(number: int, ranks: Ranks, draws: int, config: Config) -> dict[str, Tensor]:
    """The rank's part of the images of step `number`, on the device; one rank that is alone has twice as many."""
    random, side, count = torch.Generator().manual_seed(number), config.data.crop_size, config.images_per_update
    mine = slice(ranks.rank * count, (ranks.rank + 1) * count)
    whole = {name: torch.rand(count * ranks.world, 3, side, side, generator=random) * 2 - 1 for name in "AB"}
    found = {name: value[mine] for name, value in whole.items()}
    found["uniform"] = torch.rand(draws, count * ranks.world, generator=random)[:, mine].contiguous()
    return {name: value.to(config.engine.device) for name, value in found.items()}


def trained(config: Config, ranks: Ranks, recorder: Recorder | None, *, first: int = 0) -> list[Tensor]:
    """Weights after `STEPS` steps, from the images of step `first` on."""
    step, weights, draws = built(config, ranks, recorder)
    for number in range(first, first + STEPS):
        torch.manual_seed(number)
        step({"train": batch_of(number, ranks, draws, config)}, number=number)
    step.check()
    return [weight.detach().cpu() for weight in weights]


def milliseconds(config: Config, ranks: Ranks, recorder: Recorder | None) -> float:
    """Of a step, the mean of twenty after five."""
    step, _, draws = built(config, ranks, recorder)
    batch = batch_of(0, ranks, draws, config)
    began = 0.0
    for number in range(25):
        if number == 5:
            torch.cuda.synchronize()
            began = time.perf_counter()
        step({"train": dict(batch)}, number=number)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / 20


def compare(rank: int, store: str, *, device: str, timed: bool) -> dict[str, Any]:
    """What this of two ranks finds."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    ranks = Ranks(rank, 2)

    def recorder() -> Recorder:
        return CudaRecorder(torch.device(device)) if device == "cuda" else Again()

    # two parts a step, each with what earlier phases hand on, and a pool
    config = tiny(device, data={"batch_size": 1}, train={"accumulate": 2}, method={"pool_size": 2})
    pairs = zip(trained(config, ranks, recorder()), trained(config, ranks, None))
    found: dict[str, Any] = {"rank": rank, "device": device}
    found["to_plain"] = max(float((a - b).abs().max()) for a, b in pairs)
    # sgd: by Adam a bias in front of a norm, whose gradient is a rounding error, moves by a full step
    alike: dict[str, Any] = {"method": {"pool_size": 0}, "optimizer": {"kind": "sgd", "lr": 0.01}}
    both, ones = tiny(device, data={"batch_size": 2}, **alike), list[list[Tensor]]()
    apart = list[float]()
    for first in DRAWS:
        ones.append(trained(both, Ranks(), None, first=first))
        pairs = zip(trained(tiny(device, **alike), ranks, recorder(), first=first), ones[-1])
        apart.append(max(float((a - b).norm() / (b.norm() + 1e-2)) for a, b in pairs))
    found["to_one"], one = sorted(apart)[len(apart) // 2], ones[0]
    start = [weight.detach().cpu() for weight in built(tiny(device, **alike), Ranks(), None)[1]]
    found["moved"] = max(float((a - b).norm() / (b.norm() + 1e-2)) for a, b in zip(one, start))
    if device == "cuda":  # with weights that are cast once for a phase
        half = tiny(device, **alike, engine={"precision": "bf16", "kernels": "native"})
        pairs = zip(trained(half, ranks, recorder()), trained(half, ranks, None))
        found["half_to_plain"] = max(float((a - b).norm() / (b.norm() + 1e-2)) for a, b in pairs)
    if timed:
        found["ms"] = dict(_times(ranks, recorder))
    dist.destroy_process_group()
    return found


def _times(ranks: Ranks, recorder: Callable[[], Recorder]) -> Iterator[tuple[str, float]]:
    whole = Config().change(engine={"mode": "eager", "device": "cuda"})
    whole = whole.model_copy(update={"engine": decide(whole)[0]})
    yield "two processes, plain", milliseconds(whole, ranks, None)
    yield "two processes, in pieces", milliseconds(whole, ranks, recorder())
    dist.barrier()
    if ranks.first:
        both = whole.change(data={"batch_size": 2}).model_copy(update={"engine": whole.engine})
        yield "one process, batch 2, captured", milliseconds(both, Ranks(), recorder())
    dist.barrier()


def started(device: str, *, timed: bool = False) -> list[dict[str, Any]]:
    """Two processes of this file; what each finds. RuntimeError with what they said where one fails."""
    root, before = Path(__file__).resolve().parents[1], os.environ.get("PYTHONPATH", "")
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join([str(root), before])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, f"{folder}/store", device, str(int(timed))]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both = [subprocess.Popen([*command, str(rank)], env=env, **pipes) for rank in range(2)]
        said = [one.communicate() for one in both]
    if any(one.returncode for one in both):
        raise RuntimeError("\n".join(errors for _, errors in said))
    return [json.loads(printed.splitlines()[-1]) for printed, _ in said]


if __name__ == "__main__":
    if sys.argv[1:]:
        store, device, timed, rank = sys.argv[1:]
        print(json.dumps(compare(int(rank), store, device=device, timed=timed == "1")))
    else:
        cuda = torch.cuda.is_available()
        print(json.dumps(started("cuda" if cuda else "cpu", timed=cuda)))
