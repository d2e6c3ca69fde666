"""The names of Caffe's Python interface: what a script finds in `caffe`, and in `fcaffe`."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from fcaffe.pycaffe.blob import Blob, BlobVec
from fcaffe.pycaffe.layer import Layer
from fcaffe.pycaffe.nccl import NCCL
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import (
    TEST,
    TRAIN,
    has_nccl,
    init_log,
    layer_type_list,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_rng,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from fcaffe.pycaffe.session import log as log  # not in __all__, as fcaffe.log is the log itself
from fcaffe.pycaffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)
from fcaffe.pycaffe.timer import Timer

__version__ = "1.0.0"  # of the Caffe whose interface this is
_caffe = pycaffe = sys.modules[__name__]  # where Caffe defines them: scripts ask for caffe._caffe.BlobVec

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

# Further names by the module of `fcaffe.pycaffe` that has them, or that they are. Those are loaded late: scripts that
# only run nets need none of them.
LATER = {
    "Classifier": "classifier",
    "Detector": "detector",
    "NetSpec": "net_spec",
    "classifier": "",
    "coord_map": "",
    "detector": "",
    "draw": "",
    "io": "",
    "layers": "net_spec",
    "net_spec": "",
    "params": "net_spec",
    "to_proto": "net_spec",
}


def load(name: str, wanted_of: str = __name__) -> Any:
    """The object of a name in LATER. AttributeError for any other, which a script wanted of the module `wanted_of`."""
    if name not in LATER:
        raise AttributeError(f"module {wanted_of!r} has no attribute {name!r}")
    module = importlib.import_module(f"fcaffe.pycaffe.{LATER[name] or name}")
    return getattr(module, name) if LATER[name] else module


def __getattr__(name: str) -> Any:
    return load(name)
