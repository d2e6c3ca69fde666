"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    annotated_data,
    axpy,
    batch_norm,
    depthwise,
    detection_evaluate,
    detection_output,
    face,
    l1_loss,
    multibox_loss,
    normalize,
    ohem,
    permute,
    prior_box,
    proposal,
    relu6,
    resize,
    roi_pooling,
    smooth_l1,
)
