"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    annotated_data,
    batch_norm,
    detection_evaluate,
    detection_output,
    multibox_loss,
    normalize,
    ohem,
    permute,
    prior_box,
    proposal,
    roi_pooling,
    smooth_l1,
)
