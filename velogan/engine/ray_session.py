"""A connection to an existing or temporary Ray cluster, without Ray's own output."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from velogan.engine.processes import available_cores, child_environment
from velogan.files import install_hint

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_worker_niceness": "0",  # the default of 15 would give all other processes precedence
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # velogan handles Ctrl-C
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
"""Environment variables that are set for Ray and its workers."""

MIN_STORE_BYTES = 100 * 2**20
"""Minimum size of Ray's object store."""

MAX_TEMP_DIR = 18
"""If the temporary folder's path is longer, /tmp is used: macOS limits the paths of sockets to 103 bytes."""


def require_ray(extra: str, *modules: str, feature: str) -> None:
    """Raise ValueError, with the command that installs `extra`, if a module that `feature` needs cannot be imported.

    The modules are imported, because a part of Ray may be installed without its dependencies.
    """
    os.environ.update(RAY_ENVIRONMENT)
    for module in modules:
        try:
            import_module(module)
        except ImportError:
            raise ValueError(f"{feature} needs {module}, which cannot be imported: {install_hint(extra)}") from None


@contextmanager
def ray_session(address: str | None, *, store_bytes: int = 0) -> Iterator[None]:
    """Connect to Ray at `address`, or start it for this context with an object store of at least `store_bytes`.

    Raises ValueError if no Ray answers at `address`, OSError if Ray does not start.
    """
    os.environ.update(RAY_ENVIRONMENT)
    import ray

    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) <= MAX_TEMP_DIR else "/tmp"
    with tempfile.TemporaryDirectory(prefix="velogan-ray-", dir=parent, ignore_cleanup_errors=True) as folder:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _start_or_connect(address, folder, max(store_bytes, MIN_STORE_BYTES))
            with _sigterm_as_interrupt():
                yield
        finally:
            ray.shutdown()


def _start_or_connect(address: str | None, folder: str, store_bytes: int) -> None:
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        try:
            ray.init(address=address, **options)
        except ConnectionError as error:
            raise ValueError(f"--address {address}: no Ray answers there ({str(error).splitlines()[0]})") from None
        return
    os.environ.update(child_environment())
    options |= {"num_cpus": len(available_cores()), "include_dashboard": False, "_temp_dir": folder}
    try:
        ray.init(address="local", object_store_memory=store_bytes, **options)
    except Exception as error:  # Ray raises no specific class here
        raise OSError(f"Ray did not start, perhaps on a busy machine: run the same command again ({error})") from error


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM, which Slurm and PBS send before SIGKILL, act like Ctrl-C; Ray would print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
