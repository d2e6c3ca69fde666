"""The names of Caffe's Python interface: what a script finds in `caffe`, and in `fcaffe`."""

from __future__ import annotations

import sys

from fcaffe.pycaffe import classifier, detector, io, net_spec
from fcaffe.pycaffe import coord_map as coord_map  # not in __all__, as in Caffe
from fcaffe.pycaffe import draw as draw
from fcaffe.pycaffe.blob import Blob, BlobVec
from fcaffe.pycaffe.classifier import Classifier
from fcaffe.pycaffe.detector import Detector
from fcaffe.pycaffe.layer import Layer
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.net_spec import NetSpec, params, to_proto
from fcaffe.pycaffe.net_spec import layers as layers  # not in __all__, as fcaffe.layers is a package
from fcaffe.pycaffe.session import (
    TEST,
    TRAIN,
    Timer,
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
    NCCL,
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
)

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
    "Classifier",
    "Detector",
    "Layer",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "Timer",
    "classifier",
    "detector",
    "get_solver",
    "has_nccl",
    "init_log",
    "io",
    "layer_type_list",
    "net_spec",
    "params",
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
    "to_proto",
]
