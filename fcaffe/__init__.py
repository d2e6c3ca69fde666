"""fcaffe: FireCaffe for today's machines. `import fcaffe as caffe` drives nets and solvers from a script."""

from fcaffe import interruption

interruption.begin()  # before what takes time

from fcaffe.threads import limit_threads  # noqa: E402

limit_threads()  # before NumPy loads its BLAS

from fcaffe import layers  # noqa: E402 - fills the registry of layer types
from fcaffe.pycaffe import (  # noqa: E402
    TEST,
    TRAIN,
    Blob,
    Layer,
    Net,
    SGDSolver,
    get_solver,
    layer_type_list,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_random_seed,
    set_rng,
)

__version__ = "0.1.0"

__all__ = [
    "TEST",
    "TRAIN",
    "Blob",
    "Layer",
    "Net",
    "SGDSolver",
    "get_solver",
    "layer_type_list",
    "layers",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
    "set_rng",
]
