"""docs/serve.md agrees with the server."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import velogan.serve
from velogan.cli.serve import Serve
from velogan.serve.schema import ServerInfo, Translated, TranslateForm

from .conftest import Served, png

TEXT = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()


def test_lists_every_error_status():
    source = "".join(file.read_text() for file in Path(velogan.serve.__path__[0]).glob("*.py"))
    statuses = set(re.findall(r"HTTPException\((\d+)", source)) | set(re.findall(r"}, (\d{3})\)", source))
    assert statuses <= set(re.findall(r"\d{3}", "".join(re.findall(r"^\| ([\d, ]+) \|", TEXT, re.MULTILINE))))


def test_lists_every_field_and_limit():
    for model in (TranslateForm, Translated, ServerInfo):
        for name in model.model_fields:
            assert f"`{name}`" in TEXT, name
    limits = dict(re.findall(r"^\| `--([a-z-]+)` \| (\d+) \|", TEXT, re.MULTILINE))
    assert limits == {
        flag.replace("_", "-"): str(getattr(Serve(model=Path()), flag))
        for flag in ("max_mb", "max_megapixels", "seconds", "waiting")
    }


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_call_by_curl_works(server: Served, tmp_path: Path):
    (line,) = re.findall(r"curl -F .*?/api/translate", TEXT)
    (tmp_path / "horse.jpg").write_bytes(png())
    words = shlex.split(line.replace("http://127.0.0.1:8000", server.url))
    subprocess.run([*words, "-sS", "--noproxy", "*"], cwd=tmp_path, check=True)
    assert (tmp_path / "zebra.jpg").read_bytes().startswith(b"\x89PNG")
