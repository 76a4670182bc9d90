from __future__ import annotations

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
from velogan.config import Config, field_names, read_config, write_yaml
from velogan.measure import probe
from velogan.networks.pretrained import find_lite
from velogan.recipes import RECIPES

_TINY = """--images 2 --image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2
    --data.render-count 2 --data.render-test 1 --train.samples 1 --train.logger none --engine.threads 1
    --engine.precision fp32"""
TINY = _TINY.split()


def _configured(*argv: str) -> Config:
    """The configuration that a command line adds up to."""
    return configure_train(Train.parse(argv, prog="velogan train", description=""))


def _refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one message of a command line that is refused with exit code 2."""
    try:
        code = main(argv)
    except SystemExit as exit:
        code = exit.code
    output = capsys.readouterr()
    assert code == 2
    assert output.out == ""
    assert "Traceback" not in output.err
    return " ".join(output.err.replace("│", " ").split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("mode", ["graph", "streams"])
def test_a_way_that_this_machine_has_not_is_refused_before_pictures_are_looked_for(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    message = _refused(
        capsys, "train", "--engine.mode", mode, "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run")
    )
    assert f"engine.mode={mode}: needs a CUDA device" in message


@pytest.mark.parametrize("preset", RECIPES)
def test_a_preset_is_its_recipe(preset: str):
    expected = RECIPES[preset]().change(data={"path": ("here",)})
    assert _configured(preset, "--data", "here") == expected


def test_the_default_is_the_recommended_recipe_at_a_size_that_the_machine_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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

    held = Config().change(data=data, train={"length": "7 images"})
    (tmp_path / "config.yaml").write_text(write_yaml(held))
    assert _configured("--data", "a", "b", "--out", str(tmp_path)) == held
    assert _configured("--data", "a", "b", "--out", str(tmp_path), "--images", "9").train.length == "9 images"


@pytest.mark.skipif(find_lite("lite0") is None, reason="the weights of EfficientNet-Lite0 are not installed")
def test_what_was_picked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--data", "apples2oranges", *TINY, "--engine.device", "cpu", "--out", str(tmp_path / "run"), "--json"]
    assert main(["train", *words]) == 0
    said = capsys.readouterr().err
    assert "the recommended preset for a CPU: 2 channels, crops of 32x32, 2 images; --size, " in said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["preset"] == "auto"
    assert main(["train", "cyclegan", *words]) == 2, "the run is another"
    assert "recommended" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ("--minutes 60", {"train": {"length": "60 minutes"}}),
        ("--images 500", {"train": {"length": "500 images"}}),
        ("--epochs 2.5", {"train": {"length": "2.5 epochs"}}),
        ("--size s", {"generator": {"channels": 32, "blocks": 6}, "discriminator": {"channels": 32}}),
        (
            "--size s --generator.blocks 1",
            {"generator": {"channels": 32, "blocks": 1}, "discriminator": {"channels": 32}},
        ),
        ("--image-size 128 --seed 7", {"data": {"crop_size": 128}, "train": {"seed": 7}}),
        ("--image_size 32 --data.load_size 40", {"data": {"crop_size": 32, "load_size": 40}}),
        ("--data.rotate90", {"data": {"rotate90": True}}),
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


def test_a_size_counts_for_cells_and_beside_a_run_that_is_continued(tmp_path: Path):
    cells = _configured("cyclegan", "--data", "d", "--size", "s", "--generator.network", "cells")
    assert cells == Config().change(data={"path": ("d",)}, generator={"network": "cells"}).with_size("s")
    (tmp_path / "config.yaml").write_text(write_yaml(RECIPES["fast"]()))
    asked = _configured("--data", "d", "--out", str(tmp_path), "--size", "m")
    assert (asked.generator.channels, asked.generator.blocks) == (64, 6)


def test_a_run_folder_or_file_is_a_start_for_more_flags(tmp_path: Path):
    config = Config().change(data={"path": ("there",), "flip": False}, train={"seed": 9}, schedule={"kind": "cosine"})
    (tmp_path / "config.yaml").write_text(write_yaml(config))
    assert _configured("--config", str(tmp_path)) == config
    changed = _configured(f"--config={tmp_path / 'config.yaml'}", "--data.flip", "true", "--epochs", "3")
    assert changed == config.change(data={"flip": True}, train={"length": "3 epochs"})


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ("train --out r", "--data is missing"),
        ("train --data apples2oranges", "--out is missing"),
        ("train --data d --out r --images 5 --minutes 2", "--minutes and --images contradict each other"),
        ("train --data d --seed 1 --train.seed 2", "--seed and --train.seed set the same field: give one of the two"),
        ("train --data /no/such/folder --out {tmp}/r", "/no/such/folder"),
        ("train --data d --out r --generator.chanels 3", "did you mean --generator.channels"),
        ("train --data d --out r --generator.channels many", "--generator.channels many"),
        ("train --data d --out r --generator.channels 0", "generator.channels=0: input should be greater"),
        ("train --data d --out r --images abc", "--images abc: give a whole number"),
        ("train --data d --out r --data.range-a 1 b", "--data.range-a 1 b: give two numbers"),
        ("train --data d --out r --seed", "--seed: its value is missing"),
        ("train --data d --out r --train.length soon", "is not a duration"),
        ("train --data d --out r --optimizer.rules X:foo=1", "optimizer.rules: 'X:foo=1': there is no foo"),
        ("train --data d --method onepair --optimizer.rules G_A:lr=1 --dry-run", "no trained network (E, R, T_A, D_A)"),
        ("train contrast --data d --out r --generator.blocks 0", "generator.blocks=0 has no features"),
        ("train fats --data d --out r", "there is no preset 'fats'; did you mean fast? There are auto, cyclegan"),
        ("train --out r fast --data d", "fast: a preset comes before all flags: velogan train fast"),
        ("train --data d --out {tmp}/file/r", "--out {tmp}/file/r: nothing can be written to {tmp}/file (Not a direc"),
        ("train --help optimiser", "--help optimiser: unknown section; did you mean optimizer?"),
        ("train --config {tmp}/none.yaml --out r", "file not found"),
        ("train --gpu", "--gpu: unknown flag; use --device cuda"),
        ("train --preset fast", "use the name of the preset, without a flag, as the first word"),
        ("train --lr 3", "did you mean --optimizer.lr?; docs/migration.md has the reference implementation's flags"),
        ("train --lambda_A=3", "--lambda_A=3: unknown flag; docs/migration.md"),
        ("train --frobnicate", "--frobnicate: unknown flag"),
        ("train {tmp} --out r", "For training images write --data {tmp} --out FOLDER"),
        ("train fast --config run.yaml --data d", "fast and --config run.yaml contradict each other: give one"),
        ("train --data d --seed -1", "--seed=-1: input should be"),
        ("train cyclegan --data {tmp}/d --out {tmp}/d/trainA/r --dry-run", "lies in {tmp}/d/trainA"),
        ("train cyclegan --data {tmp}/d --start nowhere --dry-run", "nowhere does not exist"),
        ("sweep demo --data {tmp}/d --images 1 --out {tmp}/d/trainA/r --dry-run", "lies in {tmp}/d/trainA"),
        ("sweep --epochs 3", "--epochs: unknown flag; use --images or --minutes"),
        ("sweep plan.yaml --seeds 3", "--seeds cannot be combined with plan.yaml: set it in that file"),
        ("translate photos run out", "photos is not a run, but run is: write translate RUN INPUT OUTPUT"),
        ("translate --overwite run photos out", "did you mean --overwrite?"),
        ("evaluate run --gpu 0", "--gpu: unknown flag; use --device cuda"),
        ("trian --data d", "there is no command 'trian'; did you mean train?"),
        ("data rendr", "did you mean data render?"),
        ("train --data d --hidden 8", "--hidden 8 is the width of a genotype's networks: add --genotype FILE"),
        ("train --data d --sizes-only", "--sizes-only uses the sizes of a genotype: add --genotype FILE"),
        ("train --data d --genotype none.json", "--genotype none.json: file not found"),
        ("search --data d --out r --method three-step", "scheme"),
        ("search --data d --out r --inner pix2pix", "inner=pix2pix cannot be searched: choose cyclegan or onepair"),
        ("search --data d --out r --hidden 0", "--hidden 0: give a whole number from 1 to 4096"),
        ("search --data d --out r --cells 1", "--cells 1: give a whole number from 2 to 100"),
        ("search --data d --out r --generator.network resnet", "has no operations to choose"),
        ("data render apples2oranges {tmp}/set --count 0", "--count 0: give at least 1"),
        ("translate {tmp} in", "missing: OUTPUT The file or folder to write"),
        ("translate {tmp} -file out", "-file looks like a flag: write ./-file"),
        ("translate {tmp} in out --address auto", "add --workers N"),
        ("evaluate {tmp}/none", "{tmp}/none"),
    ],
)
def test_bad_input_is_one_readable_message(
    argv: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "-file").touch()
    (tmp_path / "d" / "trainA").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    said = _refused(capsys, *argv.format(tmp=tmp_path).split())
    assert named.format(tmp=tmp_path) in said
    assert said.count("velogan: ") <= 1
    assert {path.name for path in tmp_path.iterdir()} == {"file", "-file", "d", "run"}, "something was written"


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_of_every_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "usage: velogan" in said
    summaries = [command.summary for command in ([COMMANDS[words]] if words else COMMANDS.values())]
    assert all(summary in " ".join(said.split()) for summary in summaries)
    assert "--json" in said or not words
    assert "Flags of" not in said
    if words:  # each example stands on a line of its own
        examples = [line for line in COMMANDS[words].description().splitlines() if line.startswith("velogan ")]
        assert [line for line in map(str.strip, said.splitlines()) if line in examples] == examples


def _help(capsys: pytest.CaptureFixture[str], argv: str) -> list[str]:
    with pytest.raises(SystemExit):
        main(argv.split())
    return capsys.readouterr().out.splitlines()


def test_help_is_one_screen_and_leads_to_the_rest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    for argv in ("train --help", "translate --help", "help train"):
        lines = _help(capsys, argv)
        assert len(lines) < 46
        assert max(map(len, lines)) <= 100
        assert any("--help-all" in line for line in lines)
    assert lines[0] == "usage: velogan train [FLAGS] [PRESET]"
    assert any("--genotype FILE" in line for line in lines)
    assert not any("--generator.channels" in line for line in lines)
    schedule = " ".join(" ".join(_help(capsys, "train adam-each-decay --help schedule")).split())
    assert "--schedule.kind linear|step|cosine|exponential|constant" in schedule
    assert "Default: exponential." in schedule
    assert "--optimizer.lr" not in schedule
    everything = " ".join(" ".join(_help(capsys, "train --help-all")).split())
    assert "--generator.channels NUMBER" in everything
    assert "Number of residual blocks of a resnet" in everything
    assert "--match-size" in everything


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


@pytest.mark.parametrize("before", ["train --data", "translate", "data check", "evaluate run --data"])
def test_an_empty_word_is_no_folder(before: str, capsys: pytest.CaptureFixture[str]):
    assert f"the value after {before.split()[-1]} is empty" in _refused(capsys, *before.split(), "")


def test_a_random_search_that_finds_fewer_settings_says_so(capsys: pytest.CaptureFixture[str]):
    words = "--data apples2oranges --search random --trials 5 --images 10 --vary generator.blocks=1..2 --dry-run --json"
    assert main(["sweep", "demo", *words.split()]) == 0
    said = capsys.readouterr()
    assert "--trials 5: the values of --vary give no more than 2 settings" in said.err
    assert json.loads(said.out.splitlines()[-1])["count"] == 2


def test_a_dry_run_says_what_a_run_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    argv = ["train", "cyclegan", "--data", "apples2oranges", *TINY, "--out", str(tmp_path / "run"), "--dry-run"]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 2
    assert found["estimate"]["memory_mb"] > 100
    assert Config.model_validate(found["config"]).data.crop_size == 32
    monkeypatch.setattr(probe, "probe", lambda config, cores: probe.StepCost(1, 1, 0))
    assert main(argv) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "A (apples): 2 pictures for training, 0 held out, 1 for test; 3 channels"
    assert said[2] == "each picture: resized to 36x36, then a random crop of 32x32 pixels"
    assert said[3].startswith("networks: G_A ")
    assert said[4] == "length: 2 images of each domain (1 epochs of 2)"
    assert said[5].startswith("estimate: ")
    assert "  generator.channels: 2   (default: 64)" in said
    assert not any("generator.norm" in line for line in said)
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
def test_nothing_is_loaded_that_is_not_needed(code: str, not_loaded: set[str]):
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
    said = _refused(capsys, "train", "--data", "apples2oranges", *again, "--generator.norm", "batch")
    assert "generator.norm is 'batch' here and 'instance' there" in said


def test_a_folder_of_other_things_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "thesis.tex").write_text("years of work")
    said = _refused(capsys, "train", "--data", "apples2oranges", *TINY, "--out", str(tmp_path))
    assert "is not empty and is not a run: choose a new folder" in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
