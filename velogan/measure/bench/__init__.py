"""Benchmarks: modes of computing a step, compared with each other and with the machine's limit."""
