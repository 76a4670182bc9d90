"""velogan: unpaired image-to-image translation, trained fast and judged honestly."""

import os

__version__ = "0.1.0"

# Must be said before torch loads its OpenMP runtime. Threads that wait by spinning cost a busy machine twenty times
# its speed (benchmarks/LOG.md), and an idle one gains nothing from them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
