"""Models by name: the one that comes with velogan, and those of the Hugging Face hub, found and published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from velogan.files import require
from velogan.store.checkpoint import damage
from velogan.types import GENERATOR_FILES

CONFIG, MANIFEST, PAGE, EXAMPLE = "config.json", "manifest.json", "README.md", "example.png"
WEIGHTS = tuple(f"{role}.safetensors" for role in GENERATOR_FILES.values())
NAMES = (CONFIG, MANIFEST, PAGE, EXAMPLE, *WEIGHTS)
"""All files that the folder of a published model may hold."""

PRETRAINED = ("apples2oranges",)
"""The models that come with velogan: of the built-in set at 64x64 pixels, made by benchmarks/pretrained.py."""

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>[\w./-]+))?")
_ADDRESS = re.compile(r"hf:/{1,2}(?P<name>.*)")  # a Path keeps one of the two slashes


def resolve_model_path(path: Path | str) -> Path:
    """The path of a model. `hf://OWNER/NAME` and `hf://OWNER/NAME@REVISION` are downloaded where they are not kept yet.

    A name of `PRETRAINED` is the weights file that comes with velogan, unless there is such a path. Any other path is
    given back as it is.
    """
    if str(path) in PRETRAINED and not Path(path).exists():
        return Path(__file__).parent / "pretrained" / f"{path}.safetensors"
    found = _ADDRESS.fullmatch(str(path))
    return download(found["name"]) if found else Path(path)


def resolve_repo(path: Path | str) -> Path:
    """As `resolve_model_path`; the name of a repository is enough where there is no such folder or file."""
    if not Path(path).exists() and isinstance(path, str) and _NAME.fullmatch(path):
        return download(path)
    return resolve_model_path(path)


def download(name: str) -> Path:
    """The files of the model OWNER/NAME, or OWNER/NAME@REVISION, in the hub's cache; only weights and JSON are fetched.

    ValueError where there is no such model, or it is none of ours; OSError where it cannot be had.
    """
    parts = _NAME.fullmatch(name)
    if not parts:
        raise ValueError(
            f"hf://{name:.100} names no model of the hub: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION"
        )
    with _told(f"hf://{name}") as api:
        kept = api.snapshot_download(
            parts["repository"], revision=parts["revision"], allow_patterns=[CONFIG, MANIFEST, *WEIGHTS]
        )
    folder = Path(kept)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"hf://{name} holds no velogan model ({MANIFEST} is missing): name another")
    if wrong := damage(folder):
        raise OSError(f"hf://{name} was not downloaded whole: {wrong}; remove that folder and try again")
    return folder


def upload(folder: Path, name: str, *, private: bool | None, message: str) -> str:
    """Publishes the files of `folder` as OWNER/NAME, in one commit, and gives its address.

    The repository is made where there is none. What an earlier save has there and this one has not is removed.
    ValueError where that is not allowed; OSError where it fails.
    """
    with _told(name) as api:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        made = api.create_repo(name, private=private, exist_ok=True)
        files = {file: folder / file for file in NAMES if (folder / file).is_file()}
        stale = {*api.list_repo_files(made.repo_id)} & {*NAMES} - {*files}
        operations = [CommitOperationAdd(file, str(path)) for file, path in files.items()]
        operations += [CommitOperationDelete(file) for file in sorted(stale)]
        api.create_commit(made.repo_id, operations, commit_message=message)
    return str(made)


def require_hub() -> None:
    """Raises ValueError, which says what to install, where the hub's library is missing."""
    require("hub", "huggingface_hub", user="the hub")


@contextmanager
def _told(name: str) -> Iterator[Any]:
    """The hub's client; what it raises becomes one sentence.

    Its errors are of its HTTP library, too, which is another from version to version.
    """
    require_hub()
    from huggingface_hub import HfApi
    from huggingface_hub import errors as known

    mendable = {
        known.GatedRepoError: "its owner gives access on request: ask on its page, then log in with `hf auth login`",
        known.RepositoryNotFoundError: "there is none that you may see: check the name, or log in with `hf auth login`",
        known.RevisionNotFoundError: "it has no such revision: name another, or leave it out",
        known.HFValidationError: "that is no name of a model: write OWNER/NAME",
    }
    try:
        yield HfApi()
    except Exception as error:
        for kind, mend in mendable.items():
            if isinstance(error, kind):
                raise ValueError(f"{name}: {mend}") from None
        if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403):
            raise ValueError(f"{name}: the hub does not allow it: log in with `hf auth login`") from None
        reason = " ".join(str(error).split())[:300]
        raise OSError(f"{name}: the hub cannot be used: {type(error).__name__}: {reason}") from error
