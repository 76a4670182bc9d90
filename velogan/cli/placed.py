"""Where a generator computes, and by what, for the commands that load one."""

from __future__ import annotations

from typing import Any


def placed(device: str, *, exact: bool) -> dict[str, Any]:
    """Arguments of `load_translator` and `load_all`: the device, and what makes the network faster there."""
    from velogan.data.sets.sources import code_directory
    from velogan.engine.device import resolve_device
    from velogan.kernels.inference import Accelerator

    where = resolve_device(device)
    return {"device": where, "accelerate": None if exact else Accelerator(where, code_directory() / "kernels")}
