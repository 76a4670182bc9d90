"""Reading of an upload: the picture and the fields of a form, in memory, within the limits, never on a disk."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator
from contextlib import closing

from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from velogan.serve.limits import Limits, Refusal
from velogan.serve.schema import TranslateForm

_MOST_NAME = 255
_MOST_FIELD = 1000  # bytes


class _InMemory(MultiPartParser):
    spool_max_size = 2**62  # never a temporary file: `_counted` bounds the body

    def close(self) -> None:
        """Closes every file, also one that an incomplete form left open."""
        for file in self._files_to_close_on_error:
            file.close()


async def read_upload(request: Request, limits: Limits) -> tuple[TranslateForm, str, bytes]:
    """The fields, the picture's name and its bytes. Raises `Refusal`."""
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refusal(415, "no_form", "send a form (multipart/form-data) with the picture in its field `picture`")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > limits.upload_bytes:
        raise _too_large(limits)
    parser = _InMemory(request.headers, _counted(request, limits), max_files=1, max_fields=8, max_part_size=_MOST_FIELD)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refusal(400, "bad_form", f"this form cannot be read: {error.message}") from None
    except ClientDisconnect:
        raise Refusal(400, "gone", "the connection was closed before the upload was complete") from None
    with closing(parser):
        picture = form.get("picture")
        if not isinstance(picture, UploadFile):
            raise Refusal(400, "no_picture", "the form has no file in its field `picture`")
        name = _checked(picture.filename or "picture")
        return _asked(form.multi_items()), name, picture.file.read()


async def _counted(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    seen = 0
    async for chunk in request.stream():
        seen += len(chunk)
        if seen > limits.upload_bytes:
            raise _too_large(limits)
        yield chunk


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, "too_large", f"more than {limits.upload_bytes / 2**20:g} MB: send a smaller file")


def _asked(items: list[tuple[str, str | UploadFile]]) -> TranslateForm:
    fields = {name: value for name, value in items if name != "picture"}
    if len(fields) < len(items) - 1:
        raise Refusal(400, "bad_field", "the form has a field twice: send each once")
    try:
        return TranslateForm.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:40]
        known = ", ".join(("picture", *TranslateForm.model_fields))
        mend = f"the fields are {known}" if first["type"] == "extra_forbidden" else first["msg"].lower()
        raise Refusal(400, "bad_field", f"field {where!a}: {mend}") from None


def _checked(name: str) -> str:
    """`name`, which is only ever sent back. Raises `Refusal` where it is more than the name of a file."""
    odd = any(unicodedata.category(letter)[0] == "C" for letter in name)
    if odd or name in (".", "..") or "/" in name or "\\" in name or len(name) > _MOST_NAME:
        raise Refusal(
            400, "bad_name", "the file's name has a folder, a control character or too many letters in it: rename it"
        )
    return name
