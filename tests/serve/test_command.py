from __future__ import annotations

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
from velogan.serve.server import choose_token
from velogan.store.checkpoint import save_checkpoint

from .conftest import png, until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both directions."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = GeneratorConfig(channels=2, blocks=1).model_dump(mode="json")
    common = {"network": "generator", "config": config, "in_channels": 3, "out_channels": 3}
    common |= {"data": {"a": "day", "b": "night"}}
    headers: dict[str, dict[str, Any]] = {role: {"role": role, **common} for role in ("G_A", "G_B")}
    nets = {role: build_network(header) for role, header in headers.items()}
    save_checkpoint(folder, images=5, networks=nets, headers=headers, state={}, clock={})
    return folder


def test_serves_until_stopped(run: Path, tmp_path: Path, zygote: Callable[[dict], int], temporary_files: Path):
    log = tmp_path / "said"
    argv = ["serve", str(run), "--port", "0", "--fp32", "--json", "--device", "cpu"]
    pid = zygote({"argv": argv, "said": str(log), "env": {"TMPDIR": str(temporary_files)}})
    until(lambda: "serving at " in (log.read_text() if log.exists() else ""))
    url = log.read_text().partition("serving at ")[2].split()[0]
    with httpx.Client(base_url=url, trust_env=False, verify=False, timeout=30) as client:
        assert client.get("/api/about").json()["directions"] == {"a2b": "day → night", "b2a": "night → day"}
        answer = client.post("/api/translate", files={"picture": ("a.png", png())}, data={"direction": "b2a"})
        assert answer.json()["direction"] == "b2a"
    os.kill(pid, signal.SIGTERM)
    assert zygote({"wait": pid}) == 0
    assert "Traceback" not in log.read_text()
    result = json.loads(log.read_text().splitlines()[-1])
    assert (result["directions"], result["requests"]) == (["a2b", "b2a"], 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/such/run"], "/no/such/run does not exist"),
        (["RUN", "--port", "PORT"], "--port PORT: [Errno 98] Address already in use"),
        (["RUN", "--waiting", "0"], "set numbers above 0"),
        (["RUN", "--token", "short"], "--token: too short"),
    ],
)
def test_reports_bad_input_in_one_sentence(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        changed = {"RUN": str(run), "PORT": port}
        free = [] if "--port" in words else ["--port", "0"]
        assert main(["serve", *(changed.get(word, word) for word in words), *free]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("velogan: ")
    assert message.replace("PORT", port) in lines[-1]


def test_creates_a_token_if_other_machines_can_reach_the_server():
    assert [choose_token(host, None) for host in ("127.0.0.1", "::1", "localhost")] == [None] * 3
    tokens = {choose_token(host, None) for host in ("0.0.0.0", "::", "192.168.1.5", "gpu")}
    assert len(tokens) == 4
    assert all(token and len(token) == 32 for token in tokens)
    assert choose_token("127.0.0.1", "correct-horse-battery") == "correct-horse-battery"
