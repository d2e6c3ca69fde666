"""DenseImageData: SegNet's batches of images with a label for each pixel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fcaffe.data.image_list import PairBatches
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Transformer
from fcaffe.layers.data import ReadingLayer
from fcaffe.net import register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


@register("DenseImageData")
class DenseImageData(ReadingLayer):
    """Reads pictures and pictures of labels (JPEG, PNG, ...): tops data (N, 3 or 1, H, W) and label (N, 1, H, W).

    Random crops, in both phases, and mirroring treat both alike. With ENet's `label_divide_factor` F, label is
    (N, 1, H / F, W / F).
    """

    fork = forks.SEGNET
    traits = replace(ReadingLayer.traits, tops=2)
    size_logged_at = "dense_image_data_layer.cpp:108"
    field = "dense_image_data_param"
    source = PairBatches

    def transformer(self) -> Transformer:
        p, transform = self.param.dense_image_data_param, self.param.transform_param
        if transform.mirror or transform.crop_size:
            raise self.error("mirror and crops belong in dense_image_data_param, so that labels follow")
        if bool(p.crop_height) != bool(p.crop_width):
            raise self.error("dense_image_data_param needs both crop_height and crop_width, or neither")
        if p.label_divide_factor < 1 or (p.crop_height and p.label_divide_factor > 1):
            raise self.error("dense_image_data_param.label_divide_factor must be positive, and 1 with a crop")
        both = pb.TransformationParameter(mirror=p.mirror, crop_h=p.crop_height, crop_w=p.crop_width)
        both.MergeFrom(transform)
        return Transformer(both, pb.TRAIN)

    def label_shape(self, images: int) -> tuple[int, ...]:
        _, _, height, width = self.prefetcher.source.shape
        divisor = self.param.dense_image_data_param.label_divide_factor
        return (images, 1, height // divisor, width // divisor)

    def labels(self, batch: Batch, rows: slice) -> np.ndarray:
        return np.stack(batch.objects[rows])[:, np.newaxis].astype(np.float32)
