"""Values in C order, as Caffe counts them, of arrays with another memory layout."""

from __future__ import annotations

import math

from fcaffe.net import Array


def copy_values(source: Array, target: Array) -> None:
    """target = source, both read in C order, whatever their shapes and strides."""
    if target.flags.c_contiguous:
        target.reshape(source.shape)[...] = source
    else:
        target[...] = source.reshape(target.shape)


def rows_of(source: Array) -> Array:
    """(N, values of a sample) in C order, to be read only: it may be a copy."""
    return source.reshape(source.shape[0], math.prod(source.shape[1:]))
