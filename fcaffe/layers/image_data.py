"""ImageData: batches of images from files named in a list."""

from __future__ import annotations

from fcaffe.data.image_list import ListBatches
from fcaffe.data.prefetch import BatchSource
from fcaffe.data.transformer import Transformer
from fcaffe.layers.data import ReadingLayer
from fcaffe.net import register


@register("ImageData")
class ImageData(ReadingLayer):
    """Reads pictures (JPEG, PNG, ...) by OpenCV: top data (batch_size, 3 or 1, H, W), optionally label (batch_size)."""

    size_logged_at = "image_data_layer.cpp:90"

    def open_source(self, transformer: Transformer) -> BatchSource:
        p = self.param.image_data_param
        if p.batch_size < 1:
            raise self.error("image_data_param.batch_size must be positive")
        return ListBatches(p, transformer, self.context.random)
