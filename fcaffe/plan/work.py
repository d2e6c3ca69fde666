"""Work of a net on each worker, layer by layer: operations, bytes, weights and memory; and the time that it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fcaffe import log
from fcaffe.engines import NumpyEngine
from fcaffe.errors import UsageError
from fcaffe.layers.inner_product import InnerProduct
from fcaffe.net import Blob, Net
from fcaffe.net.build.graph import Node
from fcaffe.net.placements import Shard
from fcaffe.plan.machine import MEMORY_SUSTAINED, Machine
from fcaffe.solvers.rules import create_rule
from fcaffe.tools.nets import read_training
from fcaffe.tools.shapes import hollow_net
from fcaffe.tools.summary import work_of_passes


@dataclass(frozen=True)
class LayerWork:
    """One layer's work. `forward` and `backward` are (operations, bytes of bottoms and tops) for each sample.

    Of an InnerProduct `product` has the rows for each sample, inputs and outputs. `follows` is the one whose outputs it
    reads, as they are or through layers that keep them split.
    """

    name: str
    forward: tuple[float, float]
    backward: tuple[float, float]
    parameter_bytes: int  # moved besides, once a pass
    final_from: int  # the byte from which on the flat gradients are final after its backward
    product: tuple[float, int, int] | None = None
    follows: str = ""


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
    own: int = 0  # further parameters that each worker has to itself
    blobs: Sequence[float] = ()  # the bytes of a sum over a ring that takes as long as moving a split layer's blobs

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.parameters

    @property
    def parameter_bytes(self) -> int:
        return 4 * (self.parameters + self.own)

    def split(self, workers: int, batch: int) -> Work:
        """The work with --parallel hybrid, by the rule of `fcaffe.layers.inner_product`."""
        layers, by_outputs, blobs, own, split = [], dict[str, int](), dict[str, float](), 0, 0
        for layer in self.layers:
            final_from, parameter_bytes, moved = layer.final_from - split, layer.parameter_bytes, 0.0
            if layer.product is not None:
                rows, inputs, outputs = batch * layer.product[0], *layer.product[1:]
                weights = inputs * outputs
                moved = rows * (inputs + outputs / workers)
                if layer.follows in by_outputs and rows < inputs:
                    blobs[layer.follows] -= 4 * rows * inputs / workers  # which need not be transposed
                    moved, parameter_bytes = rows * outputs, 4 * weights // workers + 4 * outputs
                    split, own = split + 4 * weights, own + weights // workers
                elif outputs >= workers and moved < weights:
                    by_outputs[layer.name] = outputs
                    parameter_bytes //= workers
                    split, own = split + layer.parameter_bytes, own + parameter_bytes // 4
                else:
                    moved = 0.0
            if moved:
                blobs[layer.name] = 4 * moved
            layers.append(replace(layer, parameter_bytes=parameter_bytes, final_from=final_from))
        return replace(self, layers=layers, parameters=self.parameters - split // 4, own=own, blobs=[*blobs.values()])


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
    layers, split_by = [], dict[Blob, str]()
    for node, final_from in zip(net.nodes, net.plain.final_from, strict=True):
        follows = split_by.get(node.bottoms[0], "") if node.bottoms else ""
        layers.append(layer := replace(_layer(node, final_from, batch, trained), follows=follows))
        for blob in node.tops:
            split_by[blob] = node.name if layer.product else follows if follows and _keeps_outputs(node) else ""
    return Work(
        name=net.name,
        path=path,
        layers=layers,
        batch=batch,
        parameters=net.parameters.count,
        activations=net.memory().peak / batch,
    )


def _keeps_outputs(node: Node) -> bool:
    """Whether a layer takes outputs of an InnerProduct that are split over the workers as they are."""
    outputs = node.bottoms[0]
    return node.layer.keeps(Shard(len(outputs.shape) - 1, outputs.shape[-1]), outputs)


def _layer(node: Node, final_from: int, batch: int, trained: bool) -> LayerWork:
    (operations, moved), (back_operations, back_moved) = work_of_passes(node, trained)
    layer, product = node.layer, None
    if isinstance(layer, InnerProduct):
        product = node.tops[0].count / layer.outputs / batch, layer.inputs, layer.outputs
    return LayerWork(
        node.name,
        (operations / batch, moved / batch),
        (back_operations / batch, back_moved / batch),
        4 * sum(blob.count for blob in node.layer.blobs),
        4 * final_from,
        product,
    )


@dataclass(frozen=True)
class Compute:
    """Seconds of each layer's forward and backward for one pass over a worker's share, in the net's order."""

    forward: Sequence[float]
    backward: Sequence[float]

    @property
    def seconds(self) -> float:
        return sum(self.forward) + sum(self.backward)


def compute_of(work: Work, machine: Machine, math: str, samples: float) -> Compute:
    """The time of one pass over this many samples.

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
    speed = machine.speed_of(work.name)
    factor = samples / speed / (sum(forward) + sum(backward)) if speed else 1.0
    return Compute([factor * one for one in forward], [factor * one for one in backward])
