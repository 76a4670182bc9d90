"""The result of an architecture search: the operations of its networks, as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from velogan.networks.cells import Space, check_operations, count_blocks, discriminator_kinds, generator_kinds
from velogan.types import Direction

Operations = tuple[str, ...]

_MAX_BYTES = 2**20


class Genotype(BaseModel):
    """The operations of generators and discriminators by direction, in order of execution.

    `discriminators`: by the direction of the generators whose outputs they classify; empty: a run's configuration
    defines them.
    `hidden`: H, the number of feature maps of the generators' encodings; empty: a run's configuration defines it.
    `provenance`: program, data and duration of the search, in free form.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: Space = "paper"
    generators: Mapping[Direction, Operations] = Field(min_length=1)
    discriminators: Mapping[Direction, Operations] = {}
    hidden: Mapping[Direction, Annotated[int, Field(ge=1, le=4096)]] = {}
    provenance: Mapping[str, Any] = {}

    @model_validator(mode="after")
    def _check_space(self) -> Genotype:
        for direction, names in self.generators.items():
            try:
                blocks = count_blocks(names, self.space)
                kinds = generator_kinds(blocks, self.space)
                check_operations(names, kinds, space=self.space, network=f"a generator of {blocks + 2} cells")
            except ValueError as error:
                raise ValueError(f"generators.{direction}: {error}") from None
        if self.hidden and self.hidden.keys() != self.generators.keys():
            raise ValueError(f"hidden has only {' and '.join(self.hidden)}: set the width of each of the generators")
        for direction, names in self.discriminators.items():
            kinds = discriminator_kinds(self.space)
            try:
                check_operations(names, kinds, space=self.space, network="a discriminator")
            except ValueError as error:
                raise ValueError(f"discriminators.{direction}: {error}") from None
        return self

    @field_validator("generators", "discriminators", "hidden")
    @classmethod
    def _check_a2b(cls, value: Mapping[Direction, Any]) -> Mapping[Direction, Any]:
        if value and "a2b" not in value:
            raise ValueError("a2b is missing: add the value for that direction")
        return value

    def to_json(self) -> str:
        """Return the genotype as JSON, which `read_genotype` reads."""
        return self.model_dump_json(indent=1) + "\n"


def read_genotype(path: Path) -> Genotype:
    """Read the genotype in a JSON file. Raises ValueError, with the field and a hint, if it is not valid."""
    if not path.is_file():
        raise ValueError(f"--genotype {path}: file not found; name the JSON file that a search wrote")
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"--genotype {path} is not a genotype: it has {path.stat().st_size} bytes, not a few thousand")
    try:
        return Genotype.model_validate_json(path.read_bytes())
    except ValidationError as error:
        details = error.errors()[0]
        field = "".join(f"{name}: " for name in [".".join(map(str, details["loc"]))] if name)
        message = details["msg"].removeprefix("Value error, ")
        raise ValueError(f"--genotype {path} is not a genotype: {field}{message}; name a search's file") from None
