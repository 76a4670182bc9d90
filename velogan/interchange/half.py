"""Storage of an ONNX file's weights in float16, at half the size; programs convert them to float32 when loading."""

from __future__ import annotations

from pathlib import Path

MIN_VALUES = 256
"""Minimum number of values of a tensor to store it in float16; smaller ones are not worth a cast."""


def store_half(file: Path, half_file: Path) -> None:
    """Write the network of the ONNX `file` to `half_file` with float16 weights and a cast of each to float32.

    Programs fold these casts when loading, so the network still computes in float32.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    program = onnx.load(file)
    graph, casts = program.graph, []
    for weight in list(graph.initializer):
        values = numpy_helper.to_array(weight)
        if weight.data_type != TensorProto.FLOAT or values.size < MIN_VALUES:
            continue
        stored = f"{weight.name}.float16"
        graph.initializer.remove(weight)
        graph.initializer.append(numpy_helper.from_array(values.astype("float16"), stored))
        casts.append(helper.make_node("Cast", [stored], [weight.name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(program, half_file)
