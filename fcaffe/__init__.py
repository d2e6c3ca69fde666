"""fcaffe: FireCaffe for today's machines. `import fcaffe as caffe` drives nets and solvers from a script.

Importing the package changes nothing in the process and loads next to nothing; each name is loaded at its first use.
So the command line can set the number of threads before NumPy's libraries load, and a program that uses fcaffe as a
library keeps its own settings. `__init__.pyi` has the types.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "BlobVec",
    "Layer",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "Timer",
    "get_solver",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "layers",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_rng",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]
# Names of modules that pycaffe's nets do not need; `from fcaffe import *` does not import them.
_LATER = (
    "Classifier",
    "Detector",
    "NetSpec",
    "classifier",
    "coord_map",
    "detector",
    "draw",
    "io",
    "net_spec",
    "params",
    "to_proto",
)


def __getattr__(name: str) -> Any:
    """Load a name of pycaffe, or a module of this package, at its first use."""
    if name == "_caffe" or name in _LATER or (name in __all__ and name != "layers"):
        found = getattr(importlib.import_module("fcaffe.pycaffe.interface"), name)
        globals()[name] = found
        return found
    from importlib.util import find_spec  # slow to load

    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER})
