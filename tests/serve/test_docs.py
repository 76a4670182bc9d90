"""docs/serve.md agrees with the server."""

from __future__ import annotations

import re
from pathlib import Path

import velogan.serve
from velogan.cli.serve import Serve
from velogan.serve.schema import ServerInfo, TranslateForm, TranslateResponse

TEXT = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()


def test_lists_every_error_status():
    source = "".join(file.read_text() for file in Path(velogan.serve.__path__[0]).glob("*.py"))
    statuses = set(re.findall(r"HTTPException\((\d+)", source)) | set(re.findall(r"}, (\d{3})\)", source))
    assert statuses <= set(re.findall(r"\d{3}", "".join(re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE))))


def test_lists_every_field_and_limit():
    for model in (TranslateForm, TranslateResponse, ServerInfo):
        for name in model.model_fields:
            assert f"`{name}`" in TEXT, name
    limits = dict(re.findall(r"^\| `--([a-z-]+)` \| (\d+) \|", TEXT, re.MULTILINE))
    assert limits == {
        flag.replace("_", "-"): str(getattr(Serve(model=Path()), flag))
        for flag in ("max_mb", "max_megapixels", "seconds", "waiting")
    }
