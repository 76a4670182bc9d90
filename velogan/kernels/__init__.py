"""Compiled code for CPUs, and what binds it: norms, gemm of bfloat16 matrices, convolutions. Imports `types` alone."""
