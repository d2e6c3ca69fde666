"""Losses on the logarithm of a probability, other than SoftmaxWithLoss: MultinomialLogisticLoss, InfogainLoss."""

from __future__ import annotations

from fcaffe.errors import SnapshotError
from fcaffe.layers.labels import check_sample_labels, read_sample_labels
from fcaffe.layers.loss import LossLayer, SoftmaxWithLoss
from fcaffe.layers.reshape import copy_values, rows_of
from fcaffe.net.blob import Array, Blob
from fcaffe.net.layer import register
from fcaffe.proto import blob_values, read_binary
from fcaffe.proto import caffe_pb2 as pb

SMALLEST = 1e-20  # probabilities below it count as this


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LossLayer):
    """top = -sum of log(p[label]) / N. Bottoms: probabilities (N, classes), as a Softmax gives them; labels (N,)."""

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        check_sample_labels(self, bottom)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        self.labels = read_sample_labels(self, bottom)
        self.samples = self.count_samples(bottom)
        top[0].data[...] = -self.xp.log(self._true(bottom)).sum() / self.samples

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        self.refuse_label_gradient(propagate_down)
        if not propagate_down[0]:
            return
        scale = float(top[0].diff) / self.samples
        gradients = self.xp.zeros_like(rows_of(bottom[0].data))
        self.xp.put_along_axis(gradients, self.labels, -scale / self._true(bottom), 1)
        copy_values(gradients, bottom[0].diff)

    def _true(self, bottom: list[Blob]) -> Array:
        """(N, 1): the probabilities of the labels."""
        rows = rows_of(bottom[0].data)
        return self.xp.maximum(self.xp.take_along_axis(rows, self.labels, 1), SMALLEST)


@register("InfogainLoss")
class InfogainLoss(SoftmaxWithLoss):
    """top = -sum over classes k of H[label, k] * log(softmax(x)[k]), summed over positions and normalised.

    With an identity matrix H this is SoftmaxWithLoss. H (classes, classes) is the third bottom, or the BlobProto in the
    file infogain_loss_param.source. The classes lie on infogain_loss_param.axis. The second top, if any, is the
    softmax; both tops then need a loss_weight.
    """

    bottoms = (2, 3)
    tops = (1, 2)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().setup(bottom, top)
        if len(bottom) == 3:
            return
        source = self.param.infogain_loss_param.source
        if not source:
            raise self.error("needs its matrix, as infogain_loss_param.source or as third bottom")
        try:
            self.stored = self.engine.from_numpy(blob_values(read_binary(source, pb.BlobProto)))
        except SnapshotError as problem:
            raise self.error(f"infogain_loss_param.source: {problem}") from problem

    def class_axis(self) -> int:
        return self.param.infogain_loss_param.axis

    def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        classes, values = shape[self.axis], bottom[2].count if len(bottom) == 3 else self.stored.size
        if values != classes**2:
            raise self.error(f"its matrix has {values} values, not {classes}^2 for the {classes} classes of {shape}")
        if len(top) == 2:
            top[1].reshape(*shape)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        super().forward(bottom, top)
        if len(top) == 2:
            top[1].data[...] = self.probability.data

    def losses(self, probability: Array, bottom: list[Blob]) -> Array:
        logarithms = self.xp.log(self.xp.maximum(probability, SMALLEST))
        return -(self._gains(bottom) * logarithms).sum(axis=self.axis, keepdims=True)

    def allow_force_backward(self, bottom_index: int) -> bool:
        return bottom_index == 0

    def backward(self, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]) -> None:
        if any(propagate_down[2:]):
            raise self.error("cannot give its matrix a gradient; set propagate_down: false for the third bottom")
        super().backward(top, propagate_down, bottom)

    def write_gradients(self, probability: Array, bottom: list[Blob], scale: float, dx: Array) -> None:
        gains = self._gains(bottom)
        self.xp.multiply(probability, gains.sum(axis=self.axis, keepdims=True), out=dx)
        dx -= gains
        dx *= scale

    def _gains(self, bottom: list[Blob]) -> Array:
        """In the shape of the scores: for each position the row of H that belongs to its label."""
        classes = bottom[0].shape[self.axis]
        matrix = (bottom[2].data if len(bottom) == 3 else self.stored).reshape(classes, classes)
        return self.xp.moveaxis(matrix[self.labels.squeeze(self.axis)], -1, self.axis)
