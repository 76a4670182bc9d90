"""A generator in the formats of other programs; each file is checked against the network that it was made from."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import velogan
from velogan.files import atomic_write, require
from velogan.interchange.half import halve
from velogan.networks.build import build_network
from velogan.networks.outputs import ChangeGenerator, apply_change
from velogan.networks.pickles import read_tensors
from velogan.networks.reference import RecognisedNetwork, recognise, to_reference
from velogan.store.checkpoint import save_network
from velogan.translate.model import Translator, load_translator

Format = Literal["onnx", "torch", "reference", "hub", "web"]
SUFFIXES: dict[Format, str] = {
    "onnx": ".onnx",
    "torch": ".pt2",
    "reference": ".pth",
    "hub": ".safetensors",
    "web": ".onnx",
}

MOST = 1e-3
"""The largest difference from eager PyTorch, in [-1, 1], that an export may have."""

MOST_HALF = 2 / 255
"""As `MOST`, for weights in float16: one level of 255. Where that is exceeded, they stay float32."""

_NEEDS = ("onnx", "onnxscript", "onnxruntime")
_MOST_SIDE = 2**14

LEAST_OPSET = 18
"""The least version of ONNX' operators that the exporter writes."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    `max_difference`: the largest difference from eager PyTorch in float32, in [-1, 1], over pictures of `sizes` (H, W)
    in batches of 1 and 2; `by`: the program that computed it, with its version. `half`: whether weights are stored in
    float16; None where that was not tried.
    """

    file: Path
    max_difference: float
    sizes: list[Size]
    by: str
    half: bool | None = None

    @property
    def megabytes(self) -> float:
        """The size of the file."""
        return self.file.stat().st_size / 1e6


def export(
    model: Translator,
    file: Path,
    *,
    format: Format,
    opset: int | None = None,
    license: str | None = None,
) -> Exported:
    """Writes the generator of `model`, which is on the CPU, to `file` and checks it by running what was written.

    onnx and torch take batches of any size, and sides of any multiple of `model.multiple` pixels. `opset`: the version
    of ONNX' operators; None: the exporter's own. An ONNX file says in its metadata what it takes and gives, and the
    `license`. web is onnx with weights in float16 where these change nothing that is seen. ValueError where the format
    cannot hold the network, or results differ by more than `MOST`.
    """
    if format in ("onnx", "web"):
        require("onnx", *_NEEDS, user=f"format={format}")
    if opset is not None and format != "onnx":
        raise ValueError(f"opset={opset} is for format=onnx: leave it out of format={format}")
    onnx = partial(_onnx, opset=opset, license=license)
    write = {"onnx": onnx, "torch": _torch, "reference": _reference, "hub": _hub, "web": onnx}[format]
    with atomic_write(file) as tmp_path:
        named = tmp_path.with_name(tmp_path.name + SUFFIXES[format])  # libraries look at the suffix
        try:
            run, by = write(model, named)
            sizes = _sizes(model)
            difference = _farthest(model, run, sizes)
            if not difference <= MOST:
                raise ValueError(
                    f"{file}: computed by {by} the results differ by {difference:.2g} from PyTorch's, more than "
                    f"{MOST}: choose another format"
                )
            half = _halved(model, named, sizes) if format == "web" else None
            named.replace(tmp_path)
        finally:
            named.unlink(missing_ok=True)
    return Exported(file, half or difference, sizes, by, half=None if format != "web" else half is not None)


def _halved(model: Translator, file: Path, sizes: list[Size]) -> float | None:
    """Puts the weights of an ONNX file into float16; gives the largest difference, or None where they stay float32."""
    made = file.with_name(f"{file.stem}-half.onnx")
    try:
        halve(file, made)
        difference = _farthest(model, run_onnx(made), sizes)
        if not difference <= MOST_HALF:
            return None
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)
    return difference


Run = Callable[[Tensor], Tensor]


def run_onnx(file: Path) -> Run:
    """Return the network of an ONNX file as a function, computed by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def _onnx(model: Translator, file: Path, *, opset: int | None, license: str | None) -> tuple[Run, str]:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not LEAST_OPSET <= opset <= newest:
        raise ValueError(f"opset={opset} cannot be written: give one from {LEAST_OPSET} to {newest}")
    with _quiet():
        program = torch.onnx.export(
            _plain(model.net),
            (_example(model),),
            dynamo=True,
            dynamic_shapes=(_dynamic(model),),
            external_data=False,
            input_names=["image"],
            output_names=["translated"],
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    if opset not in (None, written := program.model.opset_imports[""]):
        raise ValueError(f"opset={opset}: this network was written with {written}; give that, or leave opset out")
    program.model.metadata_props.update(_metadata(model, license))
    program.save(file)
    return run_onnx(file), f"ONNX Runtime {version('onnxruntime')}"


def _metadata(model: Translator, license: str | None) -> dict[str, str]:
    """What an ONNX file says of itself, as text; pixel formats and sizes as JSON."""
    known = model.header
    told = {
        "velogan": velogan.__version__,
        "direction": model.direction,
        "range": "[-1, 1], channels first",
        "input": json.dumps(known.get("input")),
        "output": json.dumps(known.get("output")),
        "image_size": json.dumps(known.get("image_size")),
        "multiple": str(model.multiple),
        "license": license or "not stated",
    }
    return {name: value for name, value in told.items() if value != "null"}


def _torch(model: Translator, file: Path) -> tuple[Run, str]:
    with _quiet():
        program = torch.export.export(_plain(model.net), (_example(model),), dynamic_shapes=(_dynamic(model),))
        written = io.BytesIO()  # a full disk ends the writer of a file by an abort
        torch.export.save(program, written)
        file.write_bytes(written.getbuffer())
        loaded = torch.export.load(file).module(check_guards=False)  # they forbid a U-Net its innermost pixel
    return loaded, f"torch.export of PyTorch {torch.__version__}"


def _reference(model: Translator, file: Path) -> tuple[Run, str]:
    save_reference(RecognisedNetwork(model.header, model.net.state_dict()), file)
    found = recognise(read_tensors(file), file=file)
    net = build_network(found.header)
    net.load_state_dict(found.state)
    return net.eval(), "the weights as they are read back"


def _hub(model: Translator, file: Path) -> tuple[Run, str]:
    save_network(file, model.net.state_dict(), model.header)
    return load_translator(file).net, "the weights as they are read back"


def save_reference(network: RecognisedNetwork, file: Path) -> None:
    """Writes a `.pth` as the reference implementation does. ValueError where it has no such network."""
    torch.save({name: value.contiguous() for name, value in to_reference(network).items()}, file)


class _Apart(nn.Module):
    """A `ChangeGenerator` that decodes in two calls: one call with a doubled batch would fix the batch size."""

    def __init__(self, net: ChangeGenerator):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        encoded = self.net.encoder(x)
        after, before = self.net.decoder(self.net.translator(encoded)), self.net.decoder(encoded)
        return apply_change(x, after=after, before=before).clamp(-1, 1)


def _plain(net: nn.Module) -> nn.Module:
    return (_Apart(net) if isinstance(net, ChangeGenerator) else net).eval()


def _dynamic(model: Translator) -> Mapping[int, Any]:
    least = 2 if model.multiple < 8 else 1  # a residual block's padding needs two pixels at a quarter of the side
    sides = {
        place: model.multiple * torch.export.Dim(name, min=least, max=_MOST_SIDE // model.multiple)
        for place, name in ((2, "rows"), (3, "columns"))
    }
    return {0: torch.export.Dim("batch", max=2**12), **sides}


def _sizes(model: Translator) -> list[Size]:
    side, more = max(64, model.multiple), max(model.multiple, 36)
    return [(side, side), (side, 2 * side), (side + more, side)]


def _example(model: Translator) -> Tensor:
    side = max(64, 2 * model.multiple)
    return torch.zeros(2, model.header.get("in_channels", 3), side, side + max(32, model.multiple))


def _farthest(model: Translator, run: Run, sizes: list[Size]) -> float:
    return max(_difference(model, run, size, count=count) for size in sizes for count in (1, 2))


@torch.inference_mode()
def _difference(model: Translator, run: Run, size: Size, *, count: int) -> float:
    """The largest difference, over noise (`count` 1) or smooth pictures."""
    generator = torch.Generator().manual_seed(0)
    channels = model.header.get("in_channels", 3)
    noise = torch.rand(count, channels, *size, generator=generator) * 2 - 1
    smooth = torch.rand(count, channels, 6, 6, generator=generator) * 2 - 1
    images = noise if count == 1 else F.interpolate(smooth, size, mode="bilinear")
    return float((run(images.clone()) - model.net(images)).abs().max())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters log and warn of."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            yield
    finally:
        logging.disable(before)
