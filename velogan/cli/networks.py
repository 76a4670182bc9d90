"""`velogan import` and `velogan export`: networks of and for other programs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from velogan.cli.flags import Checkpoint, Flags, Json, Outcome, Weights, folder_of


@dataclass(kw_only=True)
class Import(Flags):
    """Flags of `velogan import`.

    velogan import checkpoints/horse2zebra runs/zebras

    velogan import horse2zebra.pth runs/zebras
    """

    source: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE|FOLDER", help="A generator's .pth file, or a folder checkpoints/NAME."),
    ]
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="The run folder to make.")]
    picture_statistics: Annotated[
        bool,
        tyro.conf.arg(
            help="Batch norm of generators takes the statistics of each picture, as the reference's test.py does "
            "without --eval, and not those of training. Dropout stays off."
        ),
    ] = False
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("RUN", self.run)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.interchange.importing import import_reference

        result = import_reference(self.source, self.run, picture_statistics=self.picture_statistics)
        for one in result["networks"]:
            print(f"{one['role']}: {one['network']}, {one['parameters']:,} parameters", file=sys.stderr)
        return result, 0


@dataclass(kw_only=True)
class Export(Flags):
    """Flags of `velogan export`.

    velogan export runs/zebras zebras.onnx --format onnx

    velogan export runs/zebras checkpoints/zebras --format reference

    velogan export runs/zebras out/hub --format hub --license mit

    velogan export runs/zebras site --format web
    """

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|FILE", help="A run folder, a .safetensors or .pth file, or hf://OWNER/NAME."),
    ]
    out: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(
            metavar="OUT", help="A file (.onnx, .pt2, .pth) for one direction, or a folder for all that there are."
        ),
    ]
    format: Annotated[
        Literal["onnx", "torch", "reference", "hub", "web"],
        tyro.conf.arg(
            help="onnx: with any height and width (extra `onnx`); torch: a program of torch.export; reference: weights "
            "that the reference implementation loads; hub: a folder with a page, as Hugging Face's hub has "
            "them; web: a folder for any web host, whose page translates on the visitor's machine (extra `onnx`).",
            metavar="onnx|torch|reference|hub|web",
        ),
    ]
    direction: Annotated[
        Literal["a2b", "b2a"] | None,
        tyro.conf.arg(help="This direction alone. Default: a2b for a file, all for a folder.", metavar="a2b|b2a"),
    ] = None
    weights: Weights = None
    checkpoint: Checkpoint = None
    license: Annotated[
        str | None,
        tyro.conf.arg(
            help="For hub and onnx: the licence, by the hub's identifier. Default: said to be not stated.",
            metavar="mit|...",
        ),
    ] = None
    datasets: Annotated[
        tuple[str, ...], tyro.conf.arg(help="For hub: data sets by their names there.", metavar="NAME")
    ] = ()
    picture: Annotated[
        Path | None, tyro.conf.arg(help="For hub: a picture that the page shows before and after.", metavar="FILE")
    ] = None
    opset: Annotated[
        int | None,
        tyro.conf.arg(help="For onnx: the version of its operators. Default: the exporter's own.", metavar="NUMBER"),
    ] = None
    onnxruntime: Annotated[
        Path | None,
        tyro.conf.arg(
            help="For web, where npm cannot be reached: the file of the package onnxruntime-web. Default: fetched from "
            "npm once, by its checksum.",
            metavar="FILE",
        ),
    ] = None
    json: Json = False

    def places(self) -> list[tuple[str, Path]]:
        return [("OUT", folder_of(self.out))]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.interchange.bundle import write_export
        from velogan.interchange.card import CardMetadata
        from velogan.interchange.hub import local

        common: Any = {"direction": self.direction, "weights": self.weights, "checkpoint": self.checkpoint}
        for_card = (self.license, self.datasets, self.picture)
        common["metadata"] = CardMetadata(*for_card) if any(for_card) else None
        common |= {"opset": self.opset, "onnxruntime": self.onnxruntime}
        result = write_export(local(self.model), self.out, format=self.format, **common)
        difference, size = result["max_difference"], result["megabytes"]
        far = f"at most {difference:.2g} from PyTorch"
        if "half" in result:
            far += f", weights in {'float16' if result['half'] else 'float32, since float16 changes results'}"
        print(f"{self.out}: {size} MB, {far}; card: {result['card']}", file=sys.stderr)
        return result, 0
