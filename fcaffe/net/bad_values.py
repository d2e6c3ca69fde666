"""Where the first value of a net that is not finite is."""

from __future__ import annotations

from fcaffe.net.arena import START
from fcaffe.net.arithmetic import is_finite, silent_arithmetic
from fcaffe.net.net import Net


@silent_arithmetic
def first_bad_blob(net: Net) -> str | None:
    """Which value of the last forward pass was the first that is not finite, or None.

    Values that others have overwritten since, or that fused layers have left out, are computed again. Each worker does
    so for itself: where its search ends depends on what it finds.
    """
    with net.context.unheard():
        net.program = net.plain
        if net.fuses:
            net.arena.follow(net.plain)
            net.arena.move(START)
        for node in net.nodes:
            for index, blob in enumerate(node.layer.blobs):
                if not is_finite(blob.data):
                    return f'parameter {index} of layer "{node.name}"'
            if any(map(net.arena.has, node.tops)):
                node.reshape()
                node.forward_again()
            for index, blob in zip(node.top_ids, node.tops, strict=True):
                if not is_finite(net.context.engine.as_float32(blob.data)):
                    return f'blob "{net.blob_names[index]}" (top of layer "{node.name}")'
    return None
