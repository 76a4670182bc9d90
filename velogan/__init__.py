"""velogan: unpaired image-to-image translation, trained fast and judged honestly."""

import os

__version__ = "0.1.0"

# Said before torch loads its OpenMP runtime, whose threads by default spin for milliseconds while they wait: as fast on
# an idle machine, and several times slower on one that others use too (benchmarks/LOG.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Said before torch loads, too: the profiler would write a line to standard error whenever it starts and stops, and one
# about memory that was taken before it started.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
