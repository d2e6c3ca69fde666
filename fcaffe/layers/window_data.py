"""WindowData: windows out of images, foreground and background ones in a fixed proportion."""

from __future__ import annotations

from dataclasses import replace

from fcaffe import log
from fcaffe.data.prefetch import BatchSource
from fcaffe.data.transformer import Transformer
from fcaffe.data.windows import WindowBatches
from fcaffe.layers.data import ReadingLayer
from fcaffe.net import Blob, register


@register("WindowData")
class WindowData(ReadingLayer):
    """Tops data (batch_size, 3, crop_size, crop_size) and label (batch_size), in which 0 is the background."""

    traits = replace(ReadingLayer.traits, tops=2)
    size_logged_at = "window_data_layer.cpp:180"

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        transform = self.param.transform_param
        if transform.mean_file:
            log.loading_mean(transform.mean_file, "window_data_layer.cpp:196")  # Caffe reads it a second time
        if transform.scale != 1:
            log.warning(
                f"layer {self.name}: transform_param.scale is ignored, as in Caffe; "
                "WindowData has window_data_param.scale"
            )

    def open_source(self, transformer: Transformer) -> BatchSource:
        p = self.param.window_data_param
        if p.batch_size < 1:
            raise self.error("window_data_param.batch_size must be positive")
        return WindowBatches(p, transformer, self.context.random)
