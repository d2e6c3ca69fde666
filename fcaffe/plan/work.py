"""Work of a net on each worker, layer by layer: operations, bytes, weights and memory; and the time that it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fcaffe import log
from fcaffe.engines import NumpyEngine
from fcaffe.errors import UsageError
from fcaffe.net import Net
from fcaffe.net.graph import Node
from fcaffe.plan.machine import MEMORY_SUSTAINED, Machine
from fcaffe.solvers.rules import create_rule
from fcaffe.tools.nets import read_training
from fcaffe.tools.shapes import hollow_net
from fcaffe.tools.summary import work_of_passes


@dataclass(frozen=True)
class LayerWork:
    """One layer's work. `forward` and `backward` are (operations, bytes of bottoms and tops) for each sample."""

    name: str
    forward: tuple[float, float]
    backward: tuple[float, float]
    parameter_bytes: int  # moved besides, once a pass
    final_from: int  # the byte from which on the flat gradients are final after its backward


@dataclass(frozen=True)
class Work:
    """A net and how it is trained."""

    name: str
    path: str
    layers: Sequence[LayerWork]
    batch: int  # samples of a pass
    parameters: int
    activations: float  # bytes for each sample at the peak of a pass
    histories: int = 1  # of the solver's rule
    passes: int = 1  # of an iteration (iter_size)
    iterations: int | None = None  # of the training; None: not known

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.parameters


def work_of_net(path: str, input_shape: Sequence[int] | None = None, is_solver: bool = False) -> Work:
    """The training net of a prototxt, or of a solver's prototxt; its data sets need not exist. Raises FcaffeError."""
    with log.quiet():
        solver, read, source = read_training(path, is_solver)
        with contextlib.closing(hollow_net(read, source, input_shape, whole_passes=True)[0]) as net:
            if not net.parameters.count:
                raise UsageError(f"{source}: this net has no parameters, so there is nothing to train")
            work = _work(net, source)
    histories = create_rule(solver, NumpyEngine()).histories
    return replace(work, histories=histories, passes=max(1, solver.iter_size), iterations=solver.max_iter or None)


def _work(net: Net, path: str) -> Work:
    batch = net.batch_size
    trained = any(node.needs_backward for node in net.nodes)
    if not trained:
        log.warning(f"{path}: this net has no loss; it is planned for as if it had one")
    return Work(
        name=net.name,
        path=path,
        layers=[_layer(*pair, batch, trained) for pair in zip(net.nodes, net.plain.final_from, strict=True)],
        batch=batch,
        parameters=net.parameters.count,
        activations=net.memory().peak / batch,
    )


def _layer(node: Node, final_from: int, batch: int, trained: bool) -> LayerWork:
    (operations, moved), (back_operations, back_moved) = work_of_passes(node, trained)
    return LayerWork(
        node.name,
        (operations / batch, moved / batch),
        (back_operations / batch, back_moved / batch),
        4 * sum(blob.count for blob in node.layer.blobs),
        4 * final_from,
    )


@dataclass(frozen=True)
class Compute:
    """Seconds of each layer's forward and backward for one pass over a worker's share, in the net's order, and where
    these numbers come from."""

    forward: Sequence[float]
    backward: Sequence[float]
    origin: str

    @property
    def seconds(self) -> float:
        return sum(self.forward) + sum(self.backward)


def compute_of(work: Work, machine: Machine, math: str, samples: float, workers: int) -> Compute:
    """The time of one pass over this many samples, while this many workers share a node.

    Each layer takes its roofline: its operations at the device's efficiency, or its bytes at the assumed share of the
    memory's bandwidth, whichever takes longer. A known speed of the net scales all layers alike.
    """
    device = machine.device
    flops = device.efficiency * device.peak_of(math)
    rate = MEMORY_SUSTAINED * device.memory_bandwidth
    width = 1.0 if math in ("fp32", "tf32") else 0.5  # with 16 bits, blobs are half as long

    def seconds(operations: float, moved: float, parameters: float) -> float:
        if not operations and not moved:
            return 0.0
        return device.layer_seconds + max(samples * operations / flops, width * (samples * moved + parameters) / rate)

    forward = [seconds(*layer.forward, layer.parameter_bytes) for layer in work.layers]
    backward = [seconds(*layer.backward, 2 * layer.parameter_bytes) for layer in work.layers]
    factor = machine.slowdown(workers)
    if speed := machine.speed_of(work.name):
        factor *= samples / speed / (sum(forward) + sum(backward))
        origin = f"{samples:g} images at {speed:g} a second ({machine.source}), split by the layers' peaks"
    else:
        overhead = f"{1e6 * device.layer_seconds:g} us"
        memory = f"{MEMORY_SUSTAINED:.0%} (assumed) of the memory's bandwidth"
        origin = f"each layer: its operations at the efficiency or its bytes at {memory}; {overhead}"
    return Compute([factor * one for one in forward], [factor * one for one in backward], origin)
