"""Low rank: replaces inner products and convolutions by two layers each.

The weights as a matrix (outputs, everything else) are U S V. The r largest singular values are retained. The first r
rows of V are the weights of a layer with r outputs, and U S those of an inner product, or 1 x 1 convolution, behind it.
Their product is the nearest matrix of rank r (Eckart and Young, 1936). M outputs of K inputs take r (K + M)
multiply-adds instead of M K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.merge_bn import PARAM_OF, stored_weights

FIRST, SECOND = "_v", "_u"  # suffixes of the names of the two layers
_TYPES = ("InnerProduct", "Convolution")
_WINDOW = ["kernel_size", "kernel_h", "kernel_w", "stride", "stride_h", "stride_w", "pad", "pad_h", "pad_w", "dilation"]


class Factored(NamedTuple):
    """A factored layer: its rank, its full rank, and the relative error of its weights in the Frobenius norm."""

    layer: str
    rank: int
    full: int
    error: float


def low_rank(param: Any, model: Model, ranks: Mapping[str, int], energy: float) -> tuple[Model, list[Factored]]:
    """Factor layers of a NetParameter and its weights. Returns the new model, and what was factored.

    These are the layers of `ranks`. Without ranks they are all layers that then take fewer multiply-adds, and `energy`
    is the share of the sum of squared singular values to retain. Raises UsageError if a layer of `ranks` cannot be
    factored, and SnapshotError if the model lacks weights, is of another net, or has weights that are not finite.
    """
    names = {layer.name: layer for layer in param.layer}
    if wrong := [name for name in ranks if name not in names or not _can(names[name])]:
        raise UsageError(
            f"there is no inner product, nor a convolution without groups, called {', '.join(wrong)}; shared weights "
            "and weights that stand transposed stay whole"
        )
    stored = {layer.name: layer for layer in model.layers}
    made, done = Model(pb.NetParameter(), []), list[Factored]()
    made.param.CopyFrom(param)
    made.param.ClearField("layer")
    for layer in param.layer:
        factors = None
        if _can(layer) and (layer.name in ranks or not ranks):
            factors = _factors(layer, stored_weights(layer, stored), ranks.get(layer.name), energy)
        if factors is None:
            made.layers.append(StoredLayer(layer, stored[layer.name].blobs if layer.name in stored else []))
        else:
            made.layers += factors[0]
            done.append(factors[1])
    return made, done


def _can(layer: Any) -> bool:
    if layer.type not in _TYPES or len(layer.bottom) != 1 or any(spec.name for spec in layer.param):
        return False
    p = getattr(layer, PARAM_OF[layer.type])
    return not p.transpose if layer.type == "InnerProduct" else p.group == 1 and p.axis == 1


def _factors(
    layer: Any, blobs: list[StoredBlob], rank: int | None, energy: float
) -> tuple[list[StoredLayer], Factored] | None:
    """The two layers; None if no rank is given and they would not take fewer multiply-adds."""
    outputs = getattr(layer, PARAM_OF[layer.type]).num_output
    weights = np.array(blobs[0].data, np.float64)
    kernel = weights.shape[1:] if layer.type == "Convolution" else (weights.size // outputs,)
    matrix = weights.reshape(outputs, -1)
    if not np.isfinite(matrix).all():
        raise SnapshotError(f'the model has weights of layer "{layer.name}" that are not finite')
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    retained = np.cumsum(values**2) / max(np.sum(values**2), np.finfo(np.float64).tiny)
    if rank is None:
        rank = int(np.searchsorted(retained, energy - 1e-12) + 1)
        if rank * (outputs + math.prod(kernel)) >= outputs * math.prod(kernel):
            return None
    if not 1 <= rank <= len(values):
        raise UsageError(f'the rank of layer "{layer.name}" is from 1 to {len(values)}, not {rank}')
    root = np.sqrt(values[:rank])  # so that activations between the layers have the magnitude of their neighbours
    arrays = root[:, None] * right[:rank], left[:, :rank] * root
    first, second = pb.LayerParameter(), pb.LayerParameter()
    for one, ending in ((first, FIRST), (second, SECOND)):
        one.CopyFrom(layer)
        one.name = layer.name + ending
    first.top[0] = second.bottom[0] = first.name
    del first.param[1:]
    first.ClearField("loss_weight")
    second.ClearField("propagate_down")  # it applies to the first bottom
    mine, theirs = (getattr(one, PARAM_OF[layer.type]) for one in (first, second))
    mine.num_output, mine.bias_term = rank, False
    tail: tuple[int, ...] = ()
    if layer.type == "Convolution":
        tail = (1,) * (len(kernel) - 1)
        for field in _WINDOW:
            theirs.ClearField(field)
        theirs.kernel_size.append(1)
    else:
        theirs.axis = -1 if mine.axis < 0 else mine.axis
    shapes = [(rank, *kernel), (outputs, rank, *tail)]
    near, far = (
        StoredBlob(shape, a.astype(np.float32).reshape(shape)) for shape, a in zip(shapes, arrays, strict=True)
    )
    error = math.sqrt(max(0.0, 1 - retained[rank - 1]))
    pair = [StoredLayer(first, [near]), StoredLayer(second, [far, *blobs[1:]])]
    return pair, Factored(layer.name, rank, len(values), error)
