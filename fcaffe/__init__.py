"""fcaffe: FireCaffe for today's machines. `import fcaffe as caffe` drives nets and solvers from a script.

Importing it changes nothing in the process, and loads next to nothing: what a script uses is loaded when it is asked
for. So the command line can tell the libraries below NumPy how many threads to use before they are there, and a
program that uses fcaffe as a library keeps its own settings. Their types stand in `__init__.pyi`.
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
# Further names, of modules that even pycaffe's nets do not load; `from fcaffe import *` leaves them out.
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
    """A name of pycaffe, or a module of this package, that nobody has asked for before."""
    if name == "_caffe" or name in _LATER or (name in __all__ and name != "layers"):
        found = getattr(importlib.import_module("fcaffe.pycaffe.interface"), name)
        globals()[name] = found
        return found
    from importlib.util import find_spec  # which takes as long to load as all that is here

    if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LATER})
