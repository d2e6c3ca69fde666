"""A net from its prototxt, as the commands build it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fcaffe import pycaffe  # noqa: F401 - registers the types of layers
from fcaffe.engines import Engine
from fcaffe.net import Context, Net
from fcaffe.net.memory_need import check_memory
from fcaffe.proto import read_net
from fcaffe.rng import CaffeRandom


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
