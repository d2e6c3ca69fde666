"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    annotated_data,
    detection_evaluate,
    detection_output,
    multibox_loss,
    ohem,
    prior_box,
    proposal,
    roi_pooling,
    smooth_l1,
)
