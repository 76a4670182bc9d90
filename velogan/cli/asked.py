"""What every command is: a dataclass whose fields are its flags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import tyro

Json = Annotated[bool, tyro.conf.arg(help="Print the result as one JSON object, the last line on stdout.")]

Weights = Annotated[
    Literal["ema", "raw"] | None,
    tyro.conf.arg(help="As translate has it. Default: ema, where kept.", metavar="ema|raw"),
]
Checkpoint = Annotated[
    Literal["last", "best"], tyro.conf.arg(help="The last checkpoint of a run, or the best by validation.")
]

EXACT = "Compute in plain float32, not with the accelerated network, which differs by a few levels of 8 bits."

Outcome = tuple[dict[str, Any], int]
"""What a command gives: the object that --json prints, and the exit code."""


class Asked(ABC):
    """A command with what was asked of it. Its texts are the help, from the second paragraph of its docstring on."""

    json: bool

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str, description: str) -> Self:
        """From its flags. What is wrong with them ends the process with a message and exit code 2."""
        return tyro.cli(cls, args=argv, prog=prog, description=description)

    @abstractmethod
    def execute(self, argv: list[str]) -> Outcome:
        """Does it; `argv` is the whole command line. ValueError for what the user can mend."""
