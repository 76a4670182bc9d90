"""Models by name: those included in velogan, and those on the Hugging Face Hub, with downloads and uploads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from velogan.files import require
from velogan.store.checkpoint import find_corruption
from velogan.types import GENERATOR_FILES

CONFIG, MANIFEST = "config.json", "manifest.json"
PAGE, EXAMPLE = "README.md", "example.png"
WEIGHTS = tuple(f"{role}.safetensors" for role in GENERATOR_FILES.values())
FILE_NAMES = (CONFIG, MANIFEST, PAGE, EXAMPLE, *WEIGHTS)
"""All files that the folder of a published model may contain."""

PRETRAINED = ("apples2oranges",)
"""The models included in velogan, trained by benchmarks/pretrained.py on the built-in data set at 64x64 pixels."""

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>[\w./-]+))?")
_ADDRESS = re.compile(r"hf:/{1,2}(?P<name>.*)")  # a Path keeps one of the two slashes


def resolve_model_path(path: Path | str) -> Path:
    """Return the local path of a model; download `hf://OWNER/NAME` or `hf://OWNER/NAME@REVISION` if it is not cached.

    A name in `PRETRAINED` stands for the weights file included in velogan, unless such a path exists. Other paths are
    returned unchanged.
    """
    if str(path) in PRETRAINED and not Path(path).exists():
        return Path(__file__).parent / "pretrained" / f"{path}.safetensors"
    match = _ADDRESS.fullmatch(str(path))
    return download(match["name"]) if match else Path(path)


def resolve_repo(path: Path | str) -> Path:
    """Return the local path of a model (see `resolve_model_path`); also accept OWNER/NAME without `hf://`."""
    if not Path(path).exists() and isinstance(path, str) and _NAME.fullmatch(path):
        return download(path)
    return resolve_model_path(path)


def download(name: str) -> Path:
    """Download the weights and JSON files of OWNER/NAME or OWNER/NAME@REVISION to the hub's cache; return the folder.

    Raises ValueError if there is no such model or it is not velogan's, OSError if the download fails.
    """
    parts = _NAME.fullmatch(name)
    if not parts:
        raise ValueError(
            f"hf://{name:.100} is not a valid model name: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
        )
    with _translate_hub_errors(f"hf://{name}") as api:
        snapshot = api.snapshot_download(
            parts["repository"], revision=parts["revision"], allow_patterns=[CONFIG, MANIFEST, *WEIGHTS]
        )
    folder = Path(snapshot)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"hf://{name} contains no velogan model ({MANIFEST} is missing): choose another")
    if problem := find_corruption(folder):
        raise OSError(f"hf://{name} was not downloaded completely: {problem}; remove that folder and try again")
    return folder


def upload(folder: Path, name: str, *, private: bool | None, message: str) -> str:
    """Publish the files of `folder` as OWNER/NAME, in one commit, and return the URL.

    The repository is created if necessary. Files of an earlier upload that `folder` lacks are removed. Raises
    ValueError if the hub denies access, OSError if the upload fails.
    """
    with _translate_hub_errors(name) as api:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        repo = api.create_repo(name, private=private, exist_ok=True)
        files = {file: folder / file for file in FILE_NAMES if (folder / file).is_file()}
        stale = {*api.list_repo_files(repo.repo_id)} & {*FILE_NAMES} - {*files}
        operations = [CommitOperationAdd(file, str(path)) for file, path in files.items()]
        operations += [CommitOperationDelete(file) for file in sorted(stale)]
        api.create_commit(repo.repo_id, operations, commit_message=message)
    return str(repo)


def require_hub() -> None:
    """Raise ValueError, with the install command, if the hub's library is missing."""
    require("hub", "huggingface_hub", feature="the hub")


@contextmanager
def _translate_hub_errors(name: str) -> Iterator[Any]:
    """Yield the hub's client; translate its errors to a ValueError or OSError of one sentence.

    All exceptions are caught, because some come from its HTTP library, which differs between versions.
    """
    require_hub()
    from huggingface_hub import HfApi, errors

    messages = {
        errors.GatedRepoError: "access requires the owner's approval: request it on the model's page, then log in with "
        "`hf auth login`",
        errors.RepositoryNotFoundError: "not found, or private: check the name, or log in with `hf auth login`",
        errors.RevisionNotFoundError: "there is no such revision: choose another or remove it",
        errors.HFValidationError: "this is not a valid model name: write OWNER/NAME",
    }
    try:
        yield HfApi()
    except Exception as error:
        for error_type, message in messages.items():
            if isinstance(error, error_type):
                raise ValueError(f"{name}: {message}") from None
        if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403):
            raise ValueError(f"{name}: the hub denies access: log in with `hf auth login`") from None
        reason = " ".join(str(error).split())[:300]
        raise OSError(f"{name}: the hub cannot be used: {type(error).__name__}: {reason}") from error
