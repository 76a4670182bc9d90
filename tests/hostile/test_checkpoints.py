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
from velogan.store.checkpoint import damage, find_checkpoint, load_state, load_weights, read_best
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


CRAFTED: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\0",
    "length alone": struct.pack("<Q", 100),
    "huge length": _file({}, length=2**63),
    "length beyond the file": _file({}, length=99_000_000),
    "length of all bits": _file({}, length=2**64 - 1),
    "no JSON": _file(b"this is not JSON "),
    "deep JSON": _file(b"[" * 100_000),
    "deep metadata": _file({"__metadata__": {"velogan": "[" * 100_000}}),
    "not UTF-8": _file(b"\xff" * 64),
    "a list": _file(b"[]"),
    "no metadata": _file({"w": _tensor()}, data=bytes(8)),
    "metadata of numbers": _file({"__metadata__": {"velogan": 3}}),
    "description is a list": _file({"__metadata__": {"velogan": "[1, 2]"}}),
    "description is no JSON": _file({"__metadata__": {"velogan": "{"}}),
    "description is null": _file({"__metadata__": {"velogan": "null"}}),
    "another format": _file({"__metadata__": _network(format="other")}),
    "overlapping offsets": _file(
        {"__metadata__": _network(), "a": _tensor(), "b": _tensor(offsets=(4, 12))}, data=bytes(12)
    ),
    "negative offsets": _file({"__metadata__": _network(), "a": _tensor(offsets=(-8, 0))}, data=bytes(8)),
    "offsets the wrong way round": _file({"__metadata__": _network(), "a": _tensor(offsets=(8, 0))}, data=bytes(8)),
    "offsets beyond the file": _file({"__metadata__": _network(), "a": _tensor(offsets=(0, 2**40))}, data=bytes(8)),
    "negative shape": _file({"__metadata__": _network(), "a": _tensor(shape=(-2,))}, data=bytes(8)),
    "huge shape": _file({"__metadata__": _network(), "a": _tensor(shape=(2**40, 2**40))}, data=bytes(8)),
    "shape of text": _file({"__metadata__": _network(), "a": _tensor(shape="ab")}, data=bytes(8)),
    "unknown type": _file({"__metadata__": _network(), "a": _tensor("OBJECT")}, data=bytes(8)),
    "another type": _file({"__metadata__": _network(), "a": _tensor("I64", (1,))}, data=bytes(8)),
    "no tensors": _file({"__metadata__": _network()}),
    "tensors of other names": _file({"__metadata__": _network(), "exec": _tensor()}, data=bytes(8)),
    "no role": _file({"__metadata__": _network(role=None)}),
    "role is a list": _file({"__metadata__": _network(role=["G_A"])}),
    "a discriminator": _file({"__metadata__": _network(role="D_A")}),
    "no config": _file({"__metadata__": {"velogan": '{"format": "velogan-network", "role": "G_A"}'}}),
    "config is text": _file({"__metadata__": _network(config="resnet")}),
    "config is a list": _file({"__metadata__": _network(config=[1])}),
    "unknown field": _file({"__metadata__": _network(config={"network": "resnet", "exec": "rm"})}),
    "unknown network": _file({"__metadata__": _network(config={"network": "os.system"})}),
    "huge channels": _file({"__metadata__": _network(config={"channels": HUGE})}),
    "many channels": _file({"__metadata__": _network(config={"channels": 20_000, "blocks": 40})}),
    "huge blocks": _file({"__metadata__": _network(config={"channels": 2, "blocks": HUGE})}),
    "many blocks": _file({"__metadata__": _network(config={"channels": 2, "blocks": 50_000})}),
    "huge input": _file({"__metadata__": _network(config={"channels": 2}, in_channels=HUGE)}),
    "negative channels": _file({"__metadata__": _network(config={"channels": -4})}),
    "channels of text": _file({"__metadata__": _network(config={"channels": "x" * 9999})}),
    "channels are no number": _file({"__metadata__": _network(config={"channels": float("nan")})}),
    "input of text": _file({"__metadata__": _network(input="uint8")}),
    "input of objects": _file({"__metadata__": _network(input={"channels": 3, "dtype": "object", "range": None})}),
    "input without a range": _file({"__metadata__": _network(input={"channels": 3, "dtype": "uint8", "range": [1]})}),
    "input of another field": _file({"__metadata__": _network(input={"exec": 1})}),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
    "an archive": b"PK\x03\x04" + bytes(60),
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_weights(tmp_path: Path, name: str) -> None:
    file = tmp_path / "G_A.safetensors"
    file.write_bytes(CRAFTED[name])
    with pytest.raises(ValueError, match=r"G_A\.safetensors") as caught:
        load_translator(file)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 1500


def test_memory_and_exit_code(tmp_path: Path) -> None:
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


def test_no_weights_file(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "nothing.safetensors").symlink_to("there is nothing")
    (tmp_path / "itself.safetensors").symlink_to("itself.safetensors")
    for name in ("folder", "nothing", "itself"):
        with pytest.raises(ValueError, match=f"{name}.safetensors"):
            load_translator(tmp_path / f"{name}.safetensors")


# The manifest and what stands beside it


def _newest(run: Path) -> Path:
    return run / "checkpoints" / "000000080"


MANIFESTS: dict[str, object] = {
    "number": 3,
    "null": None,
    "list": [],
    "no files": {"images": 80},
    "files are a list": {"images": 80, "files": [1, 2]},
    "files are text": {"images": 80, "files": "G_A.safetensors"},
    "no file at all": {"images": 80, "files": {}},
    "a sum that is no text": {"images": 80, "files": {"G_A.safetensors": 3}},
    "the folder above": {"images": 80, "files": {"../../config.yaml": "0" * 64}},
    "another place": {"images": 80, "files": {"/etc/passwd": "0" * 64}},
    "a device": {"images": 80, "files": {"/dev/zero": "0" * 64}},
    "a zero byte": {"images": 80, "files": {"a\0b": "0" * 64}},
    "a long name": {"images": 80, "files": {"x" * 5000: "0" * 64}},
    "another file with its right sum": None,
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_makes_its_checkpoint_a_damaged_one(run: Path, name: str) -> None:
    content = MANIFESTS[name]
    if name.startswith("another file"):
        outside = run / "config.yaml"
        content = {"images": 80, "files": {"../../config.yaml": hashlib.sha256(outside.read_bytes()).hexdigest()}}
    (_newest(run) / "manifest.json").write_text(json.dumps(content))
    assert damage(_newest(run))
    assert find_checkpoint(run).name == "000000040"


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"\xff\xfe", b"", b"{" * 9, b'{"files": {"a": ' + b"9" * 9000 + b"}}"]
)
def test_a_manifest_that_is_no_json(run: Path, content: bytes) -> None:
    (_newest(run) / "manifest.json").write_bytes(content)
    assert "manifest.json" in damage(_newest(run))


def test_a_weights_file_that_is_a_link_to_a_device(run: Path) -> None:
    file = _newest(run) / "G_A.safetensors"
    file.unlink()
    file.symlink_to("/dev/zero")
    assert damage(_newest(run))


@pytest.mark.parametrize(
    "best",
    [
        {"checkpoint": "../../../../etc"},
        {"checkpoint": ".."},
        {"checkpoint": "/etc"},
        {"checkpoint": ""},
        {"checkpoint": "."},
        {"checkpoint": "000000040/../../.."},
        {"checkpoint": "a\0b"},
        {"checkpoint": "x" * 5000},
        {"checkpoint": 40},
        {"checkpoint": ["000000040"]},
        {"checkpoint": None},
        ["000000040"],
        "000000040",
        None,
        3,
    ],
)
def test_a_best_checkpoint_is_one_of_the_run(run: Path, best: object) -> None:
    (run / "checkpoints" / "best.json").write_text(json.dumps(best))
    assert read_best(run) is None
    with pytest.raises(ValueError, match="no best checkpoint"):
        find_checkpoint(run, "best")


def test_a_best_file_that_is_no_json(run: Path) -> None:
    (run / "checkpoints" / "best.json").write_bytes(b"[" * 100_000)
    assert read_best(run) is None


# The state of training


def _deep(depth: int) -> str:
    return '{"list": [' * depth + '{"value": 1}' + "]}" * depth


@pytest.mark.parametrize(
    "tree",
    [
        "[]",
        "3",
        "{}",
        "null",
        "{",
        '{"tensor": "missing"}',
        '{"tensor": 3}',
        '{"tensor": ["00000"]}',
        '{"dict": 3}',
        '{"dict": [3]}',
        '{"dict": [[1, 2, 3]]}',
        '{"dict": [[["a"], {"value": 1}]]}',
        '{"list": {"a": 1}}',
        '{"list": [1]}',
        '{"exec": "os.system"}',
        '{"value": 1, "list": []}',
        _deep(800),
        _deep(100_000),
    ],
)
def test_a_hostile_state(run: Path, tree: str) -> None:
    header = {"__metadata__": {"tree": tree}, "00000": _tensor()}
    (_newest(run) / "state.safetensors").write_bytes(_file(header, data=bytes(8)))
    with pytest.raises(ValueError, match=r"state\.safetensors"):
        load_state(_newest(run))


def test_a_state_without_a_tree(run: Path) -> None:
    for header in ({"00000": _tensor()}, {"__metadata__": {}, "00000": _tensor()}):
        (_newest(run) / "state.safetensors").write_bytes(_file(header, data=bytes(8)))
        with pytest.raises(ValueError, match=r"state\.safetensors"):
            load_state(_newest(run))


@pytest.mark.parametrize("clock", [b"3", b"[]", b"null", b"{", b"\xff", b"", b"[" * 100_000])
def test_a_hostile_clock(run: Path, clock: bytes) -> None:
    (_newest(run) / "clock.json").write_bytes(clock)
    with pytest.raises(ValueError, match=r"clock\.json"):
        load_state(_newest(run))


# Whole commands


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, list[str]]:
    """A run that has trained on a few images, and the command that continues it."""
    flags = """train cyclegan --data apples2oranges --image-size 32 --train.samples 0 --train.tensorboard false
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


def test_continuing_a_hostile_checkpoint(
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


def test_absurd_sizes_in_a_run_are_refused_before_they_are_allocated(
    trained: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    text = (run / "config.yaml").read_text()
    assert "  channels: 4\n" in text
    (run / "config.yaml").write_text(text.replace("  channels: 4\n", f"  channels: {HUGE}\n"))
    assert main(["train", "--config", str(run), "--out", str(run / "again")]) == 2
    assert "channels" in capfd.readouterr().err


def test_one_that_is_right_loads(run: Path) -> None:
    translator = load_translator(run)
    assert translator(torch.zeros(1, 3, 16, 16)).shape == (1, 3, 16, 16)
    assert load_weights(_newest(run) / "G_A.safetensors")[0]["role"] == "G_A"
