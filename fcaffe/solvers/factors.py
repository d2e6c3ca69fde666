"""Gradients of wide weights with --reproducible: one product over the samples of all workers.

The weights of an InnerProduct often outnumber by far the values that their gradient is computed from, its inputs and
the gradients of its top. A sum of such gradients over shards moves more memory, and more bytes between workers, than
all other work of the layer. So the workers exchange these factors, and each computes the product over the whole batch.
It is the same product, of the same shapes, on any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.layers.inner_product import InnerProduct
from fcaffe.net import Net
from fcaffe.net.node import Node
from fcaffe.net.shards import Shards
from fcaffe.net.workers import Workers

WORTH = 4  # how many times fewer the factors must be than the weights
ROWS = 512  # outputs whose gradients are computed at a time, by one thread

Floats = np.ndarray


@dataclass(frozen=True)
class Product:
    """The gradient of one layer's weights: where it lies in the flat gradients, and its factors in `values`.

    The factors of a sample, inputs and gradients of outputs, are consecutive values of its row.
    """

    part: slice
    inputs: int
    outputs: int
    values: Floats

    def take(self, rows: slice, inputs: Floats, gradients: Floats) -> None:
        """Take in the factors of these samples."""
        self.values[rows, : self.inputs] = inputs
        self.values[rows, self.inputs :] = gradients


class Factors:
    """The products of a net, and the factors of this worker's samples."""

    def __init__(self, net: Net, shards: Shards, workers: Workers) -> None:
        share = net.context.share
        assert share is not None
        self.workers = workers
        self.counts = [shards.samples_of(worker, share.total) for worker in range(workers.size)]
        slices = dict(zip((id(one.blob) for one in net.parameters.owned), net.parameters.slices(), strict=True))
        shared = {id(one.blob) for one in net.parameters.owned if one.sharers}
        found = [node for node in net.nodes if _is_wide(node, share.total) and id(node.layer.blobs[0]) not in shared]
        widths = [sum(_sizes(node)) for node in found]
        self.values = np.zeros((max(self.counts), sum(widths)), np.float32)
        ends = np.cumsum(widths)
        self.products = {
            node.name: Product(slices[id(node.layer.blobs[0])], *_sizes(node), self.values[:, end - width : end])
            for node, width, end in zip(found, widths, ends, strict=True)
        }

    def left(self, count: int) -> list[slice]:
        """The slices of `count` flat gradients that no product computes."""
        starts = [0, *(product.part.stop for product in self.products.values())]
        stops = [*(product.part.start for product in self.products.values()), count]
        return [slice(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]

    def tasks(self, gradients: Floats) -> Sequence[Callable[[Engine], None]]:
        """Gather the factors of all workers; returns what writes the gradients, for any thread's engine. Collective."""
        if not self.products:
            return []
        everyones = self.workers.gather_array(self.values)
        whole = np.concatenate([values[:count] for values, count in zip(everyones, self.counts, strict=True)])
        found: list[Callable[[Engine], None]] = []
        start = 0
        for product in self.products.values():
            middle, end = start + product.inputs, start + product.inputs + product.outputs
            inputs = np.ascontiguousarray(whole[:, start:middle])
            target = gradients[product.part].reshape(product.outputs, product.inputs)
            for first in range(0, product.outputs, ROWS):
                outputs = np.ascontiguousarray(whole[:, middle:end][:, first : first + ROWS])
                found.append(_task(inputs, outputs, target[first : first + ROWS]))
            start = end
        return found


def _task(inputs: Floats, outputs: Floats, gradients: Floats) -> Callable[[Engine], None]:
    return lambda engine: engine.inner_product_backward_weights(inputs, outputs, gradients, False, False)


def _is_wide(node: Node, samples: int) -> bool:
    """Whether a node is an InnerProduct of one row a sample whose factors are few."""
    layer: Any = node.layer
    if type(layer) is not InnerProduct or layer.axis != 1 or layer.param.inner_product_param.transpose:
        return False
    if not layer.param_propagate_down[0] or node.bottoms[0].data_storage.dtype != np.float32:
        return False
    inputs, outputs = _sizes(node)
    return WORTH * samples * (inputs + outputs) <= inputs * outputs


def _sizes(node: Node) -> tuple[int, int]:
    outputs, inputs = node.layer.blobs[0].shape
    return inputs, outputs
