"""Folders in the hub's convention, and the hub itself, for which a small server of its HTTP API stands in."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import velogan
from velogan.cli import main
from velogan.files import parse_yaml, sha256
from velogan.interchange.hub import resolve_model_path
from velogan.networks.build import build_network
from velogan.networks.generators import GeneratorConfig
from velogan.store.checkpoint import save_checkpoint
from velogan.training.build import build_roles
from velogan.training.weights import load_initial_weights, read_initial_weights

needs_hub = pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="huggingface_hub not installed: extra hub")
FILES = {"G_A.safetensors", "G_B.safetensors", "config.json", "manifest.json", "README.md"}


def _run(folder: Path, *, roles: tuple[str, ...] = ("G_A", "G_B")) -> Path:
    """A run as training leaves it, with averages that are other weights than the raw ones."""
    torch.manual_seed(0)
    config = GeneratorConfig(channels=2, blocks=1, init="kaiming").model_dump(mode="json")
    form = {"channels": 3, "dtype": "uint8", "range": None}
    common = {"network": "generator", "config": config, "in_channels": 3, "out_channels": 3, "input": form}
    common |= {"output": form, "method": "cyclegan", "image_size": 64, "images_seen": 5}
    common |= {"data": {"a": "horses", "b": "zebras", "preprocess": "resize"}}
    headers = {role: {**common, "role": role, "weights": "raw"} for role in roles}
    headers |= {f"{role}.ema": {**common, "role": role, "weights": "ema"} for role in roles}
    nets = {name: build_network(header) for name, header in headers.items()}
    save_checkpoint(folder, images=5, networks=nets, headers=headers, state={}, clock={})
    (folder / "config.yaml").write_text("data: {}\n")
    return folder


def _score(run: Path) -> None:
    """A scores.json of the averaged a2b generator."""
    digest = sha256(run / "checkpoints/000000005/G_A.ema.safetensors")
    of = {"direction": "a2b", "weights": "ema", "checkpoint": "last"}
    row = {"name": "fid_lite0", "value": 41.25, "interval_95": [40.0, 43.5], "real": 9.5, "baseline": 99.0}
    row |= {"images_fake": 120, "better": "lower", "split": "test", "description": "Distance of sets.", **of}
    side = {"name": "horses", "images": 120, "split": "test"}
    protocol = {"networks": [{**of, "sha256": digest}], "run": "/home/me/run", "data": {"a": side, "b": side}}
    scores = [row, {**row, "weights": "raw", "value": 77.5}]
    (run / "scores.json").write_text(json.dumps({"protocol": protocol, "scores": scores}))


def _front(page: Path) -> dict[str, Any]:
    """The header of a page."""
    opening, head, _ = page.read_text().split("---\n", 2)
    assert opening == ""
    return parse_yaml(head)


def _photo(size: int = 24) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, size, 3), np.uint8)


def test_saves_a_model_of_all_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = _run(tmp_path / "run")
    result = velogan.load(run, fp32=True).save_pretrained(tmp_path / "out")
    assert (result["max_difference"], result["file"]) == (0, str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    for direction in ("a2b", "b2a"):
        saved = velogan.Model.from_pretrained(tmp_path / "out", direction=direction, fp32=True)
        first = velogan.load(run, direction=direction, fp32=True)
        assert np.array_equal(saved.translate(_photo()), first.translate(_photo()))
        assert saved.metadata["weights"] == "ema"
    again = velogan.Model.from_pretrained(str(tmp_path / "out"), fp32=True)
    again.save_pretrained(tmp_path / "out")  # onto itself
    velogan.load(tmp_path / "out/G_B.safetensors", fp32=True).save_pretrained(tmp_path / "one")
    assert {path.name for path in (tmp_path / "one").iterdir()} == FILES - {"G_A.safetensors"}
    velogan.load(tmp_path / "one/G_B.safetensors").save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out/G_A.safetensors").exists()
    monkeypatch.chdir(tmp_path / "one")
    with pytest.raises(ValueError, match="name the run folder"):
        velogan.load("G_B.safetensors").uncertainty(_photo())


def test_command_writes_a_model_with_its_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _run(tmp_path / "run")
    _score(run)
    Image.fromarray(_photo(40)).save(tmp_path / "photo.png")
    words = ["--license", "mit", "--datasets", "me/horses", "--picture", str(tmp_path / "photo.png"), "--json"]
    assert main(["export", str(run), str(tmp_path / "out"), "--format", "hub", *words]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result) == {"file", "max_difference", "megabytes", "card"}
    page = Path(result["card"])
    head = _front(page)
    assert (head["license"], head["library_name"], head["pipeline_tag"]) == ("mit", "velogan", "image-to-image")
    assert head["datasets"] == ["me/horses"]
    assert "cyclegan" in head["tags"]
    text = page.read_text()
    assert "a2b: horses to zebras and b2a: zebras to horses" in text
    assert "| a2b | fid_lite0 | 41.25 | 40 to 43.5 | 9.5 | 99 | 120 | test |" in text
    assert "77.5" not in text  # of the raw weights
    assert "/home/me" not in text + (tmp_path / "out/config.json").read_text()
    assert "![before and after](example.png)" in text
    both = np.asarray(Image.open(tmp_path / "out/example.png"))
    assert np.array_equal(both[:, :40], _photo(40))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["networks"]["b2a"]["file"] == "G_B.safetensors"


def test_card_states_what_is_missing(tmp_path: Path):
    run = _run(tmp_path / "run", roles=("G_A",))
    card = velogan.load(run).save_pretrained(tmp_path / "out")["card"]
    assert _front(Path(card))["license_name"] == "not-stated"
    assert _front(Path(card))["license"] == "other"
    text = Path(card).read_text()
    assert "no rights are granted" in text
    assert "None: these weights were not scored" in text
    assert "example.png" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "run", "--format", "hub"], "and would be overwritten"),
        (["run", "out", "--format", "hub", "--license", "my own"], "license='my own' is not an identifier"),
        (["run", "out", "--format", "torch", "--license", "mit"], "a licence requires format=hub or onnx"),
        (["run", "out", "--format", "hub", "--picture", "nothing.png"], "picture=nothing.png cannot be read"),
    ],
)
def test_rejects_wrong_arguments(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    run = _run(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


class Hub(ThreadingHTTPServer):
    """The part of the hub's HTTP API that a client needs to make, fill, list and read repositories of small files."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commits: dict[str, list[str]] = {}
        self.read: list[str] = []
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, name: str) -> str:
        """The name of the newest state, by its content."""
        result = repr(
            sorted((file, hashlib.sha256(data).hexdigest()) for file, data in self.repositories[name].items())
        )
        return hashlib.sha1(result.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        hub, body = self.server, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub.tokens.add(self.headers.get("Authorization"))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != "Bearer hf_mine":
            return self._json({"error": "Forbidden"}, 403)
        if parts == ["api", "repos", "create"]:
            result = json.loads(body)
            name = f"{result.get('organization') or 'me'}/{result['name']}"
            hub.repositories.setdefault(name, {".gitattributes": b""})
            return self._json({"url": f"{hub.address}/{name}"})
        name, action = "/".join(parts[2:4]), parts[4]
        if action == "preupload":
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            return self._json({"files": [{**file, "shouldIgnore": False} for file in files]})
        assert action == "commit", self.path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                hub.commits.setdefault(name, []).append(value["summary"])
            elif line["key"] == "file":
                hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del hub.repositories[name][value["path"]]
        oid = hub.commit(name)
        return self._json({"success": True, "commitOid": oid, "commitUrl": f"{hub.address}/{name}/commit/{oid}"})

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0].strip("/").split("/")
        listed = path[:2] == ["api", "models"]
        name = "/".join(path[2:4] if listed else path[:2])
        files = hub.repositories.get(name)
        if files is None:
            return self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if listed and "tree" in path:
            rows = [
                {"type": "file", "path": path, "size": len(data), "oid": _oid(data)} for path, data in files.items()
            ]
            return self._json(rows)
        if listed:
            if path[4:] and path[5] not in ("main", hub.commit(name)):
                return self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
            result = {
                "id": name,
                "modelId": name,
                "sha": hub.commit(name),
                "tags": [],
                "private": False,
                "downloads": 0,
            }
            return self._json({**result, "siblings": [{"rfilename": name} for name in files]})
        file = "/".join(path[4:])
        hub.read.append(file)
        data = files[file]
        self._answer(data, 200, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": hub.commit(name)})

    do_HEAD = do_GET

    def _json(self, result: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        more = {"X-Error-Message": str(result["error"])} if isinstance(result, dict) and "error" in result else {}
        self._answer(
            json.dumps(result).encode(), status, {"Content-Type": "application/json", **more, **(headers or {})}
        )

    def _answer(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Silent."""


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of this test alone, a cache of its own, and somebody who has logged in."""
    from huggingface_hub import constants

    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        yield server
        server.shutdown()
        thread.join()


@needs_hub
def test_publishes_and_loads_a_model_by_name(hub: Hub, tmp_path: Path):
    from huggingface_hub import ModelCard

    model = velogan.load(_run(tmp_path / "run"), fp32=True)
    assert model.push_to_hub("me/zebras", license="mit") == f"{hub.address}/me/zebras"
    stored = hub.repositories["me/zebras"]
    assert set(stored) == {*FILES, ".gitattributes"}
    assert hub.commits["me/zebras"] == ["Upload a velogan model"]
    card = ModelCard(stored["README.md"].decode())
    assert (card.data.license, card.data.library_name) == ("mit", "velogan")  # pyright: ignore[reportAttributeAccessIssue]
    assert 'velogan.load("hf://me/zebras", direction="a2b")' in card.text

    stored["model.pkl"] = stored["latest_net_G_A.pth"] = (
        b"cos\nsystem\n(S'false'\ntR."  # nothing of ours: never fetched
    )
    expected = model.translate(_photo())
    for loaded in (velogan.Model.from_pretrained("me/zebras", fp32=True), velogan.load("hf://me/zebras", fp32=True)):
        assert np.array_equal(loaded.translate(_photo()), expected)
    assert set(hub.read) == FILES - {"README.md"}
    Image.fromarray(_photo()).save(tmp_path / "photo.png")
    words = [
        "translate",
        "hf://me/zebras",
        str(tmp_path / "photo.png"),
        str(tmp_path / "out.png"),
        "--direction",
        "b2a",
    ]
    assert main([*words, "--fp32"]) == 0
    assert np.asarray(Image.open(tmp_path / "out.png")).shape == (24, 24, 3)

    assert main(["export", "hf://me/zebras", str(tmp_path / "theirs"), "--format", "reference"]) == 0
    small = {"generator": {"channels": 2, "blocks": 1}, "discriminator": {"channels": 2}}
    config = velogan.preset("cyclegan").change(**small)
    message = load_initial_weights(
        config,
        build_roles(config.method, config.spec, seed=config.train.seed),
        weights=read_initial_weights(Path("hf://me/zebras")),
        path=Path("hf://me/zebras"),
    )
    assert "the run starts with G_A, G_B of hf:" in message
    assert "starting from scratch: D_A, D_B" in message

    single = velogan.load(tmp_path / "run/checkpoints/000000005/G_A.safetensors")
    single.push_to_hub("me/zebras")  # one direction takes the place of two
    assert "G_B.safetensors" not in stored
    hub.shutdown()
    hub.server_close()
    assert resolve_model_path("hf://me/zebras").is_dir()  # without the hub: what is kept


@needs_hub
def test_reports_errors_of_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    hub.repositories["me/other"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    for name, message in {
        "me/none": "hf://me/none: not found, or private",
        "me/other": "hf://me/other contains no velogan model",
        "me/other@older": "there is no such revision",
    }.items():
        with pytest.raises(ValueError, match=message):
            velogan.Model.from_pretrained(name)
    model = velogan.load(_run(tmp_path / "run"))
    model.push_to_hub("me/zebras")
    weights = bytearray(hub.repositories["me/zebras"]["G_A.safetensors"])
    weights[-1] ^= 1
    hub.repositories["me/zebras"]["G_A.safetensors"] = bytes(weights)
    assert main(["translate", "hf://me/zebras", str(tmp_path), str(tmp_path / "out")]) == 1
    assert "does not match its checksum" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_theirs")
    with pytest.raises(ValueError, match="the hub denies access: log in"):
        model.push_to_hub("me/zebras")
