"""AnnotatedData: SSD's batches of images with boxes from a database."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcaffe.data.annotated import AnnotatedBatches
from fcaffe.data.backends import open_database
from fcaffe.data.prefetch import Batch, BatchSource
from fcaffe.data.transformer import Transformer
from fcaffe.layers.data import ReadingLayer
from fcaffe.net import register
from fcaffe.proto import forks


@register("AnnotatedData")
class AnnotatedData(ReadingLayer):
    """Reads the AnnotatedDatum records of an LMDB or LevelDB: tops data (batch_size, C, H, W) and label.

    `label` is (1, 1, G, 8), one row for each of the G objects of the batch: index of the image in the batch, label,
    instance, xmin, ymin, xmax, ymax, difficult. Corners are relative to the image. A batch without objects has one row
    of -1. Records without annotation type give labels (batch_size) as the layer Data does.
    """

    fork = forks.SSD
    size_logged_at = "annotated_data_layer.cpp:57"

    def transformer(self) -> Transformer:
        transform, samplers = self.param.transform_param, self.param.annotated_data_param.batch_sampler
        seeds = bool(samplers) or transform.HasField("distort_param") or transform.HasField("expand_param")
        return Transformer(transform, self.phase, seeds)

    def open_source(self, transformer: Transformer) -> BatchSource:
        p = self.param.data_param
        if p.batch_size < 1:
            raise self.error("data_param.batch_size must be positive")
        database = open_database(p.source, p.backend)
        database.agree_on(self.context.as_worker_0(database.version()))
        source = AnnotatedBatches(database, transformer, p.batch_size, self.param)
        self.has_boxes = source.has_boxes
        return source

    def label_shape(self, images: int) -> tuple[int, ...]:
        return (1, 1, 1, 8) if self.has_boxes else super().label_shape(images)

    def labels(self, batch: Batch, rows: slice) -> np.ndarray:
        if not self.has_boxes:
            return super().labels(batch, rows)
        found: list[Any] = [
            np.insert(objects, 0, index, axis=1) for index, objects in enumerate(batch.objects[rows]) if len(objects)
        ]
        table = np.concatenate(found) if found else np.full((1, 8), -1)
        return table.astype(np.float32).reshape(1, 1, -1, 8)
