"""An ONNX file whose weights are stored in float16: half as large. They become float32 when the file is loaded."""

from __future__ import annotations

from pathlib import Path

LEAST_VALUES = 256
"""Of a tensor that is stored in float16; smaller ones are not worth a node."""


def halve(file: Path, made: Path) -> None:
    """Writes the network of the ONNX `file` to `made`, with float16 weights and a cast of each to float32.

    Programs fold these casts at loading, so any device computes in float32 as before.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    program = onnx.load(file)
    graph, casts = program.graph, []
    for weight in list(graph.initializer):
        values = numpy_helper.to_array(weight)
        if weight.data_type != TensorProto.FLOAT or values.size < LEAST_VALUES:
            continue
        stored = f"{weight.name}.float16"
        graph.initializer.remove(weight)
        graph.initializer.append(numpy_helper.from_array(values.astype("float16"), stored))
        casts.append(helper.make_node("Cast", [stored], [weight.name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(program, made)
