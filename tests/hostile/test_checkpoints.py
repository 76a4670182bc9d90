"""Run folders that someone else has made: a readable refusal, or the checkpoint before; nothing large is allocated."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from velogan.cli import main
from velogan.store.checkpoint import find_checkpoint, find_corruption, load_state, load_weights, read_best
from velogan.translate.model import load_translator

HUGE = 10**9


def _file(header: bytes | Mapping[str, Any], *, length: int | None = None, data: bytes = b"") -> bytes:
    """A safetensors file with any header, and any number as the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _network(**changes: Any) -> dict[str, str]:
    """The description of a network file, with fields changed."""
    config = {"network": "resnet", "channels": 2, "blocks": 1}
    channels = {"in_channels": 3, "out_channels": 3}
    told = {"format": "velogan-network", "role": "G_A", "network": "generator", "config": config} | channels | changes
    return {"velogan": json.dumps(told)}


def _tensor(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _described(**changes: Any) -> bytes:
    return _file({"__metadata__": _network(**changes)})


def _holding(**tensor: Any) -> bytes:
    return _file({"__metadata__": _network(), "a": _tensor(**tensor)}, data=bytes(8))


CRAFTED: dict[str, bytes] = {
    "empty": b"",
    "length alone": struct.pack("<Q", 100),
    "huge length": _file({}, length=2**64 - 1),
    "length beyond the file": _file({}, length=99_000_000),
    "no JSON": _file(b"this is not JSON "),
    "deep JSON": _file(b"[" * 100_000),
    "deep metadata": _file({"__metadata__": {"velogan": "[" * 100_000}}),
    "not UTF-8": _file(b"\xff" * 64),
    "no metadata": _file({"w": _tensor()}, data=bytes(8)),
    "description is a list": _file({"__metadata__": {"velogan": "[1, 2]"}}),
    "description is no JSON": _file({"__metadata__": {"velogan": "{"}}),
    "another format": _described(format="other"),
    "negative offsets": _holding(offsets=(-8, 0)),
    "offsets beyond the file": _holding(offsets=(0, 2**40)),
    "huge shape": _holding(shape=(2**40, 2**40)),
    "shape of text": _holding(shape="ab"),
    "unknown type": _holding(dtype="OBJECT"),
    "another type": _holding(dtype="I64", shape=(1,)),
    "no tensors": _described(),
    "tensors of other names": _file({"__metadata__": _network(), "exec": _tensor()}, data=bytes(8)),
    "role is a list": _described(role=["G_A"]),
    "a discriminator": _described(role="D_A"),
    "no config": _file({"__metadata__": {"velogan": '{"format": "velogan-network", "role": "G_A"}'}}),
    "config is text": _described(config="resnet"),
    "unknown field": _described(config={"network": "resnet", "exec": "rm"}),
    "unknown network": _described(config={"network": "os.system"}),
    "huge channels": _described(config={"channels": HUGE}),
    "many channels": _described(config={"channels": 20_000, "blocks": 40}),
    "huge blocks": _described(config={"channels": 2, "blocks": HUGE}),
    "many blocks": _described(config={"channels": 2, "blocks": 50_000}),
    "huge input": _described(config={"channels": 2}, in_channels=HUGE),
    "channels of text": _described(config={"channels": "x" * 9999}),
    "input of objects": _described(input={"channels": 3, "dtype": "object", "range": None}),
    "input without a range": _described(input={"channels": 3, "dtype": "uint8", "range": [1]}),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_rejects_crafted_weights(tmp_path: Path, name: str) -> None:
    file = tmp_path / "G_A.safetensors"
    file.write_bytes(CRAFTED[name])
    with pytest.raises(ValueError, match=r"G_A\.safetensors") as caught:
        load_translator(file)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 1500


def test_rejects_crafted_weights_in_little_memory(tmp_path: Path) -> None:
    """All of them in one process that may not have more than two gigabytes at any time."""
    for index, content in enumerate(CRAFTED.values()):
        (tmp_path / f"{index}.safetensors").write_bytes(content)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    code = """if True:
        import glob, resource, sys
        from velogan.cli import main
        codes = {main(["translate", file, "a.png", "b.png", "--device", "cpu"]) for file in glob.glob("*.safetensors")}
        print(codes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    codes, _, peak = done.stdout.strip().rpartition(" ")
    assert codes == "{2}"
    assert int(peak) < 2048
    assert not list(tmp_path.glob("pwned"))
    assert all(line.startswith("velogan: ") for line in done.stderr.splitlines() if ".safetensors" in line)


def test_rejects_what_is_not_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "nothing.safetensors").symlink_to("there is nothing")
    (tmp_path / "itself.safetensors").symlink_to("itself.safetensors")
    for name in ("folder", "nothing", "itself"):
        with pytest.raises(ValueError, match=f"{name}.safetensors"):
            load_translator(tmp_path / f"{name}.safetensors")


# The manifest and what stands beside it


def _newest(run: Path) -> Path:
    return run / "checkpoints" / "000000080"


FILES: dict[str, object] = {
    "a list": [1, 2],
    "text": "G_A.safetensors",
    "none": {},
    "a sum that is no text": {"G_A.safetensors": 3},
    "the folder above": {"../../config.yaml": "0" * 64},
    "a device": {"/dev/zero": "0" * 64},
    "a zero byte": {"a\0b": "0" * 64},
    "a long name": {"x" * 5000: "0" * 64},
}
MANIFESTS: dict[str, bytes] = {
    name: json.dumps({"images": 80, "files": files}).encode() for name, files in FILES.items()
}
MANIFESTS |= {
    "a number": b"3",
    "no files": b'{"images": 80}',
    "deep": b"[" * 100_000,
    "empty": b"",
    "bytes": b"\xff\xfe",
}


@pytest.mark.parametrize("name", [*MANIFESTS, "another file with its right sum"])
def test_a_hostile_manifest_marks_its_checkpoint_as_damaged(run: Path, name: str) -> None:
    outside = {"../../config.yaml": hashlib.sha256((run / "config.yaml").read_bytes()).hexdigest()}
    content = MANIFESTS.get(name, json.dumps({"images": 80, "files": outside}).encode())
    (_newest(run) / "manifest.json").write_bytes(content)
    assert find_corruption(_newest(run))
    assert find_checkpoint(run).name == "000000040"


def test_rejects_weights_that_are_a_link_to_a_device(run: Path) -> None:
    file = _newest(run) / "G_A.safetensors"
    file.unlink()
    file.symlink_to("/dev/zero")
    assert find_corruption(_newest(run))


NAMES = ("../../../../etc", "..", "/etc", "", ".", "000000040/../../..", "a\0b", "x" * 5000, 40, ["000000040"])


@pytest.mark.parametrize("best", [*({"checkpoint": name} for name in NAMES), "000000040", None, "deep"], ids=ascii)
def test_rejects_a_best_checkpoint_outside_of_the_run(run: Path, best: object) -> None:
    (run / "checkpoints" / "best.json").write_text("[" * 100_000 if best == "deep" else json.dumps(best))
    assert read_best(run) is None
    with pytest.raises(ValueError, match="no best checkpoint"):
        find_checkpoint(run, "best")


# The state of training


def _deep(depth: int) -> str:
    return '{"list": [' * depth + '{"value": 1}' + "]}" * depth


TREES = (
    "[]",
    "{}",
    "{",
    '{"tensor": "missing"}',
    '{"tensor": ["00000"]}',
    '{"dict": [[1, 2, 3]]}',
    '{"list": {"a": 1}}',
)
TREES += ('{"exec": "os.system"}', '{"value": 1, "list": []}', _deep(800), _deep(100_000), None)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: ascii(tree)[:30])
def test_rejects_a_hostile_state(run: Path, tree: str | None) -> None:
    header = {"__metadata__": {} if tree is None else {"tree": tree}, "00000": _tensor()}
    (_newest(run) / "state.safetensors").write_bytes(_file(header, data=bytes(8)))
    with pytest.raises(ValueError, match=r"state\.safetensors"):
        load_state(_newest(run))


@pytest.mark.parametrize(
    "clock", [b"3", b"null", b"{", b"\xff", b"", b"[" * 100_000], ids=lambda clock: ascii(clock)[:9]
)
def test_rejects_a_hostile_clock(run: Path, clock: bytes) -> None:
    (_newest(run) / "clock.json").write_bytes(clock)
    with pytest.raises(ValueError, match=r"clock\.json"):
        load_state(_newest(run))


# Whole commands


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, list[str]]:
    """A run that has trained on a few images, and the command that continues it."""
    flags = """train cyclegan --data apples2oranges --image-size 32 --train.samples 0 --train.logger none
        --data.render-count 4 --data.render-test 2 --discriminator.channels 4 --generator.channels 4
        --generator.blocks 1 --engine.threads 1 --engine.precision fp32 --engine.kernels plain --images 2"""
    command = [*flags.split(), "--out", str(tmp_path / "run")]
    assert main(command) == 0
    return tmp_path / "run", [*command[:-3], "3", "--out", str(tmp_path / "run")]


def _sign(folder: Path) -> None:
    """Give the manifest the sums of what is there, so that only the content is wrong."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in manifest["files"]
    }  # fmt: skip
    file.write_text(json.dumps(manifest))


def test_rejects_resuming_from_a_hostile_checkpoint(
    trained: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    run, command = trained
    (folder,) = (run / "checkpoints").glob("0*")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def plain(**fields: object) -> bytes:
        return json.dumps(fields).encode()

    attacks: list[tuple[str, bytes]] = [
        ("clock.json", b'"soon"'),
        ("clock.json", plain(seconds="soon", speed=None)),
        ("clock.json", plain(seconds=1e999, speed=[1])),
        ("state.safetensors", _file({"__metadata__": {"tree": '{"dict": []}'}})),
        ("state.safetensors", _file({"__metadata__": {"tree": '{"dict": [["schedule", {"value": 3}]]}'}})),
        ("G_A.safetensors", _file({"__metadata__": _network()})),
        ("G_A.safetensors", _file({"__metadata__": _network(), "exec": _tensor()}, data=bytes(8))),
        ("D_B.safetensors", CRAFTED["description is a list"]),
    ]
    for name, content in attacks:
        for path, data in whole.items():
            (folder / path).write_bytes(data)
        (folder / name).write_bytes(content)
        _sign(folder)
        capfd.readouterr()
        assert main(command) == 2, name
        assert folder.name in capfd.readouterr().err
        assert (folder / name).read_bytes() == content  # nothing was removed or replaced


def test_rejects_absurd_sizes_in_a_run_before_they_are_allocated(
    trained: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    text = (run / "config.yaml").read_text()
    assert "  channels: 4\n" in text
    (run / "config.yaml").write_text(text.replace("  channels: 4\n", f"  channels: {HUGE}\n"))
    assert main(["train", "--config", str(run), "--out", str(run / "again")]) == 2
    assert "channels" in capfd.readouterr().err


def test_a_valid_run_loads(run: Path) -> None:
    translator = load_translator(run)
    assert translator(torch.zeros(1, 3, 16, 16)).shape == (1, 3, 16, 16)
    assert load_weights(_newest(run) / "G_A.safetensors")[0]["role"] == "G_A"
