"""Layers of Caffe's forks, one file a family."""

from fcaffe.layers.forks import (  # noqa: F401
    annotated_data,
    axpy,
    batch_norm,
    dense_image_data,
    detections,
    face,
    lstm,
    mobile,
    multibox_loss,
    normalize,
    ohem,
    permute,
    prior_box,
    proposal,
    region_loss,
    resize,
    roi_pooling,
    smooth_l1,
    yolo_v1,
    yolov3,
)
