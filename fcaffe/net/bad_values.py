"""Finds the first blob of a net that has a value that is not finite."""

from __future__ import annotations

from fcaffe.net.arithmetic import is_finite, silent_arithmetic
from fcaffe.net.net import Net


@silent_arithmetic
def first_bad_blob(net: Net) -> str | None:
    """The first parameter or blob of the last forward pass that is not finite, in words, or None.

    Each worker searches by itself, without sums over workers.
    """
    with net.context.unheard():
        for node in net.recomputed():
            for index, blob in enumerate(node.layer.blobs):
                if not is_finite(blob.data):
                    return f'parameter {index} of layer "{node.name}"'
            for index, blob in zip(node.top_ids, node.tops, strict=True):
                if not is_finite(net.context.engine.as_float32(blob.data)):
                    return f'blob "{net.blob_names[index]}" (top of layer "{node.name}")'
    return None
