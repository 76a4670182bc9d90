"""velogan: unpaired image-to-image translation, trained fast and judged honestly."""

import os

__version__ = "0.1.0"

# Set before importing torch: idle OpenMP threads otherwise spin for milliseconds. Spinning gains nothing on an idle
# machine, and makes a shared machine several times slower (benchmarks/LOG.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Set before importing torch, too: the profiler otherwise writes to standard error when it starts, when it stops, and
# about memory that was allocated before its start.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
