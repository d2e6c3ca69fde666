"""A net whose layers compute nothing: each sleeps for as long as a plan says that a device takes, and hands gradients
of its real size to the exchange. So many hosts can train on few cores."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from fcaffe.cli.bench import RATE
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.plan.work import Compute, Work
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import PLAIN


class Device:
    """Sleeps. What one sleep lasts too long, the next is shorter, so that errors do not add up."""

    late = 0.0  # seconds

    def work(self, seconds: float) -> None:
        until = time.perf_counter() + seconds - self.late
        time.sleep(max(0.0, until - time.perf_counter()))
        self.late = time.perf_counter() - until


DEVICE = Device()  # of this process, which is one worker


@register("EmulatedLayer", of_tool=True)
class EmulatedLayer(Layer):
    """Top = bottom, in place. python_param has the seconds of forward and of backward, and the number of parameters,
    all of whose gradients are 1."""

    traits = Traits(bottoms=1, tops=1)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.forward_seconds, self.backward_seconds, parameters = json.loads(self.param.python_param.param_str)
        if parameters:
            self.add_blob(parameters)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        DEVICE.work(self.forward_seconds)

    def saved(self, bottom: list[Blob], top: list[Blob]) -> list[Blob]:
        return []

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        DEVICE.work(self.backward_seconds)
        for blob in self.blobs:
            gradient, add = blob.diff_to_add()
            gradient[...] = gradient + 1 if add else 1


def emulated_solver(work: Work, compute: Compute, batch: int) -> Any:
    """Parameters of a solver for a net with the layers of `work`, which take the seconds of `compute` on a worker."""
    param = pb.SolverParameter(base_lr=RATE, lr_policy="fixed", random_seed=1, snapshot_after_train=False, **PLAIN)
    net = param.net_param
    net.name = work.name
    data = net.layer.add(name="data", type="SyntheticBatch", top=["data"])
    data.input_param.shape.add(dim=[batch, 1])
    for layer, *seconds in zip(work.layers, compute.forward, compute.backward, strict=True):
        if any(seconds) or layer.parameter_bytes:
            _add(net, layer.name, [*seconds, layer.parameter_bytes // 4])
    net.layer[-1].loss_weight.append(1.0)
    return param


def _add(net: Any, name: str, numbers: Sequence[float]) -> None:
    layer = net.layer.add(name=name, type="EmulatedLayer", bottom=["data"], top=["data"])
    layer.python_param.param_str = json.dumps(list(numbers))
