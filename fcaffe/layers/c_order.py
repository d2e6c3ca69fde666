"""Values in C order, as Caffe counts them, of arrays with another memory layout."""

from __future__ import annotations

import math

from fcaffe.net import Array, Blob, Context


def shares_memory(context: Context) -> bool:
    """Whether layers whose top has the values of its bottom share its memory, data and gradient, as they do in Caffe.

    Only a script can see that. Elsewhere such a layer copies, so that its bottom may stay channels-last.
    """
    return context.shares_memory and not context.engine.asynchronous


def share(bottom: Blob, top: Blob) -> None:
    """Let the top, which has its shape, be the memory of the bottom, in C order for good."""
    bottom.make_contiguous()
    top.share_data(bottom)
    top.share_diff(bottom)


def copy_values(source: Array, target: Array) -> None:
    """target = source, both read in C order, whatever their shapes and strides."""
    if target.flags.c_contiguous:
        target.reshape(source.shape)[...] = source
    else:
        target[...] = source.reshape(target.shape)


def rows_of(source: Array) -> Array:
    """(N, values of a sample) in C order, to be read only: it may be a copy."""
    return source.reshape(source.shape[0], math.prod(source.shape[1:]))
