"""Export of a generator to the formats of other programs; each file is checked against the original network."""

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

from velogan.files import __version__, atomic_write, require
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

MAX_DIFFERENCE = 1e-3
"""Maximum difference of an export from eager PyTorch, for values in [-1, 1]."""

MAX_DIFFERENCE_HALF = 2 / 255
"""Maximum difference with float16 weights: one of 255 levels. If it is exceeded, weights stay float32."""

_REQUIRED_MODULES = ("onnx", "onnxscript", "onnxruntime")
_MAX_SIDE = 2**14  # pixels
_MIN_HALF_VALUES = 256  # minimum size of a tensor stored in float16; smaller ones are not worth a cast

Size = tuple[int, int]


@dataclass(frozen=True)
class ExportedFile:
    """An exported and checked file.

    max_difference: largest difference from float32 eager PyTorch, for values in [-1, 1], in batches of 1 and 2
    sizes: (H, W) of the images on which it was checked
    runtime: the program that ran the exported network, with its version
    half: whether weights are stored in float16; None if that was not tried
    """

    file: Path
    max_difference: float
    sizes: list[Size]
    runtime: str
    half: bool | None = None

    @property
    def megabytes(self) -> float:
        """The size of the file in MB (10^6 bytes)."""
        return self.file.stat().st_size / 1e6


def export(
    model: Translator,
    file: Path,
    *,
    format: Format,
    license: str | None = None,
) -> ExportedFile:
    """Write the generator of `model`, which is on the CPU, to `file` and check the file by running it.

    onnx and torch accept any batch size, and heights and widths that are multiples of `model.multiple` pixels. web is
    onnx, with float16 weights if these change values by at most `MAX_DIFFERENCE_HALF`.

    license: written to the metadata of an ONNX file, with its input and output formats

    Raises ValueError if the format cannot represent the network or results differ by more than `MAX_DIFFERENCE`.
    """
    if format in ("onnx", "web"):
        require("onnx", *_REQUIRED_MODULES, feature=f"format={format}")
    onnx = partial(_write_onnx, license=license)
    write = {"onnx": onnx, "torch": _write_torch, "reference": _write_reference, "hub": _write_hub, "web": onnx}[format]
    with atomic_write(file) as tmp_path:
        suffixed = tmp_path.with_name(tmp_path.name + SUFFIXES[format])  # libraries depend on the suffix
        try:
            run, runtime = write(model, suffixed)
            sizes = _choose_sizes(model)
            difference = _max_difference(model, run, sizes)
            if not difference <= MAX_DIFFERENCE:
                raise ValueError(
                    f"{file}: results of {runtime} differ by {difference:.2g} from PyTorch's, more than "
                    f"{MAX_DIFFERENCE}: choose another format"
                )
            half = _store_half(model, suffixed, sizes) if format == "web" else None
            suffixed.replace(tmp_path)
        finally:
            suffixed.unlink(missing_ok=True)
    return ExportedFile(file, half or difference, sizes, runtime, half=None if format != "web" else half is not None)


def _store_half(model: Translator, file: Path, sizes: list[Size]) -> float | None:
    """Store the weights of an ONNX file in float16; return the difference, or None if they have to stay float32."""
    half_file = file.with_name(f"{file.stem}-half.onnx")
    try:
        _convert_weights_to_half(file, half_file)
        difference = _max_difference(model, load_onnx(half_file), sizes)
        if not difference <= MAX_DIFFERENCE_HALF:
            return None
        half_file.replace(file)
    finally:
        half_file.unlink(missing_ok=True)
    return difference


def _convert_weights_to_half(file: Path, half_file: Path) -> None:
    """Write the network of the ONNX `file` to `half_file` with float16 weights and a cast of each to float32.

    Programs fold these casts when loading, so the network still computes in float32.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    program = onnx.load(file)
    graph, casts = program.graph, []
    for weight in list(graph.initializer):
        values = numpy_helper.to_array(weight)
        if weight.data_type != TensorProto.FLOAT or values.size < _MIN_HALF_VALUES:
            continue
        stored = f"{weight.name}.float16"
        graph.initializer.remove(weight)
        graph.initializer.append(numpy_helper.from_array(values.astype("float16"), stored))
        casts.append(helper.make_node("Cast", [stored], [weight.name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(program, half_file)


RunNetwork = Callable[[Tensor], Tensor]


def load_onnx(file: Path) -> RunNetwork:
    """Return the network of an ONNX file as a function, computed by ONNX Runtime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def _write_onnx(model: Translator, file: Path, *, license: str | None) -> tuple[RunNetwork, str]:
    with _suppress_output():
        program = torch.onnx.export(
            _ExportedNet(model.net).eval(),
            (_example_inputs(model),),
            dynamo=True,
            dynamic_shapes=(_dynamic_shapes(model),),
            external_data=False,
            input_names=["image"],
            output_names=["translated"],
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(_metadata(model, license))
    program.save(file)
    return load_onnx(file), f"ONNX Runtime {version('onnxruntime')}"


def _metadata(model: Translator, license: str | None) -> dict[str, str]:
    """Return the metadata of an ONNX file as text; pixel formats and sizes as JSON."""
    header = model.header
    metadata = {
        "velogan": __version__,
        "direction": model.direction,
        "range": "[-1, 1], channels first",
        "input": json.dumps(header.get("input")),
        "output": json.dumps(header.get("output")),
        "image_size": json.dumps(header.get("image_size")),
        "multiple": str(model.multiple),
        "license": license or "not stated",
    }
    return {name: value for name, value in metadata.items() if value != "null"}


def _write_torch(model: Translator, file: Path) -> tuple[RunNetwork, str]:
    with _suppress_output():
        program = torch.export.export(
            _ExportedNet(model.net).eval(), (_example_inputs(model),), dynamic_shapes=(_dynamic_shapes(model),)
        )
        buffer = io.BytesIO()  # torch aborts the process if it writes to a full disk
        torch.export.save(program, buffer)
        file.write_bytes(buffer.getbuffer())
        loaded = torch.export.load(file).module(check_guards=False)  # guards reject a U-Net's innermost pixel
    return loaded, f"torch.export of PyTorch {torch.__version__}"


def _write_reference(model: Translator, file: Path) -> tuple[RunNetwork, str]:
    save_reference(RecognisedNetwork(model.header, model.net.state_dict()), file)
    network = recognise(read_tensors(file), file=file)
    net = build_network(network.header)
    net.load_state_dict(network.state)
    return net.eval(), "the weights as they are read back"


def _write_hub(model: Translator, file: Path) -> tuple[RunNetwork, str]:
    save_network(file, model.net.state_dict(), model.header)
    return load_translator(file), "the weights as they are read back"


def save_reference(network: RecognisedNetwork, file: Path) -> None:
    """Write a network as a `.pth` of the reference implementation. Raises ValueError if that cannot represent it."""
    torch.save({name: value.contiguous() for name, value in to_reference(network).items()}, file)


class _ExportedNet(nn.Module):
    """A network whose outputs are clipped to [-1, 1], so that programs can convert them to integers.

    A `ChangeGenerator` decodes in two calls, since one call on a doubled batch would fix the batch size.
    """

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.net, ChangeGenerator):
            return self.net(x).clamp(-1, 1)
        encoded = self.net.encoder(x)
        after, before = self.net.decoder(self.net.translator(encoded)), self.net.decoder(encoded)
        return apply_change(x, after=after, before=before).clamp(-1, 1)


def _dynamic_shapes(model: Translator) -> Mapping[int, Any]:
    minimum = 2 if model.multiple < 8 else 1  # a residual block's padding needs two pixels at a quarter of the side
    sides = {
        dim: model.multiple * torch.export.Dim(name, min=minimum, max=_MAX_SIDE // model.multiple)
        for dim, name in ((2, "rows"), (3, "columns"))
    }
    return {0: torch.export.Dim("batch", max=2**12), **sides}


def _choose_sizes(model: Translator) -> list[Size]:
    side, more = max(64, model.multiple), max(model.multiple, 36)
    return [(side, side), (side, 2 * side), (side + more, side)]


def _example_inputs(model: Translator) -> Tensor:
    side = max(64, 2 * model.multiple)
    return torch.zeros(2, model.header.get("in_channels", 3), side, side + max(32, model.multiple))


@torch.inference_mode()
def _max_difference(model: Translator, run: RunNetwork, sizes: list[Size]) -> float:
    """Return the largest difference between `run` and `model`, on one noise image and two smooth images per size."""
    generator, channels = torch.Generator().manual_seed(0), model.header.get("in_channels", 3)
    differences = []
    for size in sizes:
        noise = torch.rand(1, channels, *size, generator=generator) * 2 - 1
        smooth = torch.rand(2, channels, 6, 6, generator=generator) * 2 - 1
        for images in (noise, F.interpolate(smooth, size, mode="bilinear")):
            differences.append((run(images.clone()) - model(images)).abs().max())
    return float(torch.stack(differences).max())  # NaN if one is


@contextmanager
def _suppress_output() -> Iterator[None]:
    """Silence log messages and warnings of the exporters, and disable gradients, in this context."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad():
            yield
    finally:
        logging.disable(before)
