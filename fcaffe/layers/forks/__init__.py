"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    batch_norm,
    depthwise,
    normalize,
    permute,
    relu6,
    resize,
)
