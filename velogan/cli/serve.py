"""`velogan serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from velogan.cli.flags import FP32, Checkpoint, Flags, Json, Outcome, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from velogan.translate.model import Translator
    from velogan.translate.uncertainty import UncertaintyEstimator
    from velogan.types import Direction


@dataclass(kw_only=True)
class Serve(Flags):
    """Flags of `velogan serve`.

    velogan serve runs/zebras
    """

    model: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="RUN|FILE", help="A run folder, a .safetensors or .pth file, or hf://OWNER/NAME."),
    ]
    port: Annotated[int, tyro.conf.arg(help="The port to listen at; 0: one that is free.", metavar="NUMBER")] = 8000
    host: Annotated[
        str,
        tyro.conf.arg(
            help="The address to listen at. With one that other machines reach (0.0.0.0) a token is asked for.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"
    token: Annotated[
        str | None,
        tyro.conf.arg(
            help="What every call of the API must bring. Default: the environment variable VELOGAN_TOKEN; none on this "
            "machine alone; else a new one, which is printed.",
            metavar="TEXT",
        ),
    ] = None
    max_mb: Annotated[float, tyro.conf.arg(help="The most MB (2^20 bytes) of a request.", metavar="NUMBER")] = 32
    max_megapixels: Annotated[float, tyro.conf.arg(help="The most million pixels of a picture.", metavar="NUMBER")] = 16
    seconds: Annotated[
        float,
        tyro.conf.arg(help="The most that a request takes: upload, waiting and translation.", metavar="NUMBER"),
    ] = 300
    waiting: Annotated[
        int, tyro.conf.arg(help="The most requests that are served or wait; others are told to come again.")
    ] = 16
    weights: Weights = None
    checkpoint: Checkpoint = None
    tile: Annotated[int | None, tyro.conf.arg(help="As translate has it; 0: never in tiles.", metavar="PIXELS")] = None
    fp32: Annotated[bool, tyro.conf.arg(help=FP32)] = False
    device: Annotated[str, tyro.conf.arg(help="Where to compute: auto, cpu, cuda or mps.")] = "auto"
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.engine.device import resolve_device
        from velogan.files import require
        from velogan.interchange.bundle import load_all
        from velogan.interchange.hub import local
        from velogan.observe.progress import Display
        from velogan.serve.server import address, bind, serve, token_for
        from velogan.translate.files import check_options

        require("serve", "fastapi", "uvicorn", "python_multipart", user="velogan serve")
        from velogan.serve.app import build_app
        from velogan.serve.service import Limits, TranslationService

        limits = Limits(
            upload_bytes=int(self.max_mb * 2**20),
            pixels=int(self.max_megapixels * 10**6),
            seconds=self.seconds,
            waiting=self.waiting,
        )
        check_options(format=None, tile=self.tile)
        token = token_for(self.host, self.token or os.environ.get("VELOGAN_TOKEN") or None)
        with Display() as display, bind(self.host, self.port) as listening:
            place: Any = {"device": resolve_device(self.device), "fast": not self.fp32}
            models = load_all(local(self.model), weights=self.weights, checkpoint=self.checkpoint, **place)
            estimators = _make_estimators(models, display.say)
            name = self.model.resolve().name
            display.say(f"{name} ({', '.join(models)}): building and measuring its networks")
            service = TranslationService(models, name=name, limits=limits, tile=self.tile, estimators=estimators)
            app = build_app(service, token=token, host=self.host)
            display.say(f"serving at {address(listening, token)} (Ctrl-C stops)")
            result = serve(app, listening, seconds=limits.seconds)
        return {**result, "directions": list(models)}, 0


def _make_estimators(
    models: Mapping[Direction, Translator], say: Callable[[str], None]
) -> dict[Direction, UncertaintyEstimator]:
    """What makes uncertainty maps, for the directions that have a way back; of others it is said why not."""
    from velogan.evaluation.uncertainty import uncertainty_estimator

    found = {}
    for way, model in models.items():
        try:
            found[way] = uncertainty_estimator(model)
        except ValueError as error:
            say(f"{way}: no uncertainty maps: {error}")
    return found
