"""The limits of requests, and the refusal of one that is not served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of each request, and of all together. ValueError, which names the flag, for a bound that admits nothing.

    `upload_bytes` of a request's body; `pixels` of a picture; `seconds` for the upload, and as many for the
    translation, waiting included; `waiting`: requests taken in at once, from the upload's first byte to the answer.
    """

    upload_bytes: int = 32 * 2**20
    pixels: int = 16 * 10**6
    seconds: float = 300
    waiting: int = 16

    def __post_init__(self) -> None:
        for flag, value, least in (
            ("--max-mb", self.upload_bytes / 2**20, 2**-10),
            ("--max-megapixels", self.pixels / 10**6, 10**-6),
            ("--seconds", self.seconds, 10**-3),
            ("--waiting", self.waiting, 1),
        ):
            if not least <= value <= 10**6:
                raise ValueError(f"{flag} {value:g}: give a number from {least:g} to 1000000")


class Refusal(Exception):
    """A request that is not served: the HTTP status, a word for programs, a sentence for people.

    `after`: seconds after which the same request may succeed.
    """

    def __init__(self, status: int, code: str, message: str, *, after: int | None = None):
        super().__init__(message)
        self.status, self.code, self.message, self.after = status, code, message, after
