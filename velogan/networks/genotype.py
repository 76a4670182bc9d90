"""What an architecture search found: the operations of every network, as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from velogan.networks.cells import Space, blocks_of, check_operations, discriminator_kinds, generator_kinds
from velogan.types import Direction

Operations = tuple[str, ...]

_MOST_BYTES = 2**20


class Genotype(BaseModel):
    """The operations of generators and discriminators by direction, in the order in which they run.

    `discriminators` judge what the generators of the same direction make; without them, a run's own configuration says
    what they are. `hidden` are the feature maps of the encodings, H, that it was found for, if for any. `provenance` is
    free: what searched, on which data, for how long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: Space = "paper"
    generators: Mapping[Direction, Operations] = Field(min_length=1)
    discriminators: Mapping[Direction, Operations] = {}
    hidden: Mapping[Direction, Annotated[int, Field(ge=1, le=4096)]] = {}
    provenance: Mapping[str, Any] = {}

    @model_validator(mode="after")
    def _fits_the_space(self) -> Genotype:
        for way, names in self.generators.items():
            try:
                blocks = blocks_of(names, self.space)
                kinds = generator_kinds(blocks, self.space)
                check_operations(names, kinds, space=self.space, network=f"a generator of {blocks + 2} cells")
            except ValueError as error:
                raise ValueError(f"generators.{way}: {error}") from None
        if self.hidden and self.hidden.keys() != self.generators.keys():
            raise ValueError(f"hidden is of {' and '.join(self.hidden)}: give the width of each of the generators")
        for way, names in self.discriminators.items():
            kinds = discriminator_kinds(self.space)
            try:
                check_operations(names, kinds, space=self.space, network="a discriminator")
            except ValueError as error:
                raise ValueError(f"discriminators.{way}: {error}") from None
        return self

    @field_validator("generators", "discriminators", "hidden")
    @classmethod
    def _from_a_to_b(cls, value: Mapping[Direction, Any]) -> Mapping[Direction, Any]:
        if value and "a2b" not in value:
            raise ValueError("there is no a2b: name what the network of that direction has")
        return value

    def text(self) -> str:
        """As JSON, which `read_genotype` reads."""
        return self.model_dump_json(indent=1) + "\n"


def read_genotype(path: Path) -> Genotype:
    """The genotype in a JSON file. ValueError, naming the file, the field and the mend, where there is none."""
    if not path.is_file():
        raise ValueError(f"--genotype {path}: there is no such file; name the JSON file that a search wrote")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"--genotype {path} is no genotype: it has {path.stat().st_size} bytes, not a few thousand")
    try:
        return Genotype.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"--genotype {path} is no genotype: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """The first thing that is wrong: its field, its value and the mend."""
    wrong = error.errors()[0]
    place, why = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
    match wrong["type"]:
        case "json_invalid":
            return f"it is not JSON ({why}); name the file that a search wrote"
        case "extra_forbidden":
            return f"{place}: there is no such field; there are {', '.join(Genotype.model_fields)}"
        case "missing":
            return f"{place} is missing; it holds the operations by direction, a2b and b2a"
        case "value_error":
            return f"{place}: {why}" if place else why
    return f"{place}={wrong['input']!r:.60}: {why[:1].lower()}{why[1:]}" if place else f"{why[:1].lower()}{why[1:]}"
