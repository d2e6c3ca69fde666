"""A batch in pieces: for inference a stretch of layers works on a few images at a time, which stay in the caches.

Between two layers of MobileNet a batch of 16 images has up to 50 MB, which go to the memory and come back. Of a few
images each layer finds what the one before it has written in the cache of a core:

    before   conv1: data -> a        conv2: a -> b           pool: b -> pool
    after    for each piece of data and of pool:  conv1, conv2, pool, with a and b as large as a piece
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fcaffe.layers.fused.same_bits import has_same_bits
from fcaffe.net import Blob
from fcaffe.net.arena import lend_memory
from fcaffe.net.node import Node
from fcaffe.net.plan.layout import Use, layout
from fcaffe.net.rewrite import FusedLayer, renumbered
from fcaffe.net.storage import Storage
from fcaffe.threads import wanted_threads

LEAST = 1 << 22  # bytes of a batch that a node reads and writes: fewer stay in the caches anyway
WEIGHTS = 2  # times what a node reads and writes of a piece: more weights cost more to read again than that saves


class InPieces(FusedLayer):
    """tops = what these nodes of a program make of the bottoms, for some images after the others."""

    def __init__(self, nodes: Sequence[Node], bottoms: Sequence[Blob], tops: Sequence[Blob]) -> None:
        super().__init__(nodes)
        self.param.name = f"{nodes[0].name} to {nodes[-1].name}"
        self._ends = (*bottoms, *tops)
        self._images = piece_of(bottoms[0].shape[0])
        self._pieces: dict[Blob, Blob] = {}
        self._inside: list[Node] = []  # the nodes, between blobs of a piece
        for node in nodes:
            inner = [self._piece(blob) for blob in node.bottoms]
            if node.layer.type == "Split":  # whose tops are its bottom
                self._pieces.update(dict.fromkeys(node.tops, inner[0]))
            else:
                self._inside.append(replace(node, bottoms=inner, tops=[self._piece(blob) for blob in node.tops]))
        self._memory: list[Storage] = []  # of what lies between the layers

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        self._cut()
        self._memory = []

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        if not self._memory:
            self._memory = self._lend_memory()
        for start in range(0, bottom[0].shape[0], self._images):
            for blob in self._ends:
                self._show(blob, start)
            for node in self._inside:
                node.layer.forward(node.bottoms, node.tops)

    def own_memory(self) -> list[Storage]:
        return self._memory

    def own_bytes(self) -> int:
        self._cut()
        return layout(self._uses())[1]

    def _piece(self, blob: Blob) -> Blob:
        if blob not in self._pieces:
            shape = self._images, *blob.shape[1:]
            self._pieces[blob] = Blob(blob.xp, shape, channels_last=True, dtype=blob.dtype)
        return self._pieces[blob]

    def _cut(self) -> None:
        """Give the pieces the shapes that those of the blobs ask for."""
        self._images = piece_of(self._ends[0].shape[0])
        for blob, piece in self._pieces.items():
            piece.reshape(self._images, *blob.shape[1:])

    def _show(self, blob: Blob, start: int) -> None:
        """Let the piece of this blob be its images from `start` on."""
        piece, whole, first = self._pieces[blob], blob._data, start * math.prod(blob.shape[1:])
        whole.view(blob.shape)
        piece._data.channels_last = whole.channels_last
        piece._data.replace(whole.buffer[first : first + piece.count])

    def _lend_memory(self) -> list[Storage]:
        inner = self._uses()
        lend_memory(inner)
        return [use.storage for use in inner]

    def _uses(self) -> list[Use]:
        """From when to when the pieces of what lies between the layers are wanted."""
        outside = {self._pieces[blob]._data for blob in self._ends}
        spans: dict[Storage, tuple[int, int]] = {}
        for step, node in enumerate(self._inside):
            for storage in {blob._data for blob in node.blobs} - outside:
                spans[storage] = spans.get(storage, (step, step))[0], step
        return [Use(storage, [span]) for storage, span in spans.items()]


def piece_of(images: int) -> int:
    """How many of the images of a batch go together: as many for each thread, if they can be so divided."""
    threads = wanted_threads()
    return next((count for count in range(threads, images) if images % count == 0), images)


def in_pieces(nodes: list[Node], kept: Collection[Storage]) -> list[Node]:
    """These nodes of a program for inference, with one in place of each stretch of nodes that gains by it."""
    return _in_pieces(nodes, lambda node: _may_leave(node, kept))


def in_exact_pieces(nodes: list[Node], kept: Collection[Storage]) -> list[Node]:
    """The same, where each layer has been seen to write the bits that it writes for the batch as a whole."""
    return _in_pieces(nodes, lambda node: _may_leave(node, kept) and has_same_bits(node, piece_of(_images(node))))


def _in_pieces(nodes: list[Node], may: Callable[[Node], bool]) -> list[Node]:
    made: list[Node] = []
    index = 0
    while index < len(nodes):
        end = index
        while end < len(nodes) and _suits(nodes[end], nodes[index].bottoms) and may(nodes[end]):
            end += 1
        if end > index + 1:
            made.append(_together(nodes, index, end))
        else:
            made.append(nodes[index])
        index = max(end, index + 1)
    return renumbered(made)


def _may_leave(node: Node, kept: Collection[Storage]) -> bool:
    return not any(blob._data in kept for blob in node.tops)


def _images(node: Node) -> int:
    return node.bottoms[0].shape[0]


def _suits(node: Node, first: Sequence[Blob]) -> bool:
    layer, blobs = node.layer, node.blobs
    if not (node.bottoms and layer.engine.records and layer.traits.by_sample) or node.has_loss:
        return False
    images = first[0].shape[0] if first[0].shape else 0
    if any(len(blob.shape) != 4 or blob.shape[0] != images for blob in blobs) or getattr(layer, "axis", 1) == 0:
        return False
    if layer.type == "Split":
        return True
    size = sum(blob._data.nbytes for blob in blobs)
    weights = sum(blob._data.nbytes for each in node.layers for blob in each.blobs)
    piece = piece_of(images)
    return piece < images and size >= LEAST and weights <= WEIGHTS * size * piece // images


def _together(nodes: Sequence[Node], start: int, end: int) -> Node:
    inside, others = nodes[start:end], [*nodes[:start], *nodes[end:]]
    outside = {blob._data for node in others for blob in node.bottoms}
    read = {blob._data for node in inside for blob in node.bottoms}
    made: set[Storage] = set()
    bottoms: dict[Blob, int] = {}
    tops: dict[Blob, int] = {}
    for node in inside:
        for blob, blob_id in zip(node.bottoms, node.bottom_ids, strict=True):
            if blob._data not in made:
                bottoms[blob] = blob_id
        for blob, blob_id in zip(node.tops, node.top_ids, strict=True) if node.layer.type != "Split" else ():
            made.add(blob._data)
            if blob._data in outside or blob._data not in read:
                tops[blob] = blob_id
    layer = InPieces(inside, list(bottoms), list(tops))
    return Node(
        index=start,
        layer=layer,
        name=layer.name,
        bottoms=list(bottoms),
        tops=list(tops),
        bottom_ids=list(bottoms.values()),
        top_ids=list(tops.values()),
        bottom_need_backward=[False] * len(bottoms),
        members=tuple(member for node in inside for member in (node.members or (node,))),
    )
