"""The names of Caffe's Python interface: what a script finds in `fcaffe`, and a user's module in `caffe`."""

from fcaffe.pycaffe.blob import Blob
from fcaffe.pycaffe.layer import Layer
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.session import (
    TEST,
    TRAIN,
    layer_type_list,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_random_seed,
    set_rng,
)
from fcaffe.pycaffe.solver import SGDSolver, get_solver

__all__ = [
    "TEST",
    "TRAIN",
    "Blob",
    "Layer",
    "Net",
    "SGDSolver",
    "get_solver",
    "layer_type_list",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "set_rng",
]
