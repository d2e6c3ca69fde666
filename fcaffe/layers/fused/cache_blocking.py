"""Cache blocking: a chain of layers runs on a few images at a time, at inference.

Between two layers of MobileNet a batch of 16 images has up to 50 MB, which are written to memory and read back. With a
few images each layer finds the output of the layer before it in the cache:

    before   conv1: data -> a        conv2: a -> b           pool: b -> pool
    after    for each block of data and of pool:  conv1, conv2, pool, with a and b as large as a block
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fcaffe.net import Blob
from fcaffe.net.arena import Arena
from fcaffe.net.node import Node
from fcaffe.net.parameters import Parameters
from fcaffe.net.program import Program
from fcaffe.net.rewrite import FusedLayer, Want, node_in_place_of
from fcaffe.net.storage import Storage
from fcaffe.threads import wanted_threads

SMALLEST = 1 << 22  # bytes that a node reads and writes per batch; fewer stay in the caches anyway
MOST_WEIGHTS = 2  # bytes of weights per byte of a block; reading more again costs more than is saved


class CacheBlocked(FusedLayer):
    """Runs nodes of a program on one block of images after the other."""

    def __init__(self, nodes: Sequence[Node], want: Want, ends: Sequence[Blob]) -> None:
        super().__init__(nodes, want)
        self.param.name = f"{nodes[0].name} to {nodes[-1].name}"
        self._ends = ends  # the bottoms and tops of all nodes together
        self._blocks: dict[Blob, Blob] = {}  # for each blob, one that holds a block of its images
        of_storages: dict[Storage, Blob] = {}  # blobs that share memory share a block, such as the tops of a Split
        for blob in (blob for node in nodes for blob in node.blobs):
            block = Blob(blob.xp, blob.shape, channels_last=True, dtype=blob.dtype)
            self._blocks[blob] = of_storages.setdefault(blob.data_storage, block)
        blocked = [replace(node, bottoms=self._of(node.bottoms), tops=self._of(node.tops)) for node in nodes]
        self._inside = Program(blocked, self._of(ends), Parameters(), gradients=False)
        self._arena = Arena(recompute=False)  # of the blocks between the layers

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        for blob, block in self._blocks.items():
            block.reshape(block_size(blob.shape[0]), *blob.shape[1:])

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self._arena.follow(self._inside)
        images = bottom[0].shape[0]
        for start in range(0, images, max(1, block_size(images))):
            for blob in self._ends:
                whole, block, first = blob.data_storage, self._blocks[blob], start * math.prod(blob.shape[1:])
                whole.view(blob.shape)
                block.data_storage.channels_last = whole.channels_last
                block.data_storage.replace(whole.buffer[first : first + block.count])
            for node in self._inside.nodes:
                node.layer.forward(node.bottoms, node.tops)

    def own_memory(self) -> list[Storage]:
        return list(self._arena.storages)

    def _of(self, blobs: Sequence[Blob]) -> list[Blob]:
        return [self._blocks[blob] for blob in blobs]


def block_size(images: int) -> int:
    """The number of images of a block: the same for each thread, if that divides the batch."""
    return next((count for count in range(wanted_threads(), images) if images % count == 0), images)


def blocked_for_the_cache(nodes: list[Node], want: Want) -> list[Node]:
    """In an inference program, block each chain of two or more nodes that gain from it."""
    made: list[Node] = []
    while nodes:
        end = 0
        while end < len(nodes) and not want.gradients and _gains(nodes[end], nodes[0].bottoms, want):
            end += 1
        made.append(_blocked(nodes[:end], [*made, *nodes[end:]], want) if end > 1 else nodes[0])
        nodes = nodes[max(1, end) :]
    return made


def _gains(node: Node, first: Sequence[Blob], want: Want) -> bool:
    layer, blobs = node.layer, node.blobs
    if not (node.bottoms and layer.engine.records and layer.traits.by_sample) or node.has_loss:
        return False
    images = first[0].shape[0] if first[0].shape else 0
    if any(len(blob.shape) != 4 or blob.shape[0] != images for blob in blobs) or not all(map(want.hides, node.tops)):
        return False
    size = sum(blob.data_storage.nbytes for blob in blobs)
    weights = sum(blob.data_storage.nbytes for each in node.layers for blob in each.blobs)
    block = block_size(images)
    return block < images and size >= SMALLEST and weights <= MOST_WEIGHTS * size * block // images


def _blocked(inside: Sequence[Node], others: Sequence[Node], want: Want) -> Node:
    read_outside = {blob.data_storage for node in others for blob in node.bottoms}
    read_inside = {blob.data_storage for node in inside for blob in node.bottoms}
    written: set[Storage] = set()
    bottoms: list[Blob] = []
    tops: list[Blob] = []
    for node in inside:
        bottoms += [blob for blob in node.bottoms if blob.data_storage not in written and blob not in bottoms]
        written.update(blob.data_storage for blob in node.tops)
        tops += [
            blob for blob in node.tops if blob.data_storage in read_outside or blob.data_storage not in read_inside
        ]
    layer = CacheBlocked(inside, want, [*bottoms, *tops])
    node = node_in_place_of(layer, inside, inside[0], inside[-1])
    return replace(node, bottoms=bottoms, tops=tops, bottom_need_backward=[False] * len(bottoms))
