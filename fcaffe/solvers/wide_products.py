"""Wide inner products with --reproducible: products over the samples of all shards and workers.

The weights of an InnerProduct often outnumber by far its inputs and outputs. Shards that compute it on their own read
these weights anew for each shard. Sums of its gradients over shards move more memory, and more bytes between workers,
than all other work of the layer. So the shards meet at such a layer. The workers gather its inputs, or the gradients
of its outputs, and share out the blocks of one product over the whole batch. The blocks have the same shapes on any
number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from fcaffe.engines import Engine
from fcaffe.layers.inner_product import InnerProduct
from fcaffe.net import Net
from fcaffe.net.build.shards import Shards
from fcaffe.net.node import Node
from fcaffe.net.placements import Shard
from fcaffe.share import Share, split_batch

WORTH = 4  # how many times fewer the inputs and outputs must be than the weights
BLOCK = 512  # outputs, or inputs in the gradient of the bottom, that one thread computes at a time
MOST = 64  # shards: each has a buffer of the net's other gradients

Floats = np.ndarray
Compute = Callable[[Engine, slice, Floats], None]  # writes a block of columns of a product


class WideProduct:
    """The products of one layer.

    Attributes:
        part: The slice of the flat gradients that has those of the weights.
    """

    def __init__(self, shards: Shards, share: Share, part: slice, inputs: int, outputs: int) -> None:
        self.part, self.inputs, self.outputs = part, inputs, outputs
        self._shards, self._share = shards, share
        self._samples = [shards.samples_of(worker, share.total) for worker in range(shards.workers.size)]
        self._x = np.empty((share.count, inputs), np.float32)  # of this worker's shards
        self._dy = np.empty((share.count, outputs), np.float32)
        self._everyones_x = self._x
        self._tasks: deque[Callable[[Engine], None]] = deque()
        self._product = self._x

    def forward(self, engine: Engine, x: Floats, weights: Floats, y: Floats) -> None:
        """y (M, N) of this shard = x (M, K) of this shard times weights (N, K)."""

        def compute(engine: Engine, block: slice, out: Floats) -> None:
            engine.inner_product_forward(self._everyones_x, weights[block], None, out, False)

        def begin() -> None:
            self._everyones_x = self._gathered(self._x)
            self._share_out(compute, self.outputs)

        rows = self._shards.rows(self._share)
        self._x[rows] = x
        y[...] = self._multiply(engine, begin, self.outputs)[rows]

    def backward(self, engine: Engine, dy: Floats, weights: Floats, dweights: Floats, dx: Floats | None) -> None:
        """dx (M, K) of this shard from dy (M, N) of this shard; and dweights (N, K) over all samples."""

        def begin() -> None:
            everyones_dy = self._gathered(self._dy)
            if dx is not None:
                self._share_out(compute_bottom(everyones_dy), self.inputs)
            for block in _blocks(self.outputs):
                self._tasks.append(compute_weights(np.ascontiguousarray(everyones_dy[:, block]), dweights[block]))

        def compute_bottom(everyones_dy: Floats) -> Compute:
            return lambda engine, block, out: engine.inner_product_backward_data(
                everyones_dy, weights[:, block], out, False
            )

        def compute_weights(dy: Floats, target: Floats) -> Callable[[Engine], None]:
            return lambda engine: engine.inner_product_backward_weights(self._everyones_x, dy, target, False, False)

        rows = self._shards.rows(self._share)
        self._dy[rows] = dy
        if dx is not None:
            dx[...] = self._multiply(engine, begin, self.inputs)[rows]
        else:
            self._work(engine, begin)

    def _multiply(self, engine: Engine, begin: Callable[[], None], width: int) -> Floats:
        """Compute a product over all samples; returns the rows of this worker's samples, of so many columns."""
        self._work(engine, begin)
        self._shards.barrier(lambda: self._gather_product(width))
        return self._product

    def _work(self, engine: Engine, begin: Callable[[], None]) -> None:
        """The shards wait for each other, one of them adds tasks, and all work on these."""
        self._shards.barrier(begin)
        while self._tasks:
            try:
                task = self._tasks.popleft()
            except IndexError:  # another thread has taken the last one
                return
            task(engine)

    def _gathered(self, own: Floats) -> Floats:
        return self._shards.workers.gather_rows(own, self._samples)

    def _share_out(self, compute: Compute, width: int) -> None:
        """Make tasks of this worker's blocks of a product over all samples."""
        blocks, workers = _blocks(width), self._shards.workers
        mine = split_batch(len(blocks), workers.rank, workers.size)
        self._computed = np.empty((mine.count, self._share.total * BLOCK), np.float32)

        def task(index: int) -> Callable[[Engine], None]:
            block = blocks[mine.first + index]
            size = block.stop - block.start
            out = self._computed[index, : self._share.total * size].reshape(-1, size)
            return lambda engine: compute(engine, block, out)

        self._tasks.extend(map(task, range(mine.count)))

    def _gather_product(self, width: int) -> None:
        blocks, workers = _blocks(width), self._shards.workers
        counts = [split_batch(len(blocks), worker, workers.size).count for worker in range(workers.size)]
        everyones = workers.gather_rows(self._computed, counts)
        own = slice(self._share.first, self._share.first + self._share.count)
        self._product = np.empty((self._share.count, width), np.float32)
        for block, values in zip(blocks, everyones, strict=True):
            columns = block.stop - block.start
            self._product[:, block] = values[: self._share.total * columns].reshape(-1, columns)[own]


def wide_products(net: Net, shards: Shards) -> dict[str, WideProduct]:
    """The wide products of a net, by the layer's key."""
    share = net.context.share
    if share is None or not shards.in_shards or shards.size > MOST:
        return {}
    own = {one.blob: part for one, part in net.parameters.with_slices() if not one.sharers}
    return {
        node.layer.key: WideProduct(shards, share, own[node.layer.blobs[0]], *_sizes(node))
        for node in net.nodes
        if _is_wide(node, share.total) and node.layer.blobs[0] in own
    }


def _blocks(width: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, width)) for start in range(0, width, BLOCK)]


def _is_wide(node: Node, samples: int) -> bool:
    """Whether a node is an InnerProduct of one row a sample with far fewer inputs and outputs than weights."""
    layer: Any = node.layer
    if type(layer) is not InnerProduct or layer.axis != 1 or layer.param.inner_product_param.transpose:
        return False
    if not layer.param_propagate_down[0] or node.bottoms[0].data_storage.dtype != np.float32:
        return False
    if (node.bottoms[0].placement, layer.context.whole_shape(node.bottoms[0])[0]) != (Shard(0, samples), samples):
        return False
    inputs, outputs = _sizes(node)
    return WORTH * samples * (inputs + outputs) <= inputs * outputs


def _sizes(node: Node) -> tuple[int, int]:
    outputs, inputs = node.layer.blobs[0].shape
    return inputs, outputs
