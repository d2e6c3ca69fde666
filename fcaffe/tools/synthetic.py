"""A training on synthetic batches in memory, which replace the data sets of its net, to measure steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import NetError, UsageError
from fcaffe.net import Blob, Layer, Traits, register
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.timeline import DATA
from fcaffe.tools.nets import read_training
from fcaffe.tools.shapes import READERS, reader_of, replace_reader

# At this rate no net fits its one batch, whose gradients would become denormal numbers, or diverges: both change speed.
RATE = 1e-9


@register("SyntheticBatch", of_tool=True)
class SyntheticBatch(Layer):
    """The first top: normal random numbers of standard deviation 1, each worker's share of a batch; the others: class
    numbers 0 and 1. input_param has the shapes for the whole batch. Each pass writes the same batch into the tops."""

    traits = Traits(bottoms=0, tops=(1, None), reads_host=True)

    def setup(self, bottom: list[Blob], top: list[Blob]) -> None:
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        self.share = self.context.share_of(shapes[0][0])
        random = np.random.default_rng(self.share.first)
        self._values: list[np.ndarray] = []
        for blob, (_, *rest) in zip(top, shapes, strict=True):
            shape = (self.share.count, *rest)
            drawn = random.integers(0, 2, shape) if self._values else random.standard_normal(shape, np.float32)
            self._values.append(drawn.astype(np.float32))
            blob.reshape(*shape)
            blob.each_sample = math.prod(rest)

    def forward(self, bottom: list[Blob], top: list[Blob]) -> None:
        rows = self.context.workers.rows(self.share)
        with self.context.timeline.span(DATA):
            for blob, values in zip(top, self._values, strict=True):
                blob.reshape(rows.stop - rows.start, *values.shape[1:])
                self.engine.upload(blob, values[rows], blob.data).wait()


def steps_only(
    path: str,
    is_solver: bool,
    synthetic: bool = True,
    batch_size: int = 0,
    input_shape: Sequence[int] | None = None,
    level: int = 0,
    stages: Sequence[str] = (),
) -> Any:
    """The parameters of a solver that trains as the solver at `path` does, or that net with SGD, and does nothing else:
    no tests, snapshots or display. Its rate is so low that the weights stay.

    `synthetic`: layers that read files give way to batches in memory, of the record's shape (see `hollow_net`).
    `batch_size`: of the batch of all workers, if it is not to be the net's. Raises FcaffeError.
    """
    given, net, file = read_training(path, is_solver, level, stages)
    param = pb.SolverParameter()
    for name in ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay", "regularization_type",
                 "iter_size", "clip_gradients"):  # fmt: skip
        if given.HasField(name):
            setattr(param, name, getattr(given, name))
    readers = [layer for layer in net.layer if layer.type in READERS]
    if batch_size < 0:
        raise UsageError(f"the size of a batch must be positive, not {batch_size}")
    if batch_size and not readers:
        raise NetError(f"{file}: no layer reads batches, so the size of a batch cannot be set")
    for layer in readers:
        if batch_size:
            reader_of(layer).batch_size = batch_size
        if synthetic:
            _replace(layer, file, input_shape)
    param.net_param.CopyFrom(net)
    param.base_lr, param.lr_policy, param.random_seed, param.snapshot_after_train = RATE, "fixed", 1, False
    return param


def _replace(layer: Any, path: str, input_shape: Sequence[int] | None) -> None:
    source = reader_of(layer).source
    shape, origin = replace_reader(layer, "SyntheticBatch", path, input_shape)
    log.info(
        f'Layer "{layer.name}": synthetic batches of {" x ".join(map(str, shape))} in memory '
        f"({origin}), in place of {source or 'a data set'}"
    )
