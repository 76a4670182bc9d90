"""Ray, found at an address or started for one command, and quiet: what it has to tell, the command tells."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from velogan.engine.processes import default_threads
from velogan.files import install

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_worker_niceness": "0",  # 15 by default: then anything else on the machine comes first
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
"""The environment of Ray and of its workers."""

LEAST = 100 * 2**20
"""Bytes of memory for what is sent."""


def require_ray(extra: str, *modules: str, user: str) -> None:
    """ValueError, which says how to install `extra`, where one of `modules` cannot be imported; `user` needs them.

    A part of Ray may be there without what it needs, so it is imported.
    """
    os.environ.update(QUIET)
    for module in modules:
        try:
            import_module(module)
        except ImportError:
            raise ValueError(f"{user} needs {module}, which cannot be imported here: {install(extra)}") from None


@contextmanager
def ray_session(address: str | None, *, memory: int = 0) -> Iterator[None]:
    """Ray at `address`; without one, started inside and gone afterwards, with `memory` bytes for what is sent.

    ValueError where nothing answers at `address`; OSError where Ray does not start.
    """
    os.environ.update(QUIET)
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="velogan-ray-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _begin(address, folder, max(memory, LEAST))
        with _terminated_like_ctrl_c():
            yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _begin(address: str | None, folder: Path, memory: int) -> None:
    import ray

    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        try:
            ray.init(address=address, **common)
        except ConnectionError as error:
            raise ValueError(f"--address {address}: no Ray answers there ({str(error).splitlines()[0]})") from None
        return
    common |= {"num_cpus": default_threads(), "include_dashboard": False, "_temp_dir": str(folder)}
    try:
        ray.init(address="local", object_store_memory=memory, **common)
    except Exception as error:  # what Ray raises here has no class of its own
        raise OSError(
            f"Ray did not start, which happens on a very busy machine: run the same command again ({error})"
        ) from error


@contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """SIGTERM, which Slurm and PBS send before they kill, ends a sweep as Ctrl-C does; Ray would print a trace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
