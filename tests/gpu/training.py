"""What tests of training on GPUs share: nets, and how to follow a solver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, read_solver
from fcaffe.solvers import Solver
from tests.conftest import GOLDEN
from tests.engine_choice import host
from tests.watching import watch

SMALL = """
net_param {
  name: "small"
  layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 3 dim: 15 dim: 15 } } }
  layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 8 } } }
  layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
    convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "msra" } } }
  layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
  layer { name: "norm" type: "LRN" bottom: "conv1" top: "norm" }
  layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
  layer { name: "conv2" type: "Convolution" bottom: "pool" top: "conv2"
    convolution_param { num_output: 24 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
  layer { name: "bn2" type: "BatchNorm" bottom: "conv2" top: "conv2" }
  layer { name: "scale2" type: "Scale" bottom: "conv2" top: "conv2" scale_param { bias_term: true } }
  layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
  layer { name: "conv3" type: "Convolution" bottom: "conv2" top: "conv3"
    convolution_param { num_output: 24 kernel_size: 1 weight_filler { type: "msra" } } }
  layer { name: "sum" type: "Eltwise" bottom: "conv2" bottom: "conv3" top: "sum" }
  layer { name: "relu3" type: "ReLU" bottom: "sum" top: "sum" }
  layer { name: "conv4" type: "Convolution" bottom: "sum" top: "conv4"
    convolution_param { num_output: 24 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
  layer { name: "bn4" type: "BatchNorm" bottom: "conv4" top: "conv4" }
  layer { name: "scale4" type: "Scale" bottom: "conv4" top: "conv4" scale_param { bias_term: true } }
  layer { name: "sum4" type: "Eltwise" bottom: "sum" bottom: "conv4" top: "sum4" }
  layer { name: "relu_4" type: "ReLU" bottom: "sum4" top: "sum4" }
  layer { name: "conv5" type: "Convolution" bottom: "sum4" top: "conv5"
    convolution_param { num_output: 24 kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }
  layer { name: "bn5" type: "BatchNorm" bottom: "conv5" top: "conv5" }
  layer { name: "scale5" type: "Scale" bottom: "conv5" top: "conv5" scale_param { bias_term: true } }
  layer { name: "sum5" type: "Eltwise" bottom: "sum4" bottom: "conv5" top: "sum5" }
  layer { name: "relu_5" type: "ReLU" bottom: "sum5" top: "sum5" }
  layer { name: "ip1" type: "InnerProduct" bottom: "sum5" top: "ip1"
    inner_product_param { num_output: 40 weight_filler { type: "xavier" } } }
  layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
  layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
    inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
}
base_lr: 0.01 lr_policy: "step" gamma: 0.5 stepsize: 4 momentum: 0.9 weight_decay: 0.001 random_seed: 3 max_iter: 10
snapshot_after_train: false
"""


def small_solver(engine: Engine, extra: str = "", batch: int = 8, **options: Any) -> Solver:
    """Of a net with what usual nets are made of, and a batch of its own; `extra` is more of the solver's prototxt."""
    solver = Solver(parse_text(SMALL + extra, pb.SolverParameter), engine, "counter", **options)
    give_batch(solver, batch)
    return solver


def give_batch(solver: Solver, batch: int) -> None:
    """So many random images and labels for all passes from now on."""
    random = np.random.default_rng(batch)
    images, labels = random.standard_normal((batch, 3, 15, 15), np.float32), random.integers(0, 10, batch)
    for name, values in (("data", images), ("label", labels.astype(np.float32))):
        blob = solver.net.blob(name)
        blob.reshape(*values.shape)
        blob.data[...] = solver.engine.from_numpy(values)


def lenet_solver(engine: Engine, **fields: Any) -> Solver:
    """Of the training on MNIST that BVLC Caffe ran; needs the folder with its databases as the current one."""
    folder = GOLDEN / "runs" / "lenet"
    Path("net.prototxt").write_bytes((folder / "net.prototxt").read_bytes())
    param = read_solver(folder / "solver.prototxt")
    for name, value in fields.items():
        setattr(param, name, value)
    return Solver(param, engine, "counter")


def weights(solver: Solver) -> np.ndarray:
    """All parameters, in Caffe's order, whatever they lie in."""
    return np.concatenate([host(p.blob.data).reshape(-1) for p in solver.net.parameters.owned])


def losses(solver: Solver, iterations: int) -> np.ndarray:
    """Of so many more iterations, one by one."""
    found: list[float] = []
    watch(solver, gradients_ready=lambda: found.append(float(host(solver.net.blob("loss").data))))
    solver.step(iterations)
    solver.observers.pop()
    return np.array(found)
