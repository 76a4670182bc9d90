"""`velogan import` and `velogan export`: networks from and for other programs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from velogan.cli.flags import Checkpoint, Flags, Json, Model, Outcome, Weights, output_folder


@dataclass(kw_only=True)
class Import(Flags):
    """Flags of `velogan import`.

    velogan import checkpoints/horse2zebra runs/zebras
    velogan import horse2zebra.pth runs/zebras
    """

    source: Annotated[
        Positional[Path], arg(metavar="FILE|FOLDER", help="A generator's .pth file, or a folder checkpoints/NAME.")
    ]
    run: Annotated[Positional[Path], arg(metavar="RUN", help="The run folder to create.")]
    picture_statistics: Annotated[
        bool,
        arg(
            help="Let batch norm of generators use each image's own statistics instead of those of training, as the "
            "reference's test.py does without --eval. Dropout stays off."
        ),
    ] = False
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("RUN", self.run)]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.interchange.importing import import_reference

        result = import_reference(self.source, self.run, picture_statistics=self.picture_statistics)
        for network in result["networks"]:
            print(f"{network['role']}: {network['network']}, {network['parameters']:,} parameters", file=sys.stderr)
        return result, 0


@dataclass(kw_only=True)
class Export(Flags):
    """Flags of `velogan export`.

    velogan export runs/zebras zebras.onnx --format onnx
    velogan export runs/zebras checkpoints/zebras --format reference
    velogan export runs/zebras out/hub --format hub --license mit
    velogan export runs/zebras site --format web
    """

    model: Model
    out: Annotated[
        Positional[Path],
        arg(metavar="OUT", help="The file (.onnx, .pt2, .pth) for one direction, or the folder for all directions."),
    ]
    format: Annotated[
        Literal["onnx", "torch", "reference", "hub", "web"],
        arg(
            help="onnx: ONNX (extra `onnx`); torch: a torch.export program; both accept any batch size, heights and "
            "widths that are multiples of a number, 4 for most networks, see the card; reference: weights that the "
            "reference implementation loads; hub: a folder for the Hugging Face Hub; web: a static web site that "
            "translates in the visitor's browser (extra `onnx`)."
        ),
    ]
    direction: Annotated[
        Literal["a2b", "b2a"] | None, arg(help="Export only this direction. Default: a2b for a file, all for a folder.")
    ] = None
    weights: Weights = None
    checkpoint: Checkpoint = None
    license: Annotated[
        str | None,
        arg(
            help="For hub and onnx: the licence, as the Hub's identifier. If omitted, the card says that no licence is "
            "stated.",
            metavar="mit|...",
        ),
    ] = None
    datasets: Annotated[
        tuple[str, ...], arg(help="For hub: names of the training data sets on the Hub.", metavar="NAME")
    ] = ()
    picture: Annotated[
        Path | None, arg(help="For hub: a picture that the card shows before and after translation.", metavar="FILE")
    ] = None
    onnxruntime: Annotated[
        Path | None,
        arg(
            help="For web: the npm package of onnxruntime-web as a file, for machines without access to npm. Default: "
            "download it once.",
            metavar="FILE",
        ),
    ] = None
    json: Json = False

    def output_paths(self) -> list[tuple[str, Path]]:
        return [("OUT", output_folder(self.out))]

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.interchange.bundle import ExportOptions, write_export
        from velogan.interchange.card import CardMetadata
        from velogan.interchange.hub import resolve_model_path

        card_fields = (self.license, self.datasets, self.picture)
        options = ExportOptions(
            direction=self.direction,
            weights=self.weights,
            checkpoint=self.checkpoint,
            metadata=CardMetadata(*card_fields) if any(card_fields) else None,
            onnxruntime=self.onnxruntime,
        )
        result = write_export(resolve_model_path(self.model), self.out, format=self.format, options=options)
        details = f"maximum difference from PyTorch {result['max_difference']:.2g}"
        if "half" in result:
            details += f", weights in {'float16' if result['half'] else 'float32, because float16 changes results'}"
        print(f"{self.out}: {result['megabytes']} MB, {details}; card: {result['card']}", file=sys.stderr)
        return result, 0
