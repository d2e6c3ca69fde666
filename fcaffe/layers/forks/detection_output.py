"""DetectionOutput: the boxes that an SSD net finds, decoded, after non-maximum suppression."""

from __future__ import annotations

import numpy as np

from fcaffe import log
from fcaffe.data import boxes
from fcaffe.layers.data import reading_errors
from fcaffe.layers.forks.detection_files import DetectionFiles
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.proto import forks

ROW = 7  # image in the batch, label, score, xmin, ymin, xmax, ymax


@register("DetectionOutput")
class DetectionOutput(Layer):
    """top (1, 1, D, 7): a row (image, label, score, xmin, ymin, xmax, ymax) for each of the D boxes of a batch.

    Bottoms: codes of boxes (N, P * 4), or (N, P * classes * 4) without share_location; scores (N, P * classes); priors
    (1, 2, P * 4), and their variances. Rows are ordered by image, label and score. If nothing is found, there is a row
    for each image, with -1 behind its number. With `save_output_param` the boxes are written to files as well.
    """

    fork = forks.SSD
    traits = Traits(bottoms=(3, 4), tops=1, shapes_by_values=True, needs_host=True)
    files: DetectionFiles | None = None

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_output_param
        if p.num_classes < 1:
            raise self.error("detection_output_param.num_classes is missing")
        if not 0 < p.nms_param.eta <= 1 or p.nms_param.nms_threshold < 0:
            raise self.error("nms_param needs eta above 0 and up to 1, and an nms_threshold of at least 0")
        if p.visualize:
            log.warning(f'layer "{self.name}": visualize has no effect; fcaffe detect --out draws boxes')
        self.labels = [label for label in range(p.num_classes) if label != p.background_label_id]
        self._open_files()
        top[0].reshape(1, 1, 1, ROW)

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_output_param
        check_priors(self, bottom, p.num_classes, p.share_location)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        p = self.param.detection_output_param
        codes, scores, priors = (self.engine.to_numpy(blob.data) for blob in bottom[:3])
        priors = priors.reshape(2, -1, 4)  # and their variances
        kinds = 1 if p.share_location else p.num_classes
        codes = codes.reshape(len(codes), priors.shape[1], kinds, 4)
        scores = scores.reshape(len(codes), priors.shape[1], p.num_classes)
        found = [self._of_image(index, codes[index], scores[index], priors) for index in range(len(codes))]
        if self.files is not None:
            with reading_errors(self):
                for rows in found:
                    self.files.add_image(rows)
        if not any(map(len, found)):
            found = [np.full((1, ROW), -1, np.float32) for _ in codes]
            for index, row in enumerate(found):
                row[0, 0] = index
        rows = np.concatenate([np.empty((0, ROW), np.float32), *found])
        top[0].reshape(1, 1, *rows.shape)
        top[0].data[...] = self.engine.from_numpy(rows)

    def _of_image(self, image: int, codes: np.ndarray, scores: np.ndarray, priors: np.ndarray) -> np.ndarray:
        """The rows (D, 7) of an image with codes (P, 1 or classes, 4) and scores (P, classes).

        `priors` (2, P, 4) has their variances, too.
        """
        p = self.param.detection_output_param
        lowest = p.confidence_threshold if p.HasField("confidence_threshold") else np.finfo(np.float32).min
        top_k = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
        found = [np.empty((0, ROW), np.float32)]
        for label in self.labels:
            candidates = np.flatnonzero(scores[:, label] > np.float32(lowest))
            candidates = candidates[boxes.falling(scores[candidates, label], top_k)]
            prior, variance = priors[:, candidates]
            code = codes[candidates, 0 if p.share_location else label]
            decoded = boxes.decode(code, prior, None if p.variance_encoded_in_target else variance, p.code_type)
            kept = boxes.suppress(decoded, p.nms_param.nms_threshold, p.nms_param.eta)
            rows = np.empty((len(kept), ROW), np.float32)
            rows[:, 0], rows[:, 1] = image, label
            rows[:, 2], rows[:, 3:] = scores[candidates[kept], label], decoded[kept]
            found.append(rows)
        rows = np.concatenate(found)
        if 0 <= p.keep_top_k < len(rows):
            rows = rows[np.sort(boxes.falling(rows[:, 2], p.keep_top_k))]
        return rows

    def has_gradient(self, bottom_index: int) -> bool:
        return False

    def _open_files(self) -> None:
        p = self.param.detection_output_param.save_output_param
        if not (p.output_directory and p.label_map_file and p.name_size_file):
            if p.output_directory:
                log.warning(f'layer "{self.name}" saves nothing without both label_map_file and name_size_file')
            return
        if self.context.turns.size > 1:
            raise self.error(
                "save_output_param needs all images in their order, and several workers share a test; remove it from "
                "the net that you train, and save by fcaffe test"
            )
        with reading_errors(self):
            self.files = DetectionFiles(p, self.labels)


def check_priors(layer: Layer, bottom: list[Blob], classes: int, share_location: bool) -> None:
    """NetError unless codes, scores and priors, the first three bottoms, are of as many priors."""
    codes, scores, priors = bottom[:3]
    count = priors.count // 8 if priors.shape[:2] == (1, 2) and priors.count % 8 == 0 else -1
    per_image = [blob.count // blob.shape[0] if blob.shape[0] else None for blob in (codes, scores)]
    wanted = [count * 4 * (1 if share_location else classes), count * classes]
    fits = all(have in (None, want) for have, want in zip(per_image, wanted, strict=True))
    if codes.shape[:1] != scores.shape[:1] or not fits:
        raise layer.error(
            f"needs 4 codes{'' if share_location else ' of each class'} and {classes} scores for each prior: "
            f"{layer.named_shapes(bottom[:3])}; correct num_classes or share_location"
        )
