from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from velogan.cli import COMMANDS, main
from velogan.cli.train import Train, configure_train
from velogan.cli.unknown_flags import CONFIG_FIELDS, check_config_flags
from velogan.config import Config, field_names, read_config, to_yaml
from velogan.recipes import RECIPES

_TINY = """--images 2 --image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2
    --data.render-count 2 --data.render-test 1 --train.samples 1 --train.logger none --engine.threads 1
    --engine.precision fp32"""
TINY = _TINY.split()


def _configured(*argv: str) -> Config:
    """Return the configuration of a command line."""
    return configure_train(Train.parse(argv, prog="velogan train", description=""))


def _rejected(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the only message of a command line that is rejected with exit code 2."""
    try:
        code = main(argv)
    except SystemExit as exit:
        code = exit.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert "Traceback" not in output.err
    return " ".join(output.err.replace("│", " ").split())


@pytest.mark.parametrize("preset", RECIPES)
def test_presets_are_their_recipes(preset: str):
    expected = RECIPES[preset]().change(data={"path": ("here",)})
    assert _configured(preset, "--data", "here") == expected


def test_the_default_is_the_recommended_preset_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = {"path": ("a", "b")}
    fast = RECIPES["fast"]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert _configured("--data", "a", "b") == _configured("auto", "--data", "a", "b") == fast.change(data=data)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    on_a_gpu = fast.with_size("s").change(data={"crop_size": 256}, train={"length": "10 minutes"})
    assert _configured("--data", "a", "b") == on_a_gpu.change(data=data)
    assert _configured("fast", "--data", "a", "b") == fast.change(data=data)
    assert _configured("--data", "a", "b", "--engine.device", "cpu").data.crop_size == 128
    assert _configured("--data", "a", "b", "--size", "m").generator.channels == 64
    assert _configured("--data", "a", "b", "--method", "onepair") == Config().change(data=data, method="onepair")

    saved = Config().change(data=data, train={"length": "7 images"})
    (tmp_path / "config.yaml").write_text(to_yaml(saved))
    assert _configured("--data", "a", "b", "--out", str(tmp_path)) == saved
    assert _configured("--data", "a", "b", "--out", str(tmp_path), "--images", "9").train.length == "9 images"


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--minutes 60", {"train": {"length": "60 minutes"}}),
        ("--images 500", {"train": {"length": "500 images"}}),
        (
            "--size s --generator.blocks 1",
            {"generator": {"channels": 32, "blocks": 1}, "discriminator": {"channels": 32}},
        ),
        ("--image_size 32 --data.load_size 40", {"data": {"crop_size": 32, "load_size": 40}}),
        ("--data.no-flip", {"data": {"flip": False}}),
        (
            "--optimizer.lr 1e-3 --optimizer.rules D_*:lr=1e-4 G_A:beta1=0.9",
            {"optimizer": {"lr": 1e-3, "rules": ("D_*:lr=1e-4", "G_A:beta1=0.9")}},
        ),
        ("--train.checkpoint_every 5%", {"train": {"checkpoint_every": "5 percent"}}),
        ("--engine.mode reference --engine.threads 3", {"engine": {"mode": "reference", "threads": 3}}),
    ],
)
def test_flags_change_their_fields(flags: str, changes: dict[str, Any]):
    expected = Config().change(data={"path": ("here",)})
    if "--size" in flags:
        expected = expected.with_size("s")
    expected = expected.change(**changes)
    assert _configured("cyclegan", "--data", "here", *flags.split()) == expected


def test_flags_change_the_configuration_of_a_run_folder_or_file(tmp_path: Path):
    config = Config().change(data={"path": ("there",), "flip": False}, train={"seed": 9}, schedule={"kind": "cosine"})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert _configured("--config", str(tmp_path)) == config
    changed = _configured(f"--config={tmp_path / 'config.yaml'}", "--data.flip", "true", "--epochs", "3")
    assert changed == config.change(data={"flip": True}, train={"length": "3 epochs"})


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("train --out r", "--data is missing"),
        ("train --data d --out r --images 5 --minutes 2", "--minutes and --images contradict each other"),
        ("train --data d --seed 1 --train.seed 2", "--seed and --train.seed set the same field: give one of the two"),
        ("train --data /no/such/folder --out {tmp}/r", "/no/such/folder"),
        ("train --data d --out r --generator.channels 0", "generator.channels=0: input should be greater"),
        ("train --data d --out r --images abc", "--images abc: give a whole number"),
        ("train --data d --out r --optimizer.rules X:foo=1", "optimizer.rules: 'X:foo=1': there is no foo"),
        ("train fats --data d --out r", "there is no preset 'fats'; did you mean fast? There are auto, cyclegan"),
        ("train --out r fast --data d", "fast: a preset comes before all flags: velogan train fast"),
        ("train --data d --out {tmp}/file/r", "--out {tmp}/file/r: nothing can be written to {tmp}/file (Not a direc"),
        ("train --gpu", "--gpu: unknown flag; use --device cuda"),
        (
            "train cyclegan --data d --out r --method.direction both",
            "--method.direction: the chosen method does not have",
        ),
        ("train --lr 3", "did you mean --optimizer.lr?; docs/migration.md has the reference implementation's flags"),
        ("train --data d --seed -1", "--seed=-1: input should be"),
        ("train cyclegan --data {tmp}/d --out {tmp}/d/trainA/r --dry-run", "lies in {tmp}/d/trainA"),
        ("sweep plan.yaml --seeds 3", "--seeds cannot be combined with plan.yaml: set it in that file"),
        ("translate photos run out", "photos is not a run, but run is: write translate RUN INPUT OUTPUT"),
        ("trian --data d", "there is no command 'trian'; did you mean train?"),
        ("train --data d --hidden 8", "--hidden 8 is the width of a genotype's networks: add --genotype FILE"),
        ("train --data d --genotype none.json", "--genotype none.json: file not found"),
        ("search --data d --out r --method three-step", "--method='three-step'"),
        ("search --data d --out r --inner pix2pix", "inner=pix2pix cannot be searched: choose cyclegan or onepair"),
        ("search --data d --out r --cells 1", "--cells 1: give a whole number from 2 to 100"),
        ("search --data d --out r --generator.network resnet", "has no operations to choose"),
        ("data render apples2oranges {tmp}/set --count 0", "--count 0: give at least 1"),
        ("evaluate {tmp}/none", "{tmp}/none"),
    ],
)
def test_rejects_bad_input_by_one_message(
    argv: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "-file").touch()
    (tmp_path / "d" / "trainA").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    message = _rejected(capsys, *argv.format(tmp=tmp_path).split())
    assert named.format(tmp=tmp_path) in message
    assert message.count("velogan: ") <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"file", "-file", "d", "run"}, "something was written"


@pytest.mark.parametrize("argv", ["train --trial 3", "translate a b c --preset x", "evaluate a --gpu-id 0"])
def test_suggests_only_flags_of_the_command(argv: str, capsys: pytest.CaptureFixture[str]):
    assert "did you mean" not in _rejected(capsys, *argv.split())
    assert "without a flag" not in _rejected(capsys, *argv.split())


def test_help_names_a_default_of_0(capsys: pytest.CaptureFixture[str]):
    assert "Default: 0." in " ".join(_help(capsys, "data render --help"))


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_of_every_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    text = " ".join(_help(capsys, " ".join([*words, "--help"])))
    assert "usage: velogan" in text
    summaries = [command.summary for command in ([COMMANDS[words]] if words else COMMANDS.values())]
    assert all(summary in " ".join(text.split()) for summary in summaries)
    assert "--json" in text or not words


def _help(capsys: pytest.CaptureFixture[str], argv: str) -> list[str]:
    with pytest.raises(SystemExit):
        main(argv.split())
    return capsys.readouterr().out.splitlines()


def test_help_fits_a_screen_and_names_help_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    for argv in ("train --help", "translate --help", "help train"):
        lines = _help(capsys, argv)
        assert len(lines) < 46
        assert max(map(len, lines)) <= 100
        assert any("--help-all" in line for line in lines)
    everything = " ".join(" ".join(_help(capsys, "train --help-all")).split())
    assert "--generator.channels NUMBER" in everything


def test_a_mistyped_flag_is_reported_before_slow_imports():
    code = (
        "import sys; from velogan.cli import main; main(['train', '--imagesize', '3']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (
        "False\n",
        "velogan: --imagesize: unknown flag; did you mean --image-size?\n",
    )
    listed = [f"{section}.{field}" for section, fields in CONFIG_FIELDS.items() for field in fields.split()]
    assert {*listed} == {name.replace(".inner.", ".") for name in field_names(Config) if "." in name}
    for words in COMMANDS:
        if words[0] in ("train", "search", "sweep", "profile"):
            check_config_flags([*words, *COMMANDS[words].load().flags()])


def test_a_dry_run_reports_images_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    argv = ["train", "cyclegan", "--data", "apples2oranges", *TINY, "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*argv, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 2
    assert result["estimate"]["memory_mb"] > 100
    assert Config.model_validate(result["config"]).data.crop_size == 32
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("code", "not_loaded"),
    [
        ("import velogan", {"torch", "numpy", "tyro", "pydantic"}),
        ("from velogan.cli import main; main(['--help'])", {"torch", "numpy", "tyro", "pydantic"}),
        ("from velogan.cli import main; main(['translate', '--help'])", {"torch", "numpy", "pydantic"}),
        (
            "from velogan.cli import main; main(['train', '--help'])",
            {"tensorboard", "torch._dynamo", "matplotlib", "pandas", "pyarrow", "ray"},
        ),
    ],
    ids=["import", "overview", "translate", "train"],
)
def test_imports_no_slow_package_without_need(code: str, not_loaded: set[str]):
    code = f"import sys\ntry:\n  {code}\nexcept SystemExit: pass\nprint(sorted({not_loaded} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_last_line_of_json_is_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    assert main(["train", "cyclegan", "--data", "apples2oranges", *TINY, "--out", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["run"] == str(run)
    assert result["images_seen"] == 2
    assert result["images_per_s"] > 0
    assert len(result["weights_sha256"]) == 64
    assert Path(result["checkpoint"]) == run / "checkpoints" / "000000002"
    for name in ("config.yaml", "run.json", "stats.jsonl", "report.html", "samples/000000002-a2b.png"):
        assert (run / name).is_file(), name
    assert read_config(run).engine.kernels == "auto"  # another machine decides for itself
    (chosen,) = json.loads((run / "run.json").read_text())["engines"]
    assert chosen["engine"]["kernels"] in ("winograd", "native", "plain")
    assert chosen["from_images"] == 0
    decisions = json.loads((run / "run.json").read_text())["decisions"]
    assert all(decision["reason"] for decision in decisions)

    again = [*TINY, "--out", str(run), "--json"]
    assert main(["train", "--data", "apples2oranges", *again]) == 0  # nothing left to do
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["weights_sha256"] == result["weights_sha256"]
    assert main(["train", "--config", str(run), "--out", str(tmp_path / "repeated"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["weights_sha256"] == result["weights_sha256"]
    message = _rejected(capsys, "train", "--data", "apples2oranges", *again, "--generator.norm", "batch")
    assert "generator.norm is 'batch' here and 'instance' there" in message


def test_rejects_a_folder_of_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.tex").write_text("years of work")
    message = _rejected(capsys, "train", "--data", "apples2oranges", *TINY, "--out", str(tmp_path))
    assert "is not empty and is not a run: choose a new folder" in message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_output_replaces_characters_that_its_encoding_lacks(monkeypatch: pytest.MonkeyPatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["train", "--bogus"]) == 2
    print("A → B", flush=True)
    assert stream.buffer.getvalue().endswith(b"A ? B\n")  # pyright: ignore[reportAttributeAccessIssue]
