"""Whether a layer writes for pieces of a batch the bits that it writes for the whole batch: it is tried.

A library may sum up the products of an output in another order where there are fewer images, or use other routines.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from fcaffe.engines.trials import drawn, drawn_last, same_bits
from fcaffe.net import Blob, Context, Layer
from fcaffe.net.node import Node

_tried: weakref.WeakKeyDictionary[Layer, dict[tuple[object, ...], bool]] = weakref.WeakKeyDictionary()


def has_same_bits(node: Node, piece: int) -> bool:
    """Whether a node whose outputs for an image depend on that image alone writes the same bits, so many images at a
    time: of random numbers, and with special ones among them. Its weights are others meanwhile, as they may be zeros
    yet. A layer is tried once for each shape."""
    if node.layer.type == "Split":
        return True
    found = _tried.setdefault(node.layers[0], {})
    key = type(node.layer), len(node.layers), piece, *(blob.shape for blob in node.bottoms)
    if key not in found:
        found[key] = all(blob.dtype == "float32" for blob in node.blobs) and all(
            _try(node, piece, special) for special in (False, True)
        )
    return found[key]


def _try(node: Node, piece: int, special: bool) -> bool:
    bottoms = [_like(blob, blob.shape) for blob in node.bottoms]
    for number, blob in enumerate(bottoms):
        blob.data[...] = drawn_last(blob.shape, number, special)
    whole = [_like(blob, blob.shape) for blob in node.tops]
    parts = [[_like(blob, (piece, *blob.shape[1:])) for blob in blobs] for blobs in (node.bottoms, node.tops)]
    with node.layer.engine.other_weights(), _drawn_weights(node, special), _saving_nothing(node.layer.context):
        node.layer.forward(bottoms, whole)
        for start in range(0, bottoms[0].shape[0], piece):
            for blob, part in zip(bottoms, parts[0], strict=True):
                part.data[...] = blob.data[start : start + piece]
            node.layer.forward(*parts)
            for blob, part in zip(whole, parts[1], strict=True):
                if not same_bits(blob.data[start : start + piece], part.data):
                    return False
    return True


@contextmanager
def _drawn_weights(node: Node, special: bool) -> Iterator[None]:
    storages = {blob._data: blob.shape for layer in node.layers for blob in layer.blobs}
    before = {storage: storage.buffer for storage in storages}
    try:
        for number, (storage, shape) in enumerate(storages.items()):
            storage.replace(drawn(shape, number, special).reshape(-1))
        yield
    finally:
        for storage, buffer in before.items():
            storage.replace(buffer)


@contextmanager
def _saving_nothing(context: Context) -> Iterator[None]:
    before, context.inference = context.inference, True
    try:
        yield
    finally:
        context.inference = before


def _like(blob: Blob, shape: tuple[int, ...]) -> Blob:
    return Blob(blob.xp, shape, channels_last=True, dtype=blob.dtype)
