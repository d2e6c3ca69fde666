"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    annotated_data,
    detection_evaluate,
    detection_output,
    multibox_loss,
    prior_box,
)
