from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from velogan.cli import main
from velogan.networks.build import build_network
from velogan.networks.generators import GeneratorConfig
from velogan.serve.server import token_for
from velogan.store.checkpoint import save_checkpoint

from .conftest import png, until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of both directions."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = GeneratorConfig(channels=2, blocks=1).model_dump(mode="json")
    common = {"network": "generator", "config": config, "in_channels": 3, "out_channels": 3}
    common |= {"data": {"a": "day", "b": "night"}}
    headers: dict[str, dict[str, Any]] = {role: {"role": role, **common} for role in ("G_A", "G_B")}
    nets = {role: build_network(header) for role, header in headers.items()}
    save_checkpoint(folder, images=5, networks=nets, headers=headers, state={}, clock={})
    return folder


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(
    stop: signal.Signals, run: Path, tmp_path: Path, zygote: Callable[[dict], int], nowhere: Path
):
    said = tmp_path / "said"
    argv = ["serve", str(run), "--port", "0", "--fp32", "--json", "--device", "cpu"]
    pid = zygote({"argv": argv, "said": str(said), "env": {"TMPDIR": str(nowhere)}})
    until(lambda: "serving at " in (said.read_text() if said.exists() else ""))
    url = said.read_text().partition("serving at ")[2].split()[0]
    with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=30) as client:
        assert client.get("/api/about").json()["directions"] == {"a2b": "day → night", "b2a": "night → day"}
        found = client.post("/api/translate", files={"picture": ("a.png", png())}, data={"direction": "b2a"})
        assert found.json()["direction"] == "b2a"
    os.kill(pid, stop)
    assert zygote({"wait": pid}) == 0
    assert "Traceback" not in said.read_text()
    result = json.loads(said.read_text().splitlines()[-1])
    assert (result["directions"], result["requests"]) == (["a2b", "b2a"], 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/such/run"], "/no/such/run does not exist"),
        (["RUN", "--port", "PORT"], "--port PORT: [Errno 98] Address already in use"),
        (["RUN", "--port", "70000"], "--port 70000: "),
        (["RUN", "--host", "nowhere.invalid"], "--host nowhere.invalid --port "),
        (["RUN", "--waiting", "0"], "give numbers above 0"),
        (["RUN", "--seconds", "nan"], "give numbers above 0"),
        (["RUN", "--token", "short"], "--token: give at least 16 letters"),
        (["RUN", "--tile", "-3"], "tile=-3: not a side in pixels"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        changed = {"RUN": str(run), "PORT": port}
        free = [] if "--port" in words else ["--port", "0"]
        assert main(["serve", *(changed.get(word, word) for word in words), *free]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("velogan: ")
    assert message.replace("PORT", port) in said[-1]


def test_the_extra_is_named_where_it_is_missing(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    found = importlib.util.find_spec
    hidden = lambda name, *more: None if name == "uvicorn" else found(name, *more)  # noqa: E731
    monkeypatch.setattr("velogan.files.find_spec", hidden)
    assert main(["serve", str(run)]) == 2
    said = "velogan: velogan serve needs uvicorn: in your clone of velogan, pip install -e '.[serve]'\n"
    assert capsys.readouterr().err == said


def test_a_token_is_made_where_other_machines_reach_the_server():
    assert [token_for(host, None) for host in ("127.0.0.1", "::1", "localhost")] == [None] * 3
    made = {token_for(host, None) for host in ("0.0.0.0", "::", "192.168.1.5", "gpu")}
    assert len(made) == 4
    assert all(token and len(token) == 32 for token in made)
    assert token_for("127.0.0.1", "correct-horse-battery") == "correct-horse-battery"
