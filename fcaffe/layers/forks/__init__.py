"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    ohem,
    roi_pooling,
    smooth_l1,
)
