"""velogan: unpaired image-to-image translation, trained fast and judged honestly."""

import os

__version__ = "0.1.0"

# Said before torch loads its OpenMP runtime, whose threads by default spin for milliseconds while they wait: as fast on
# an idle machine, and several times slower on one that others use too (benchmarks/LOG.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
