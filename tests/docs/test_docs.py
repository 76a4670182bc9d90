"""The commands of the README, of getting started and of `PAGES` run, in order, with short lengths and tiny networks.

Commands of other documents are checked for flags that there are.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import pytest
import torch

from velogan.cli import COMMANDS, main
from velogan.cli.train import Train, configure_train
from velogan.config import Config, field_names
from velogan.data.pictures.images import Picture, save_picture
from velogan.networks.discriminators import DiscriminatorConfig, build_discriminator
from velogan.networks.generators import GeneratorConfig, build_generator
from velogan.recipes import RECIPES

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]
TINY = {
    "generator": {"channels": 2, "blocks": 1},
    "discriminator": {"channels": 2},
    "data": {"crop_size": 32, "validation": 2},
    "train": {"samples": 1},
    "engine": {"precision": "fp32", "kernels": "plain", "threads": 1},
}


PAGES = ["howto", "formats", "migration", "keras", "evaluation", "serve"]
NOT_RUN = {
    "--format onnx": "it takes seconds: tests/interchange/test_export.py",
    "--format torch": "the same",
    "velogan serve": "it waits for requests: tests/serve",
    "--format web": "it takes a package of npm: tests/interchange/test_site.py",
    "--train.logger wandb": "it needs a client: tests/extras.py",
}
"""Commands that are only parsed, and the tests that run them."""


OF_THE_SHELL = {". .venv/bin/activate"}
"""What makes an environment, and is left to those who make one."""


def commands(document: str) -> list[str]:
    """The lines of all `sh` blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def tiny(line: str) -> list[str]:
    """The command's words with minutes of training turned into images, and counts and sides of pictures made small.

    Only the run that is asked for its best checkpoint scores held-out pictures, which takes seconds.
    """
    line = re.sub(r"--minutes (\d+)0", r"--images \1", line)
    line = re.sub(r"--(images|count) (\d)\d+", r"--\1 \2", line)
    line = re.sub(r"--test-count \d+", "--test-count 4", line)
    line = re.sub(r"--image-size \d+", "--image-size 32", line)
    if line.startswith("velogan train") and "--out runs/zebras" not in line:
        line += " --data.validation 0"
    if " --config " in line:
        line += " --image-size 32"
    return shlex.split(line)[1:]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the how-tos speak of."""
    monkeypatch.chdir(tmp_path)
    for name in RECIPES:
        recipe = RECIPES[name]().change(**TINY)
        monkeypatch.setitem(RECIPES, name, lambda recipe=recipe: recipe)
    random = np.random.default_rng(0)

    def write(file: str, *, dtype: type = np.uint8, size: int = 40, channels: int = 3, most: int = 256) -> None:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        save_picture(path, Picture(random.integers(0, most, (size, size, channels)).astype(dtype)))

    for index in range(22):
        write(f"horse2zebra/trainA/{index}.jpg")
        write(f"horse2zebra/trainB/{index}.jpg")
    for index in range(4):
        write(f"horse2zebra/testA/{index}.png")
        write(f"horse2zebra/testB/{index}.png")
        write(f"scans/ct/p{index // 2}-{index}.npy", dtype=np.float32, channels=1, most=1000)
        write(f"scans/mr/p{index // 2}-{index}.png", dtype=np.uint16, channels=1, most=4096)
    write_video(tmp_path / "video.mp4")
    reference = tmp_path / "checkpoints" / "horse2zebra"
    reference.mkdir(parents=True)
    nets = {role: build_generator(GeneratorConfig(channels=2, blocks=1)) for role in ("G_A", "G_B")}
    discriminators = {role: build_discriminator(DiscriminatorConfig(channels=2)) for role in ("D_A", "D_B")}
    for role, net in (nets | discriminators).items():  # of the same names as the reference implementation's
        torch.save(net.state_dict(), reference / f"latest_net_{role}.pth")
    write("photos/one.jpg", size=46)
    write("photos/deeper/two.png", size=33)
    write("large/large.png", size=200)
    return tmp_path


def write_video(file: Path) -> None:
    """Three frames without sound."""
    with av.open(str(file), "w") as container:
        video = container.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 48, 32, "yuv420p"
        for level in (0, 100, 200):
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), level, np.uint8), format="rgb24")
            container.mux(video.encode(frame))
        container.mux(video.encode(None))


def _shown(document: Path) -> list[str]:
    """Each command that a document shows in a block of code."""
    text, lines = document.read_text().replace("\\\n", " "), []
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines += block.splitlines()
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines = [re.sub(r"^torchrun .*? -m velogan ", "velogan ", line) for line in lines]
    return [line for line in lines if line.startswith("velogan ")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_flags_exist(document: Path) -> None:
    inline = re.findall(r"`(velogan [a-z][^`]* -[^`]*)`", document.read_text())
    for line in [*_shown(document), *inline]:
        words = shlex.split(line)[1:]
        command = next((name for name in COMMANDS if tuple(words[: len(name)]) == name), None)
        assert command is not None, words
        known = {field.name.replace("_", "-") for field in dataclasses.fields(cast(Any, COMMANDS[command].load()))}
        known |= {"json", "help", "help-all"} | {f"no-{name}" for name in known}
        flags = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
        assert {flag for flag in flags if "." not in flag} <= known, words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_fields_exist(document: Path) -> None:
    known = {name.replace("_", "-") for name in field_names(Config)}
    flags = re.findall(r"--([a-z][a-z_-]*\.[a-z][a-z0-9_.-]*[a-z0-9])", document.read_text())
    named = {flag.replace("_", "-").replace(".no-", ".") for flag in flags}
    known |= {"section.field", "method.inner"}
    assert named <= known | {name.replace("method.", "method.inner.", 1) for name in known}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_values_are_valid(document: Path) -> None:
    """By one of the presets: flags with values within a sentence or a table."""
    presets = list(RECIPES)
    for code in dict.fromkeys(re.findall(r"`(--[a-z-]+\.[a-z][^`]* [^`]+)`", document.read_text())):
        if code not in ("--section.field VALUE", "--method.hidden H"):
            preset = next((one for one in presets if _taken([one, "--data", "d", *shlex.split(code)])), None)
            assert preset, code
            presets.sort(key=preset.__ne__)  # the next is probably of the same one


def _taken(words: list[str]) -> bool:
    try:
        configure_train(Train.parse(words, prog="velogan train", description=""))
    except ValueError:
        return False
    return True


def test_the_migration_page_has_every_option_of_the_reference() -> None:
    """Those of options/{base,train,test}_options.py and models/*_model.py, as of August 2025."""
    options = """dataroot name checkpoints_dir model input_nc output_nc ngf ndf netD netG n_layers_D norm init_type
        init_gain no_dropout dataset_mode direction serial_batches num_threads batch_size load_size crop_size
        max_dataset_size preprocess no_flip display_winsize epoch load_iter verbose suffix use_wandb wandb_project_name
        display_freq display_ncols update_html_freq print_freq no_html save_latest_freq save_epoch_freq save_by_iter
        continue_train epoch_count phase n_epochs n_epochs_decay beta1 lr gan_mode pool_size lr_policy lr_decay_iters
        lambda_A lambda_B lambda_identity lambda_L1 results_dir aspect_ratio eval num_test model_suffix"""
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs/migration.md").read_text(), re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"--(\w+)", row)}
    assert set(options.split()) <= named


@pytest.mark.parametrize("document", ["README.md", "docs/getting-started.md"])
def test_commands_of_the_first_pages_run(document: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in commands(document) if line not in OF_THE_SHELL and not line.startswith("make ")]
    assert len(lines) >= 5
    run(lines, capsys)
    assert (workplace / "runs/first/report.html").is_file()
    assert len(list((workplace / "runs/first/translated").iterdir())) == 4


@pytest.fixture
def pages(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the pages speak of more; two images a training, which looks at pictures by no trained features."""
    nibabel = pytest.importorskip("nibabel", reason="the extra medical is not installed")
    pydicom = pytest.importorskip("pydicom", reason="the extra medical is not installed")
    for name in RECIPES:
        recipe = RECIPES[name]().change(train={"length": "2 images"}, discriminator={"network": "basic"})
        monkeypatch.setitem(RECIPES, name, lambda recipe=recipe: recipe)
    for copy in ("game", "games", "streets", "maps/trainA", "maps/trainB", "maps-pairs/A", "maps-pairs/B"):
        shutil.copytree("horse2zebra/trainA", copy)
    shutil.copy("video.mp4", "drive.mp4")
    sides = {f"horse2zebra/mask{letter}/{index}.png": 40 for letter in "AB" for index in range(22)}
    sides |= {f"games-labels/{index}.png": 40 for index in range(22)}
    for name, side in sides.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        halves = np.arange(side)[:, None, None].repeat(side, 1) // (side // 2 + 1)
        save_picture(Path(name), Picture((halves * (1 if "labels" in name else 255)).astype(np.uint8)))
    values = np.random.default_rng(0).integers(0, 900, (40, 40, 3)).astype(np.int16)
    for name in ("scans/t1/p0", "scans/t2/p0", "nifti/t1/p0", "nifti/t2/p0", "nifti/p0"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), f"{name}.nii.gz")
    slice_of_ct = pydicom.dcmread(pydicom.data.get_testdata_file("CT_small.dcm"))
    for folder in ("dicom", "ct/plain", "ct/contrast"):
        Path(folder).mkdir(parents=True)
        for number in range(2):
            slice_of_ct.SOPInstanceUID = slice_of_ct.file_meta.MediaStorageSOPInstanceUID = f"1.2.{number}"
            slice_of_ct.InstanceNumber, slice_of_ct.ImagePositionPatient = number, [0, 0, number]
            slice_of_ct.save_as(f"{folder}/{number}.dcm")
    return workplace


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_run(page: str, pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(ROOT / f"docs/{page}.md")
    assert lines
    begun = "velogan train fast --data horse2zebra --out runs/zebras"
    if begun not in lines and any(" runs/zebras " in line and "train" not in line for line in lines):
        lines.insert(0, begun)
    parsed = [line for line in lines if any(words in line for words in NOT_RUN)]
    for line in parsed:
        words = shlex.split(line)[1:]
        COMMANDS[words[0],].load().parse(words[1:], prog=f"velogan {words[0]}", description="")
    run([line for line in dict.fromkeys(lines) if line not in parsed], capsys)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL):
        exec(compile(block, page, "exec"), names)


def test_python_examples_run(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(blocks) > 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(block.replace("60 minutes", "4 images"), names)
    assert "did you mean generator.channels?" in capsys.readouterr().out
    assert (workplace / "one-as-zebra.png").is_file()
    assert (workplace / "translated/deeper/two.png").is_file()
    assert (workplace / "zebras.pt2").is_file()


def test_the_notebook_runs(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in their order, as a kernel runs them; one is not started, which takes seconds."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    told = json.loads((ROOT / "examples/translate.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in told["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shorter = {
        "4 minutes": "4 images",
        '"60"': '"8"',
        '"12"': '"4"',
        '"72"': '"40"',
        '": 72': '": 40',
        '": 64': '": 32',
    }
    text = "\n# the next cell\n".join(cells)
    for long, short in shorter.items():
        assert long in text
        text = text.replace(long, short)
    for cell in text.split("\n# the next cell\n"):
        exec(cell, names)
    assert names["shown"].size == (160, 80)
    assert names["again"].translate(names["apples"][0]).size == (40, 40)
    assert "| a2b | psnr_object_db |" in (workplace / "runs/notebook-model/README.md").read_text()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_make_targets_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    flags = set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE))
    assert flags
    assert flags <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def run(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each line as a command, which ends well."""
    for line in lines:
        assert line.startswith("velogan "), line
        assert main(tiny(line)) == 0, f"{line}\n{capsys.readouterr().err}"
