"""The lock of a run folder: one process at a time writes there."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create `folder` if needed and lock it for this process. The lock ends with the process, even if it is killed.

    Raises ValueError, which names the process, if another one holds the lock; OSError if the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "a+b", buffering=0)
    except OSError as error:
        raise _unwritable_error(folder, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}".encode())
        except BlockingIOError:
            file.seek(0)
            holder = _describe_holder(file.read().decode(errors="replace"))
            raise ValueError(f"--out {folder} is in use by {holder}: wait for it, or name another folder") from None
        except OSError as error:
            raise _unwritable_error(folder, error) from error
        yield


def _unwritable_error(folder: Path, error: OSError) -> OSError:
    text = (
        f"{error.strerror}: this folder (--out) cannot be written; free some space, make it writable, or "
        "name another folder"
    )
    return OSError(error.errno, text, str(folder))


def _describe_holder(line: str) -> str:
    """Return "process PID" from a lock file's `line`, `PID HOST`, with the host if it is another machine."""
    number, _, host = line.partition(" ")
    return f"process {number or 'unknown'}" + (f" on {host}" if host not in ("", socket.gethostname()) else "")
