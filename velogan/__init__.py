"""velogan: unpaired image-to-image translation with fast training and reproducible evaluation."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velogan.api import (
        PRESETS,
        Config,
        Model,
        Result,
        Summary,
        UncertaintyMap,
        evaluate,
        export,
        import_reference,
        load,
        preset,
        read_config,
        train,
    )
    from velogan.files import __version__

__all__ = [
    "PRESETS",
    "Config",
    "Model",
    "Result",
    "Summary",
    "UncertaintyMap",
    "__version__",
    "evaluate",
    "export",
    "import_reference",
    "load",
    "preset",
    "read_config",
    "train",
]
"""The public API (docs/python.md). Anything else may change between versions."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import velogan` itself does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("velogan.files" if name == "__version__" else "velogan.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Set before importing torch: waiting OpenMP threads otherwise spin for milliseconds, which makes training several times
# slower on a machine with other work, and at most a fifth faster on an idle one (benchmarks/LOG.md).
os.environ.setdefault("GOMP_SPINCOUNT", "100")

# Set before importing torch, too: the profiler otherwise writes to standard error when it starts, when it stops, and
# about memory that was allocated before its start.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# Set before importing torch, too: limits of its CPU instruction set, by VELOGAN_CPU_LEVEL (kernels/isa.py).
_LEVELS = {
    "x86-64-v3": ("avx2", "AVX2"),
    "x86-64-v4": ("avx512", "AVX512_CORE"),
    "avx512-bf16": ("avx512", "AVX512_CORE_BF16"),
}
if (_level := os.environ.get("VELOGAN_CPU_LEVEL")) in _LEVELS:
    for _name, _value in zip(("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"), _LEVELS[_level]):
        os.environ.setdefault(_name, _value)
