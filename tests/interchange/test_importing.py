"""`velogan import` and `velogan train --start`: others' weights become runs that are used and trained on."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from velogan.cli import main
from velogan.config import Config, read_config, to_yaml
from velogan.interchange.bundle import load_translators
from velogan.store.checkpoint import find_checkpoint, load_weights
from velogan.translate.model import load_translator

_SPEC = importlib.util.spec_from_file_location(
    "reference_networks", Path(__file__).parents[1] / "networks" / "reference_networks.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)

RunJson = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def print_line(capsys: pytest.CaptureFixture[str]) -> RunJson:
    """Runs a command with --json: exit code, result, standard error."""

    def run(*argv: object) -> tuple[int, dict[str, Any], str]:
        code = main([*map(str, argv), "--json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out.splitlines()[-1]) if code == 0 else {}, captured.err

    return run


def _folder(folder: Path, *, width: int = 4) -> dict[str, nn.Module]:
    """A folder checkpoints/NAME of both directions."""
    nets = {
        "G_A": reference.Resnet(blocks=1, width=width),
        "G_B": reference.Resnet(blocks=2, width=width),
        "D_A": reference.Patch(),
        "D_B": reference.Pixel(),
    }
    folder.mkdir()
    for seed, (role, net) in enumerate(nets.items()):
        torch.save(reference.trained(net, seed).state_dict(), folder / f"latest_net_{role}.pth")
    return nets


def _weights(run: Path, name: str) -> dict[str, torch.Tensor]:
    return load_weights(find_checkpoint(run) / f"{name}.safetensors")[1]


TINY = ["--data.render-count", "4", "--data.render-test", "2", "--image-size", "32", "--data.validation", "0"]
TINY += ["--train.samples", "0", "--train.logger", "none", "--engine.mode", "eager", "--engine.precision", "fp32"]


def test_imports_a_folder_as_a_run_that_translates_and_trains(tmp_path: Path, print_line: RunJson):
    nets, run = _folder(tmp_path / "theirs"), tmp_path / "run"
    code, result, _ = print_line("import", tmp_path / "theirs", run)
    assert code == 0
    assert result["run"] == str(run)
    assert [network["role"] for network in result["networks"]] == ["D_A", "D_B", "G_A", "G_B"]
    assert result["networks"][2]["parameters"] == sum(value.numel() for value in nets["G_A"].parameters())
    images = torch.rand(1, 3, 32, 32) * 2 - 1
    for direction, role in (("a2b", "G_A"), ("b2a", "G_B")):
        assert torch.equal(load_translator(run, direction=direction)(images), nets[role](images))  # pyright: ignore
    assert print_line("import", tmp_path / "theirs", run)[0] == 2

    train = ["train", "--config", run, "--data", "apples2oranges", "--out", run, *TINY]
    code, result, err = print_line(*train, "--images", "1", "--optimizer.lr", "1e-12")
    assert code == 0, err
    assert "the run starts with D_A, D_B, G_A, G_B of" in err
    for role in nets:
        for name, value in _weights(run, role).items():
            torch.testing.assert_close(value, nets[role].state_dict()[name.replace("model", "net", role == "D_B")])
    torch.testing.assert_close(_weights(run, "G_B.ema")["model.1.weight"], nets["G_B"].state_dict()["model.1.weight"])
    code, result, err = print_line(*train, "--images", "2", "--optimizer.lr", "1e-12")
    assert (code, result["images_seen"]) == (0, 2), err
    assert "resuming" in err
    assert "starts with" not in err


def test_imports_a_file_as_one_direction(tmp_path: Path, print_line: RunJson):
    net = reference.trained(reference.Resnet(blocks=1, norm="old instance"))
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save(state, tmp_path / "horse2zebra_net_G_B.pth")
    run = tmp_path / "run"
    assert print_line("import", tmp_path / "horse2zebra_net_G_B.pth", run)[1]["networks"][0]["role"] == "G_A"
    config = read_config(run).change(data={"render_count": 4, "render_test": 2, "crop_size": 32})
    (run / "config.yaml").write_text(to_yaml(config))
    code, _, err = print_line("evaluate", run, "--features", "none")
    assert code == 2
    assert "no data to score them on; set --data" in err
    code, result, err = print_line("evaluate", run, "--features", "none", "--data", "apples2oranges", "--fp32")
    assert code == 0, err
    assert {score["direction"] for score in result["scores"]} == {"a2b"}
    assert (run / "report.html").is_file()


def test_imports_and_exports_networks_of_cut(tmp_path: Path, print_line: RunJson):
    cut, run = tmp_path / "grumpycat_CUT", tmp_path / "run"
    cut.mkdir()
    net = reference.trained(reference.Resnet(blocks=1, blur=("down", "up")))
    perceptrons = {"mlp_0.0.weight": torch.zeros(4, 3)}
    for role, state in (("G", net.state_dict()), ("D", reference.Patch(blur=True).state_dict()), ("F", perceptrons)):
        torch.save(state, cut / f"latest_net_{role}.pth")
    code, result, err = print_line("import", cut, run)
    assert code == 0, err
    assert [network["role"] for network in result["networks"]] == ["D_A", "G_A"]
    assert all("anti-aliased" in network["network"] for network in result["networks"])
    images = torch.rand(1, 3, 36, 36) * 2 - 1
    assert list(models := load_translators(run)) == ["a2b"]  # what velogan serve serves
    assert torch.equal(models["a2b"](images), net(images))
    assert print_line("export", run, tmp_path / "back", "--format", "reference")[0] == 0
    (file,) = (tmp_path / "back").glob("latest_net_G.pth")
    assert all(
        torch.equal(value, net.state_dict()[name]) for name, value in torch.load(file, weights_only=True).items()
    )
    assert print_line("export", run, tmp_path / "net.pt2", "--format", "torch")[0] == 0


@pytest.mark.parametrize(
    ("make", "side"),
    [
        (lambda: reference.Resnet(blocks=2, norm="batch", dropout=True), 32),
        (lambda: reference.Resnet(blocks=1, norm="batch", blur=("down", "up")), 36),
        (lambda: reference.Unet(norm="batch", dropout=True), 128),
    ],
    ids=["resnet", "cut", "unet"],
)
def test_batch_norm_uses_the_statistics_of_each_picture_on_request(
    make: Callable[[], nn.Module], side: int, tmp_path: Path, print_line: RunJson
):
    net = reference.trained(make())
    torch.save(net.state_dict(), tmp_path / "net.pth")
    for layer in net.modules():
        layer.train(isinstance(layer, nn.BatchNorm2d))  # as test.py without --eval, but for dropout
    assert print_line("import", tmp_path / "net.pth", tmp_path / "trained")[0] == 0
    assert print_line("import", tmp_path / "net.pth", tmp_path / "run", "--picture-statistics")[0] == 0
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    images[1] *= 0.1
    with torch.no_grad():
        expected = torch.cat([net(images[:1]), net(images[1:])])
        exact = copy.deepcopy(net).double()
        exact = torch.cat([exact(images[:1].double()), exact(images[1:].double())])
    rounding = (expected - exact).abs().max()  # of the reference's own float32
    assert rounding < 4e-6
    assert (load_translator(tmp_path / "run")(images) - exact).abs().max() < 2 * rounding
    assert (load_translator(tmp_path / "trained")(images) - expected).abs().max() > 0.01
    if side != 32:
        return
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    assert print_line("export", tmp_path / "run", tmp_path / "net.onnx", "--format", "onnx")[0] == 0
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    (translated,) = session.run(None, {"image": images.numpy()})
    assert (torch.from_numpy(translated) - exact).abs().max() < 2 * rounding


def test_rejects_picture_statistics_without_batch_norm(tmp_path: Path, print_line: RunJson):
    torch.save(reference.Resnet(blocks=1).state_dict(), tmp_path / "net.pth")
    code, _, err = print_line("import", tmp_path / "net.pth", tmp_path / "run", "--picture-statistics")
    assert code == 2
    assert "is for generators with batch norm, and" in err
    assert "has norm instance: remove it" in err
    assert not (tmp_path / "run").exists()


def test_starts_a_run_with_the_networks_that_fit(
    tmp_path: Path, print_line: RunJson, tiny_config: Callable[..., Config]
):
    nets = _folder(tmp_path / "theirs")
    small = ["--generator.channels", "4", "--generator.blocks", "1", "--generator-b", "blocks=2"]
    small += ["--discriminator.channels", "8", "--optimizer.lr", "1e-12", "--images", "1"]
    code, _, err = print_line(
        "train",
        "cyclegan",
        *TINY,
        *small,
        "--start",
        tmp_path / "theirs",
        "--data",
        "apples2oranges",
        "--out",
        tmp_path / "run",
    )
    assert code == 0, err
    assert "the run starts with G_A, G_B of" in err
    assert "D_A (discriminator.channels is 8 here and 4 there" in err
    torch.testing.assert_close(
        _weights(tmp_path / "run", "G_A")["model.1.weight"], nets["G_A"].state_dict()["model.1.weight"]
    )

    onepair = ["train", "onepair", *TINY, "--generator.channels", "4", "--generator.blocks", "1", "--images", "1"]
    onepair += ["--optimizer.lr", "1e-12", "--data", "apples2oranges"]
    code, _, err = print_line(*onepair, "--start", tmp_path / "run", "--out", tmp_path / "one")
    assert code == 0, err
    torch.testing.assert_close(
        _weights(tmp_path / "one", "G_A")["model.1.weight"], nets["G_A"].state_dict()["model.1.weight"]
    )

    code, _, err = print_line(*onepair, "--start", tmp_path / "none", "--out", tmp_path / "other")
    assert code == 2
    assert f"train.start (--start): {tmp_path / 'none'} does not exist" in err
    for flags, message in (
        (["--generator.channels", "8"], "generator.channels is 8 here and 4 there; set the same value"),
    ):
        fine = ["--generator.blocks", "1", "--generator-b", "blocks=2", *flags]
        start = ["--start", tmp_path / "theirs" / "latest_net_G_A.pth"]
        code, _, err = print_line(
            "train", "cyclegan", *TINY, *fine, *start, "--data", "apples2oranges", "--out", tmp_path / "other"
        )
        assert code == 2
        assert message in err
