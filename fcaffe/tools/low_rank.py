"""Inner products and convolutions in two steps, of which the first gives few values: a low-rank approximation.

The weights as a matrix (outputs, everything else) are U S V; of the singular values the largest r stay. Then V's first
r rows are the weights of a layer with r outputs, and U S those of an inner product, or 1 x 1 convolution, behind it.
Among all matrices of rank r theirs is the nearest (Eckart and Young, 1936). With M outputs of K inputs there are
r (K + M) multiply-adds in place of M K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import SnapshotError, UsageError
from fcaffe.net.model_files import Model, StoredLayer
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.stored_weights import PARAM_OF, stored_weights

FIRST, SECOND = "_v", "_u"  # behind a layer's name: the names of the two that take its place
_TYPES = ("InnerProduct", "Convolution")


@dataclass(frozen=True)
class Factored:
    """A layer that became two: its rank now and at most, and the error of its weights, relative, by Frobenius' norm."""

    layer: str
    rank: int
    full: int
    error: float


def low_rank(param: Any, model: Model, ranks: Mapping[str, int], energy: float) -> tuple[Any, Model, list[Factored]]:
    """The net and its weights with layers in two steps, wherever that takes fewer multiply-adds.

    `ranks` gives ranks by layer. Without any, every layer that can has the smallest rank whose singular values have at
    least the share `energy` of the sum of all squares. Raises UsageError for layers that cannot, and SnapshotError if
    the model lacks weights, is of another net, or has weights that are no numbers.
    """
    names = {layer.name: layer for layer in param.layer}
    if wrong := [name for name in ranks if name not in names or not _can(names[name])]:
        raise UsageError(
            f"there is no inner product, nor a convolution without groups, called {', '.join(wrong)}; shared weights "
            "and weights that stand transposed stay whole"
        )
    stored = {layer.name: layer for layer in model.layers}
    net, layers, done = pb.NetParameter(), [], list[Factored]()
    net.CopyFrom(param)
    net.ClearField("layer")
    for layer in param.layer:
        factors = None
        if _can(layer) and (layer.name in ranks or not ranks):
            factors = _factors(layer, stored_weights(layer, stored), ranks.get(layer.name), energy)
        if factors is None:
            net.layer.append(layer)
            layers.append(StoredLayer(layer, stored[layer.name].blobs if layer.name in stored else []))
            continue
        pair, factored = factors
        done.append(factored)
        for one in pair:
            net.layer.append(one.param)
            layers.append(one)
    outline = pb.NetParameter()
    outline.CopyFrom(net)
    outline.ClearField("layer")
    return net, Model(outline, layers), done


def _can(layer: Any) -> bool:
    if layer.type not in _TYPES or len(layer.bottom) != 1 or any(spec.name for spec in layer.param):
        return False
    p = getattr(layer, PARAM_OF[layer.type])
    return not p.transpose if layer.type == "InnerProduct" else p.group == 1 and p.axis == 1


def _factors(
    layer: Any, blobs: list[StoredBlob], rank: int | None, energy: float
) -> tuple[list[StoredLayer], Factored] | None:
    """The two layers; None if they would take as many multiply-adds as the one, and nobody asked for this rank."""
    outputs = getattr(layer, PARAM_OF[layer.type]).num_output
    weights = np.array(blobs[0].data, np.float64)
    kernel = weights.shape[1:] if layer.type == "Convolution" else (weights.size // outputs,)
    matrix = weights.reshape(outputs, -1)
    if not np.isfinite(matrix).all():
        raise SnapshotError(f'the model has weights of layer "{layer.name}" that are no numbers, which have no rank')
    squares, vectors = _squares(matrix)
    kept = np.cumsum(squares) / max(squares.sum(), np.finfo(np.float64).tiny)
    if rank is None:
        rank = int(np.searchsorted(kept, energy - 1e-12) + 1)
        if rank * (outputs + math.prod(kernel)) >= outputs * math.prod(kernel):
            return None
    if not 1 <= rank <= len(squares):
        raise UsageError(f'the rank of layer "{layer.name}" is from 1 to {len(squares)}, not {rank}')
    arrays = _pair(matrix, squares[:rank], vectors[:, :rank])
    first, second = pb.LayerParameter(), pb.LayerParameter()
    for one, ending in ((first, FIRST), (second, SECOND)):
        one.CopyFrom(layer)
        one.name = layer.name + ending
    middle = first.name
    first.top[0], second.bottom[0] = middle, middle
    del first.param[1:]
    first.ClearField("loss_weight")
    second.ClearField("propagate_down")  # it is the bottom of both that may want no gradient
    mine, theirs = (getattr(one, PARAM_OF[layer.type]) for one in (first, second))
    mine.num_output, mine.bias_term = rank, False
    tail: tuple[int, ...] = ()
    if layer.type == "Convolution":
        tail = (1,) * (len(kernel) - 1)
        for field in ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "stride", "pad", "dilation"):
            theirs.ClearField(field)
        theirs.ClearField("kernel_size")
        theirs.kernel_size.append(1)
    else:
        theirs.axis = -1 if mine.axis < 0 else mine.axis
    shapes = [(rank, *kernel), (outputs, rank, *tail)]
    made = [
        StoredBlob(shape, array.astype(np.float32).reshape(shape)) for shape, array in zip(shapes, arrays, strict=True)
    ]
    error = math.sqrt(max(0.0, 1 - kept[rank - 1]))
    pair = [StoredLayer(first, made[:1]), StoredLayer(second, [made[1], *blobs[1:]])]
    return pair, Factored(layer.name, rank, len(squares), error)


def _squares(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The squares of the singular values of a matrix (M, K), the largest first, and in columns the singular vectors on
    the side of its shorter axis. By the eigenvalues of a product of the matrix with itself, which takes a fraction of
    the time of all vectors on both sides, and in float64 resolves more than weights of float32 have."""
    wide = matrix.shape[0] <= matrix.shape[1]
    squares, vectors = np.linalg.eigh(matrix @ matrix.T if wide else matrix.T @ matrix)
    return np.maximum(squares[::-1], 0), vectors[:, ::-1]


def _pair(matrix: np.ndarray, squares: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights (r, K) and (M, r) of two steps: the matrix projected upon singular vectors, and these. Each has half
    of the singular values' size, so that the values between the steps are as large as those around."""
    root = np.where(squares > 0, squares, 1) ** 0.25
    if matrix.shape[0] <= matrix.shape[1]:
        return vectors.T @ matrix / root[:, None], vectors * root
    return vectors.T * root[:, None], matrix @ vectors / root
