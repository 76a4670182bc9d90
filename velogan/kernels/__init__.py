"""Native code for CPUs and its Python bindings: norms, products of bfloat16 matrices, convolutions."""
