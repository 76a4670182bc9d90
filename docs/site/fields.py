"""Two directives: `velogan-commands` lists the commands, `velogan-fields` the fields of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from docutils.statemachine import StringList
from pydantic.fields import FieldInfo
from sphinx.util.docutils import SphinxDirective

from velogan.cli.commands import COMMANDS
from velogan.config import Config
from velogan.methods import METHODS


class Generated(SphinxDirective):
    """A directive whose content is made here, as Markdown."""

    def run(self) -> list[Any]:
        """Its nodes."""
        self.content = StringList(list(self.lines()), source=type(self).__name__)
        return self.parse_content_to_nodes(allow_section_headings=True)

    def lines(self) -> Iterator[str]:
        """The lines of Markdown."""
        raise NotImplementedError


class Commands(Generated):
    """The list that `velogan --help` prints."""

    def lines(self) -> Iterator[str]:
        yield from ("| command | what it does |", "|---|---|")
        for words, command in COMMANDS.items():
            yield f"| `velogan {' '.join(words)}` | {command.summary} |"


class Fields(Generated):
    """A table for each section, with the texts of the command line's help."""

    def lines(self) -> Iterator[str]:
        for section, field in Config.model_fields.items():
            if section == "method":
                for kind, method in METHODS.items():
                    yield from _table(f"method, of kind {kind}", method.model_fields, method.summary)
            elif section.endswith("_b"):
                same = f"The fields are those of `{section[:-2]}`."
                yield from (f"### {section}", "", f"{field.description} {same}", "")
            else:
                yield from _table(section, field.annotation.model_fields, "")  # pyright: ignore


def _table(title: str, fields: dict[str, FieldInfo], text: str) -> Iterator[str]:
    yield from (f"### {title}", "", text, "", "| field | default | what it is |", "|---|---|---|")
    for name, field in fields.items():
        if field.description:
            values = _choices(field.annotation)
            said = f"{field.description} {f'One of {values}.' if values else ''}"
            yield f"| `{name}` | `{_shown(field.default)}` | {_escaped(said)} |"
    yield ""


def _choices(kind: Any) -> str:
    return ", ".join(f"`{value}`" for value in get_args(kind)) if get_origin(kind) is Literal else ""


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _escaped(text: str) -> str:
    """A text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("_*", "_\\*").replace("<", "&lt;")


def setup(app: Any) -> dict[str, bool]:
    """For Sphinx."""
    app.add_directive("velogan-commands", Commands)
    app.add_directive("velogan-fields", Fields)
    return {"parallel_read_safe": True}
