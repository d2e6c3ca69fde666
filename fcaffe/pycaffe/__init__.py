"""Caffe's Python interface: the names and behaviour of pycaffe over fcaffe's nets and solvers."""

from fcaffe.layers import python
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
from fcaffe.pycaffe.shim import provide_caffe
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

python.provide_caffe = provide_caffe
