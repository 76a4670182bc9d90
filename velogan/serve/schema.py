"""Requests and responses of the API. Clients must ignore unknown fields, since later versions may add some."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from velogan.translate.uncertainty import Patch
from velogan.types import Direction

Base64 = Annotated[bytes, PlainSerializer(lambda data: base64.b64encode(data).decode(), return_type=str)]


class TranslateForm(BaseModel):
    """The form of a translation request."""

    model_config = ConfigDict(extra="forbid")

    picture: UploadFile = Field(description="The picture file.")
    direction: Direction | None = Field(None, description="a2b or b2a. Default: the run's first.")
    answer: Literal["json", "picture"] = Field("json", description="json, or picture: only the translated file.")
    uncertainty: bool = Field(False, description="Add an uncertainty map; it takes seven times as long.")
    preview: bool = Field(False, description="Add both pictures for browsers: 8 bits, at most 1600 pixels a side.")


class Preview(BaseModel):
    """The input and the translation, as data URLs for browsers."""

    before: str
    after: str
    uncertainty: str | None = Field(None, description="Overlay for `after`: red, more opaque where more uncertain.")


class UncertaintyInfo(BaseModel):
    """The uncertainty of a translation; docs/evaluation.md says how reliable it is."""

    map: Base64 = Field(description="A grey PNG: 255 where the error is half of the range of values or more.")
    mean: float = Field(description="Mean of the map, in [0, 1].")
    highest: Patch = Field(description="The most uncertain square and its mean.")


class TranslateResponse(BaseModel):
    """A translated picture."""

    name: str = Field(description="The upload's name, with the suffix of the format.")
    direction: Direction
    width: int = Field(description="Width in pixels, after the EXIF rotation of the upload.")
    height: int = Field(description="Height in pixels.")
    format: str = Field(description="jpg, png, webp, tiff, bmp, ppm or npy; the upload's if possible.")
    media_type: str
    same_format: bool = Field(description="Whether the format is that of the upload.")
    seconds: float = Field(description="Time of decoding, translating and encoding, without waiting.")
    picture: Base64 = Field(description="The translated file, in base64.")
    preview: Preview | None = None
    uncertainty: UncertaintyInfo | None = None
    uncertainty_error: str | None = Field(None, description="Why a requested uncertainty map is missing.")


class Health(BaseModel):
    """The state of the server."""

    status: Literal["ok"] = "ok"
    waiting: int = Field(description="Number of requests running or queued.")


class ServerInfo(BaseModel):
    """Directions, formats and limits of the server."""

    name: str = Field(description="Name of the run.")
    directions: dict[Direction, str] = Field(description="Titles by direction.")
    uncertainty: list[Direction] = Field(description="The directions with uncertainty maps.")
    formats: list[str]
    max_upload_bytes: int
    max_pixels: int
    seconds: float
    version: str
