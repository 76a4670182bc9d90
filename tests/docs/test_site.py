"""The documentation builds as a site, without a warning, and holds what the docstrings say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "doctrees")]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, str(ROOT / "docs"), str(tmp_path / "site")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {page.stem: page.read_text() for page in (tmp_path / "site").glob("*.html")}
    texts = {name: re.sub(r"<[^>]+>", "", page) for name, page in pages.items()}
    assert "PIL image" in texts["reference"]
    assert "Side of the square the networks see." in texts["reference"]
    assert "velogan data check" in texts["reference"]
    assert "make demo" in texts["start"]
    assert "genotype" in texts["searching"]
    for name, page in pages.items():
        links = [link for link in re.findall(r'href="([^"#]*)', page) if not link.startswith(("http", "_sources/"))]
        missing = [link for link in links if link and not (tmp_path / "site" / link.partition("?")[0]).is_file()]
        assert not missing, name
        assert not re.findall(r'(?: src|<link[^>]* href)="(?:https?:)?//', page), f"{name} asks the network"
