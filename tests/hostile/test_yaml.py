"""Configurations that someone else has written: plain values or a readable refusal, at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from velogan.cli import main
from velogan.config import Config, read_config, to_yaml

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))

HOSTILE: dict[str, str | bytes] = {
    "an object": "!!python/object/apply:os.system ['touch pwned']",
    "an object in a field": "train: !!python/object/new:os.system ['touch pwned']",
    "a name": "data: !!python/name:os.system",
    "a tag of its own": "data: !velogan {path: [a]}",
    "a billion laughs in a field": LAUGHS + "data: {path: *a39}\n",
    "a circle": "data: &a {path: *a}",
    "merged into itself": "data: &a {<<: *a}",
    "deep closed lists": "data: " + "[" * 20_000 + "]" * 20_000,
    "deep mappings": "".join(f"{' ' * depth}a:\n" for depth in range(1200)),
    "empty": "",
    "two documents": "train: {}\n---\ntrain: {}",
    "not closed": 'data: {path: ["',
    "not UTF-8": b"data: \xff\xfe\x00",
    "zero bytes": b"\x00" * 4096,
    "control characters": "data: \x1b[2J",
    "unknown fields": "data:\n" + "".join(f"  a{index}: 1\n" for index in range(20_000)),
    "a long name": "x" * 500_000 + ": 1",
    "a section of text": "data: words",
    "keys that are lists": "{[a, b]: c}",
    "a number of thousands of digits": "train: {seed: " + "9" * 9000 + "}",
    "a number of sixties": "generator: {channels: " + "1:" * 4000 + "1}",
    "no number": "optimizer: {lr: .nan}",
    "an infinity": "data: {crop_size: .inf}",
    "huge channels": "generator: {channels: 1000000000}",
    "huge blocks": "generator: {blocks: 1000000000}",
    "a deep discriminator": "discriminator: {layers: 1000000000}",
    "huge crop": "data: {crop_size: 1000000000000}",
    "huge threads": "engine: {threads: 1000000000}",
    "no duration": "train: {length: '1e999 images'}",
    "a range the wrong way round": "data: {range_a: [1, 0]}",
    "a section twice": "train: {seed: 1}\ndata: {}\ntrain: {length: 3 images}",
    "too large": "# " + "x" * 2**21,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", HOSTILE)
def test_rejects_hostile_configurations(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, file = HOSTILE[name], tmp_path / "config.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "run"), "--dry-run"]) == 2
    message = capfd.readouterr().err
    assert message.startswith("velogan: ")
    assert "config.yaml" in message
    assert len(message) < 5000
    assert all(character.isprintable() or character == "\n" for character in message), ascii(message)
    assert not (tmp_path / "pwned").exists()


def test_rejects_what_is_not_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "itself.yaml").symlink_to("itself.yaml")
    (tmp_path / "zeros.yaml").symlink_to("/dev/zero")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("folder", "itself.yaml", "zeros.yaml", "pipe.yaml", "missing.yaml"):
        with pytest.raises(ValueError, match="file not found"):
            read_config(tmp_path / name)


def test_reads_a_written_configuration(tmp_path: Path) -> None:
    config = Config().change(data={"range_a": (0, 4095), "range_b": (0, 4095), "path": ("ä\n\x1b", "b")})
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert read_config(tmp_path) == config
