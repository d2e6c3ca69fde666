"""A net from its prototxt, as the commands build it."""

from __future__ import annotations

from collections.abc import Iterable

from fcaffe.engines import Engine
from fcaffe.net import Context, Net
from fcaffe.net.memory_need import check_memory
from fcaffe.proto import read_net
from fcaffe.rng import CaffeRandom


def load_net(
    path: str, phase: int, engine: Engine, level: int = 0, stages: Iterable[str] = (), inference: bool = False
) -> Net:
    """The net of a prototxt in this phase (pb.TRAIN, pb.TEST), with weights from its fillers; `inference` as in
    Context."""
    param = read_net(path)
    param.state.phase = phase
    param.state.level = level
    param.state.stage.extend(stages)
    net = Net(param, Context(engine, CaffeRandom(None), noise="counter", inference=inference, whole_passes=inference))
    check_memory(net)
    return net
