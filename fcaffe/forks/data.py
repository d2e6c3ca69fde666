"""Data layers: AnnotatedData, SSD's batches with boxes, and DenseImageData, SegNet's with a label for each pixel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fcaffe.data.annotated import MOST_OBJECTS, AnnotatedBatches
from fcaffe.data.database import Database
from fcaffe.data.image_list import PairBatches
from fcaffe.data.prefetch import Batch
from fcaffe.data.transformer import Transformer
from fcaffe.layers.data import Data, ReadingLayer
from fcaffe.net import Blob, register
from fcaffe.net.placements import LOCAL, REPLICATE
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import forks


@register("AnnotatedData")
class AnnotatedData(Data):
    """Reads the AnnotatedDatum records of an LMDB or LevelDB: tops data (batch_size, C, H, W) and label.

    `label` is (1, 1, G, 8), one row for each of the G objects of the batch: index of the image in the batch, label,
    instance, xmin, ymin, xmax, ymax, difficult. Corners are relative to the image. A batch without objects has one row
    of -1. With MobileNet-YOLO's field `yolo_data_type: 1` it is (batch_size, 1, 300, 5): class from 0 on, centre, width
    and height of up to 300 objects of each image, then zeros. It leaves difficult objects out unless `train_diffcult`.
    Records without annotation type give labels (batch_size) as the layer Data does.
    """

    fork = forks.SSD
    size_logged_at = "annotated_data_layer.cpp:57"

    def transformer(self) -> Transformer:
        transform, samplers = self.param.transform_param, self.param.annotated_data_param.batch_sampler
        seeds = bool(samplers) or transform.HasField("distort_param") or transform.HasField("expand_param")
        return Transformer(transform, self.phase, seeds)

    def batches(self, database: Database, transformer: Transformer, batch_size: int) -> AnnotatedBatches:
        source = AnnotatedBatches(database, transformer, batch_size, self.param)
        self.has_boxes = source.has_boxes
        return source

    def label_shape(self, images: int) -> tuple[int, ...]:
        if not self.has_boxes:
            return super().label_shape(images)
        return (images, 1, MOST_OBJECTS, 5) if self._for_yolo else (1, 1, 1, 8)

    def labels(self, batch: Batch, rows: slice) -> np.ndarray:
        if not self.has_boxes:
            return super().labels(batch, rows)
        if self._for_yolo:
            return np.stack([self._yolo_rows(objects) for objects in batch.objects[rows]])
        found: list[Any] = [
            np.insert(objects, 0, index, axis=1) for index, objects in enumerate(batch.objects[rows]) if len(objects)
        ]
        table = np.concatenate(found) if found else np.full((1, 8), -1)
        return table.astype(np.float32).reshape(1, 1, -1, 8)

    def find_share(self, batch_size: int, top: list[Blob]) -> None:
        super().find_share(batch_size, top)
        if self.has_boxes and not self._for_yolo and top[0].placement != REPLICATE:
            top[1].placement = LOCAL

    @property
    def _for_yolo(self) -> bool:
        return self.param.annotated_data_param.yolo_data_type == 1

    def _yolo_rows(self, objects: np.ndarray) -> np.ndarray:
        if not self.param.annotated_data_param.train_diffcult:
            objects = objects[objects[:, 6] == 0]
        objects = objects[:MOST_OBJECTS]
        rows = np.zeros((1, MOST_OBJECTS, 5), np.float32)
        rows[0, : len(objects), 0] = objects[:, 0] - 1
        rows[0, : len(objects), 1:3] = (objects[:, 2:4] + objects[:, 4:6]) / 2
        rows[0, : len(objects), 3:] = objects[:, 4:6] - objects[:, 2:4]
        return rows


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
