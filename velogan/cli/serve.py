"""`velogan serve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from velogan.cli.flags import DEVICE, FP32, Checkpoint, Flags, Json, Model, Outcome, Weights

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

    model: Model
    port: Annotated[int, arg(help="Port to listen on; 0 selects a free one.")] = 8000
    host: Annotated[
        str,
        arg(help="Address to listen on. If other machines can reach it (0.0.0.0), clients need a token."),
    ] = "127.0.0.1"
    token: Annotated[
        str | None,
        arg(
            help="Token that every API request must carry. Default: the environment variable VELOGAN_TOKEN; without "
            "it, no token on a local address, and a new one, which is printed, on others."
        ),
    ] = None
    max_mb: Annotated[float, arg(help="Maximum request size in MB (2^20 bytes).")] = 32
    max_megapixels: Annotated[float, arg(help="Maximum picture size in millions of pixels.")] = 16
    seconds: Annotated[float, arg(help="Maximum duration of a request in seconds, including upload and waiting.")] = 300
    waiting: Annotated[
        int, arg(help="Maximum number of requests running or queued; further ones are told to try again later.")
    ] = 16
    weights: Weights = None
    checkpoint: Checkpoint = None
    tile: Annotated[
        int | None, arg(help="Tile size in pixels, as for `velogan translate`; 0: no tiles.", metavar="PIXELS")
    ] = None
    fp32: Annotated[bool, arg(help=FP32)] = False
    device: Annotated[str, DEVICE] = "auto"
    json: Json = False

    def execute(self, argv: list[str]) -> Outcome:
        from velogan.engine.device import resolve_device
        from velogan.files import require
        from velogan.interchange.bundle import load_translators
        from velogan.interchange.hub import resolve_model_path
        from velogan.observe.progress import Display
        from velogan.serve.server import choose_token, open_socket, page_url, serve
        from velogan.translate.options import TranslateOptions

        require("serve", "fastapi", "uvicorn", "python_multipart", feature="velogan serve")
        from velogan.serve.app import build_app
        from velogan.serve.service import Limits, TranslationService

        limits = Limits(
            upload_bytes=int(self.max_mb * 2**20),
            pixels=int(self.max_megapixels * 10**6),
            seconds=self.seconds,
            waiting=self.waiting,
        )
        TranslateOptions(tile=self.tile)  # raises ValueError if the value is not valid
        token = choose_token(self.host, self.token or os.environ.get("VELOGAN_TOKEN") or None)
        with Display() as display, open_socket(self.host, self.port) as listener:
            models = load_translators(
                resolve_model_path(self.model),
                weights=self.weights,
                checkpoint=self.checkpoint,
                device=resolve_device(self.device),
                fast=not self.fp32,
            )
            estimators = _make_estimators(models, display.print_line)
            name = self.model.resolve().name
            display.print_line(f"{name} ({', '.join(models)}): building its networks and measuring their speed")
            service = TranslationService(models, name=name, limits=limits, tile=self.tile, estimators=estimators)
            app = build_app(service, token=token, host=self.host)
            display.print_line(f"serving at {page_url(listener, token)} (Ctrl-C stops)")
            result = serve(app, listener, seconds=limits.seconds)
        return {**result, "directions": list(models)}, 0


def _make_estimators(
    models: Mapping[Direction, Translator], log: Callable[[str], None]
) -> dict[Direction, UncertaintyEstimator]:
    """Return an estimator for each direction that allows uncertainty maps; log the reason for the others."""
    from velogan.evaluation.uncertainty import uncertainty_estimator

    estimators = {}
    for direction, model in models.items():
        try:
            estimators[direction] = uncertainty_estimator(model)
        except ValueError as error:
            log(f"{direction}: no uncertainty maps: {error}")
    return estimators
