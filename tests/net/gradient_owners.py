"""A mode of passes in which backward of a layer may write the gradients of its bottoms and parameters, and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest

from fcaffe.net import Net
from fcaffe.net.blob import Storage
from fcaffe.net.node import Node
from fcaffe.net.run import arena


@contextlib.contextmanager
def gradients_have_owners(net: Net) -> Iterator[None]:
    """In the body no memory is shared between gradients that separate nodes write, and each backward is checked.

    A fused layer may also write the gradient in front of its ReLU, `inner`.
    """
    backward = Node.backward

    def checked(node: Node) -> None:
        inner = getattr(node.layer, "inner", None)
        asked = [blob for blob, down in zip(node.bottoms, node.bottom_need_backward, strict=True) if down]
        blobs = [*asked, *(blob for layer in node.layer.layers for blob in layer.blobs), *([inner] if inner else [])]
        before = _values(net)
        backward(node)
        own = {blob.diff_storage for blob in blobs}
        for storage, values in _values(net).items():
            if storage in before and storage not in own:
                assert np.array_equal(before[storage], values), f'"{node.name}" ({node.layer.type}) writes a gradient'

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "share_memory", lambda uses: {})
        patch.setattr(Node, "backward", checked)
        yield


def _values(net: Net) -> dict[Storage, np.ndarray]:
    nodes = [*net.nodes, *net.program.nodes]
    blobs = {blob for node in nodes for blob in (*node.blobs, *(b for layer in node.layer.layers for b in layer.blobs))}
    storages = {blob.diff_storage for blob in blobs}
    written = [storage for storage in storages if storage.buffer is not None and not storage.is_clear]
    return {storage: storage.buffer.view("uint8").copy() for storage in written}
