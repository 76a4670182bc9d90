"""What the API takes and gives. Programs must ignore fields that they do not know: later versions add some."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from velogan.translate.uncertainty import Patch
from velogan.types import Direction

Base64 = Annotated[bytes, PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str)]


class TranslateForm(BaseModel):
    """The fields of a request."""

    model_config = ConfigDict(extra="forbid")

    picture: UploadFile = Field(description="The picture's file.")
    direction: Direction | None = Field(None, description="a2b or b2a. Default: the first that the run has.")
    answer: Literal["json", "picture"] = Field("json", description="picture: the translated file alone.")
    uncertainty: bool = Field(False, description="Add a map of where not to trust it, which takes seven times as long.")
    preview: bool = Field(False, description="Add both pictures for a browser: 8 bits, at most 1600 pixels a side.")


class Preview(BaseModel):
    """Both pictures as a browser shows them, as data URLs."""

    before: str
    after: str
    uncertainty: str | None = Field(
        None, description="Red, the less transparent the more uncertain; to be laid over `after`."
    )


class UncertaintyInfo(BaseModel):
    """Where not to trust a translation: docs/evaluation.md says what this is worth."""

    map: Base64 = Field(description="A grey PNG: 255 where the picture is off by half of the range of values, or more.")
    mean: float = Field(description="Over the whole map, in [0, 1].")
    highest: Patch = Field(description="The most uncertain square, with the mean there.")


class Translated(BaseModel):
    """A translated picture."""

    name: str = Field(description="The upload's name; its ending fits the format.")
    direction: Direction
    width: int = Field(description="In pixels: that of the upload, upright.")
    height: int
    format: str = Field(description="jpg, png, webp, tiff, bmp, ppm or npy: the upload's, if it holds the result.")
    media_type: str
    kept_format: bool = Field(description="Whether the format is that of the upload.")
    seconds: float = Field(description="Of decoding, translating and encoding, without waiting.")
    picture: Base64 = Field(description="The bytes of the translated file, in base64.")
    preview: Preview | None = None
    uncertainty: UncertaintyInfo | None = None
    no_uncertainty: str | None = Field(None, description="Why there is no uncertainty map, where one was asked for.")


class Health(BaseModel):
    """Whether the server works."""

    status: Literal["ok"] = "ok"
    waiting: int = Field(description="Requests that are being served.")


class ServerInfo(BaseModel):
    """What this server translates, and what it takes."""

    name: str = Field(description="The run's.")
    directions: dict[Direction, str] = Field(description="The directions that the run has, each with a title.")
    uncertainty: list[Direction] = Field(description="The directions that uncertainty maps can be made for.")
    formats: list[str]
    max_upload_bytes: int
    max_pixels: int
    seconds: float
    version: str
