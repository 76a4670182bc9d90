"""Builds velogan's wheel and installs it in clean environments, with and without each extra, and runs what each is for.

    python tests/extras.py [--torch SITE_PACKAGES] [--folder FOLDER] [EXTRA ...]

Slow: `make extras`. It builds a source distribution, from that a wheel, and installs the wheel alone in a fresh
environment. Each extra then gets an environment of its own, in which pip finds what the first one holds and fetches the
rest. `--torch`: take PyTorch from this folder instead of fetching it. Prints a table: the extra, what pip installed for
it, the command that ran.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TINY = (
    "--data apples2oranges --image-size 32 --generator.channels 2 --generator.blocks 1 --discriminator.channels 2 "
    "--data.render-count 2 --data.render-test 2 --data.validation 0 --train.samples 0 --train.logger none "
    "--engine.threads 1 --engine.precision fp32"
)
HELD_OUT = TINY.replace("render-count 2", "render-count 24").replace("validation 0", "validation 2")
_PICTURES = "import numpy, PIL.Image; PIL.Image.fromarray(numpy.zeros((40, 48, 3), 'uint8')).save('in/a.png')"
_SCAN = (
    "import nibabel, numpy; nibabel.save(nibabel.Nifti1Image(numpy.ones((16, 16, 2), 'int16'), numpy.eye(4)), 'a.nii')"
)
_HEIC = (
    "import PIL.Image, pillow_heif; pillow_heif.from_pillow(PIL.Image.new('RGB', (48, 40))).save('a.heic', quality=90)"
)
_VIDEO = """import av, numpy
with av.open('a.mp4', 'w') as container:
    video = container.add_stream('libx264', rate=10)
    video.width = video.height = 32
    for frame in [av.VideoFrame.from_ndarray(numpy.zeros((32, 32, 3), 'uint8'))] * 3:
        container.mux(video.encode(frame))
    container.mux(video.encode(None))"""
_SERVED = """import json, subprocess, sys, urllib.request
words = [sys.executable, '-m', 'velogan', 'serve', 'run', '--port', '0']
server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
address = next(line.split()[2] for line in server.stderr if 'serving at' in line)
print(json.load(urllib.request.urlopen(address.rstrip('/') + '/healthz')))
server.terminate()"""
_HUB = """import os, pathlib
kept = pathlib.Path(os.environ['HF_HUB_CACHE'], 'models--me--apples')
(kept / 'refs').mkdir(parents=True)
(kept / 'refs' / 'main').write_text('0' * 40)
(kept / 'snapshots').mkdir()
pathlib.Path('hub').rename(kept / 'snapshots' / ('0' * 40))"""

RUNS: dict[str, list[str]] = {
    "": [
        f"velogan train {TINY} --images 1 --out run",
        f"py {_PICTURES}",
        "velogan translate run in out/plain",
        "velogan evaluate run --features lite2",
    ],
    "onnx": ["velogan export run out/net.onnx --format onnx"],
    "serve": [f"py {_SERVED}"],
    "hub": ["velogan export run hub --format hub", f"py {_HUB}", "velogan translate hf://me/apples in out/hub"],
    "medical": [f"py {_SCAN}", "velogan translate ranged a.nii out/a.nii"],
    "sweep": [f"velogan sweep {HELD_OUT} --images 1 --vary optimizer.lr=0.001,0.002 --out sweep"],
    "scale": ["velogan translate run in out/scale --workers 1"],
    "video": [f"py {_VIDEO}", "velogan translate run a.mp4 out/a.mp4"],
    "wandb": [f"velogan train {TINY} --train.logger wandb --images 1 --out wandb-run"],
    "mlflow": [f"velogan train {TINY} --train.logger mlflow --images 1 --out mlflow-run"],
    "heic": [f"py {_HEIC}", "velogan translate run a.heic out/heic.png"],
    "docs": [f"py -m sphinx -W -q {ROOT / 'docs'} site"],
}
"""By extra, but for `dev`, which holds the others: what runs in a folder that has `run`, `ranged` and pictures in `in`.
The last is what it is for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="all, unless some are named")
    parser.add_argument("--torch", type=Path, help="the site-packages that has PyTorch")
    parser.add_argument("--folder", type=Path, help="kept, and gone on with, if named")
    arguments = parser.parse_args()
    if unknown := set(arguments.extras) - set(RUNS):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(filter(None, RUNS))}")
    with tempfile.TemporaryDirectory() as fresh:
        folder = (arguments.folder or Path(fresh)).resolve()
        wheel = _built(folder / "dist")
        work = folder / "work"
        for name in ("in", "out"):
            (work / name).mkdir(parents=True, exist_ok=True)
        torch = [_of_torch(arguments.torch, folder)] if arguments.torch else []
        base = _environment(folder / "base", below=torch)
        print("| extra | installed for it | what ran |\n|---|---|---|", flush=True)
        for extra in ["", *(arguments.extras or list(filter(None, RUNS)))]:
            if extra and not (work / "ranged").exists():
                _runs(
                    base,
                    f"velogan train {TINY} --images 1 --out ranged --data.range-a 0 255 --data.range-b 0 255",
                    work,
                )
            place = _environment(folder / extra, below=[_packages(base), *torch]) if extra else base
            installed = _installed(place, f"{wheel}[{extra}]" if extra else str(wheel))
            for command in RUNS[extra] if extra or not (work / "run").exists() else []:
                _runs(place, command, work)
            print(f"| {extra or '(none)'} | {installed} | `{_shown(RUNS[extra][-1])}` |", flush=True)


def _built(folder: Path) -> Path:
    """The wheel, made from a source distribution."""
    if not list(folder.glob("*.whl")):
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, stdout=sys.stderr
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _environment(folder: Path, *, below: list[Path]) -> Path:
    """A fresh environment, in which the packages of the folders `below` are there already."""
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (_packages(folder) / "below.pth").write_text("".join(f"{path}\n" for path in below))
    return folder


def _packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def _of_torch(site: Path, folder: Path) -> Path:
    """A folder with PyTorch alone of all that is in `site`."""
    target = folder / "torch"
    target.mkdir(exist_ok=True)
    for path in site.resolve().glob("torch*"):
        if (
            re.fullmatch(r"torch(gen)?|torch-[\d.]+(\+\w+)?\.dist-info", path.name)
            and not (target / path.name).exists()
        ):
            (target / path.name).symlink_to(path)
    return target


def _installed(environment: Path, requirement: str) -> str:
    """Installs it; gives what pip says that it installed, without velogan and what only others need."""
    words = [str(environment / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    done = subprocess.run([*words, requirement], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    match = re.search(r"Successfully installed (.*)", done.stdout)
    names = [name for name in (match[1].split() if match else []) if not name.startswith("velogan-")]
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extra = requirement.rpartition("[")[2].rstrip("]") if requirement.endswith("]") else ""
    requirements = project["optional-dependencies"][extra] if extra else project["dependencies"]
    plain = [re.split(r"[^\w.-]", name)[0].lower().replace("_", "-") for name in requirements]
    direct = [name for name in names if name.rpartition("-")[0].lower().replace("_", "-") in plain]
    rest = len(names) - len(direct)
    return ", ".join(direct) + (f", and {rest} that they need" if rest else "") or "nothing more"


def _runs(environment: Path, command: str, folder: Path) -> None:
    """Runs a command of the environment, `py` for Python code or options; ends all with its output where it fails."""
    name, _, rest = command.partition(" ")
    words = [str(environment / "bin" / "python")]
    if name == "velogan":  # whose script is in the first environment alone
        words += ["-m", "velogan", *rest.split()]
    else:
        words += rest.split() if rest.startswith("-m ") else ["-c", rest]
    env = os.environ | {
        "HF_HUB_CACHE": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    env.pop("PYTHONPATH", None)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(f"{' '.join(words)[:300]}\n{done.stdout}\n{done.stderr}")


def _shown(command: str) -> str:
    if command == RUNS["serve"][-1]:
        return "velogan serve run` and `GET /healthz"
    name, _, rest = command.replace(f"{TINY} ", "").replace(f"{ROOT}/", "").partition(" ")
    return f"{'python' if name == 'py' else name} {rest}"


if __name__ == "__main__":
    main()
