"""Builds the documentation as a site: `make docs`. The pages are readable as they are, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

from velogan import __version__

project = "velogan"
version = release = __version__
copyright = "the velogan authors"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "fields"]
exclude_patterns = ["site", "search.md"]  # Sphinx has a page of that name: see COPIED
smartquotes = False  # they make one dash of the two of a flag
default_role = "code"  # docstrings write `name`
html_theme = "furo"
html_title = f"velogan {__version__}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_copyright = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True

OF_THE_CHECKOUT = {
    "](../README.md": "](start.md",
    "](docs/": "](",
    "](benchmarks/RECORDS.md": "](records.md",
    "](../benchmarks/RECORDS.md": "](records.md",
    "](RECORDS.md": "](records.md",
    "](benchmarks/LOG.md": "](log.md",
    "](../benchmarks/LOG.md": "](log.md",
    "](LOG.md": "](log.md",
    "](CHANGELOG.md": "](changes.md",
    "](CONTRIBUTING.md": "](contributing.md",
    "](../CONTRIBUTING.md": "](contributing.md",
    "](search.md": "](searching.md",
    "](LICENSE": "](https://opensource.org/license/mit",
}
"""Links between files of the checkout, and what they lead to within the site."""

COPIED = {
    "start": "README.md",
    "changes": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "records": "benchmarks/RECORDS.md",
    "log": "benchmarks/LOG.md",
    "searching": "docs/search.md",
}
"""Pages that are files outside this folder, or of a name that Sphinx takes."""


def _read(app, name: str, source: list[str]) -> None:
    """Takes the text of a page from the file that it stands for, and leads its links to pages."""
    if name in COPIED:
        source[0] = (Path(__file__).parents[1] / COPIED[name]).read_text(encoding="utf-8")
    for link, page in OF_THE_CHECKOUT.items():
        source[0] = source[0].replace(link, page)


def setup(app) -> None:
    app.connect("source-read", _read)
