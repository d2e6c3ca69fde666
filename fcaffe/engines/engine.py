"""Engine: an array module and the operators that are worth a fast implementation.

`Engine` writes every operator in plain array code that NumPy and CuPy run alike; that is the reference. A fast engine
overrides single operators. Arrays come in as N x C x spatial axes with any strides; results are written in place into
the arrays that the caller hands over.
"""

from __future__ import annotations

from fcaffe.engines.convolution import PlainConvolution
from fcaffe.engines.inner_product import PlainInnerProduct
from fcaffe.engines.noise import PlainNoise
from fcaffe.engines.normalization import PlainNormalization
from fcaffe.engines.pooling import PlainPooling
from fcaffe.engines.rows import PlainRows
from fcaffe.engines.update import PlainUpdate


class Engine(
    PlainConvolution,
    PlainPooling,
    PlainNormalization,
    PlainInnerProduct,
    PlainNoise,
    PlainRows,
    PlainUpdate,
):
    """Plain operators over the array module `xp`."""
