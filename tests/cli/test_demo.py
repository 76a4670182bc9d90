from __future__ import annotations

import json
from pathlib import Path

import pytest

from velogan.cli import demo, main


def test_the_demo_ends_by_images_or_by_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    tiny = demo.RECIPES["demo"]().change(
        data={"crop_size": 32, "render_count": 2, "render_test": 1},
        generator={"channels": 2, "blocks": 1},
        discriminator={"channels": 2},
        train={"length": "4 images", "logger": "none", "samples": 1},
        engine={"mode": "eager", "threads": 1, "precision": "fp32"},
    )

    def run_demo(length: str, *words: str) -> tuple[dict[str, object], str]:
        monkeypatch.setitem(demo.RECIPES, "demo", lambda: tiny.change(train={"length": length}))
        assert main(["demo", "--out", str(tmp_path / "run"), "--json", *words]) == 0
        output = capsys.readouterr()
        return json.loads(output.out.splitlines()[-1]), output.err

    result, messages = run_demo("4 images")
    assert (result["images_seen"], result["finished"]) == (4, True)
    assert "trained on 4 images" in messages
    result, messages = run_demo("1000000 images", "--minutes", "0.02")
    assert not result["finished"]
    assert "training was stopped after 0.02 min, before 1000000 images" in messages
