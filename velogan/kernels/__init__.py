"""Native code for CPUs and GPUs, and its Python bindings: norms, matrix products, convolutions."""
