"""Nets from their prototxts, as the commands build them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fcaffe import pycaffe  # noqa: F401 - registers the types of layers
from fcaffe.engines import Engine
from fcaffe.net import Context, Net
from fcaffe.net.filter import filter_net
from fcaffe.net.memory_need import check_memory
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers.nets import train_net_param

PLAIN = {"type": "SGD", "momentum": 0.9, "weight_decay": 0.0005}  # the solver of a net without one


def read_net_for(path: str, phase: int, level: int = 0, stages: Iterable[str] = ()) -> Any:
    """The parameters of the net of a prototxt, in this phase (pb.TRAIN, pb.TEST), at this level and in these stages."""
    param = read_net(path)
    param.state.phase = phase
    param.state.level = level
    param.state.stage.extend(stages)
    return param


def load_net(
    path: str, phase: int, engine: Engine, level: int = 0, stages: Iterable[str] = (), inference: bool = False
) -> Net:
    """A net as `read_net_for` reads it, with weights from its fillers; `inference` as in Context."""
    param = read_net_for(path, phase, level, stages)
    net = Net(param, Context(engine, CaffeRandom(None), noise="counter", inference=inference, whole_passes=inference))
    check_memory(net)
    return net


def read_training(path: str, is_solver: bool, level: int = 0, stages: Iterable[str] = ()) -> tuple[Any, Any, str]:
    """The SolverParameter of the solver at `path`, the filtered parameters of its training net, and that net's file.

    For the path of a net, the solver is SGD. Raises FcaffeError.
    """
    solver = read_solver(path) if is_solver else pb.SolverParameter(net=path, **PLAIN)
    solver.train_state.level = level
    solver.train_state.stage.extend(stages)
    net, field = train_net_param(solver)
    return solver, filter_net(net), path if field.endswith("_param") else getattr(solver, field)
