"""Folds BatchNorm, BN, Scale and Bias layers into the weights before them, or into one Scale; checks weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.engines.affine import Affine, identity
from fcaffe.errors import SnapshotError
from fcaffe.layers.fused.folded_convolution import affine_of, is_affine
from fcaffe.model_files import Model, StoredLayer
from fcaffe.net import Blob, Context, Layer
from fcaffe.net.blob import MAX_AXES
from fcaffe.net.build.filter import filter_net
from fcaffe.net.registry import create_layer
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.rng import CaffeRandom

_NORMALISATIONS = ("BatchNorm", "BN", "Scale", "Bias")


class Merged(NamedTuple):
    """The net without folded layers, its weights, and by layer the names of the layers that were folded into it."""

    net: Any
    model: Model
    folded: dict[str, list[str]]


def merge_bn(param: Any, model: Model) -> Merged:
    """Fold normalisations of a net in phase TEST, with the weights of a model.

    Successive normalisations without weights before them, as in DenseNet, become one Scale. A layer is not folded if
    its statistics are those of the batch, if another layer or a loss reads its bottom, if it has a loss_weight, if it
    stops gradients, or if weights are shared. A new bias gets the learning rates of its weights, and a new Scale those
    of its last Scale. Raises SnapshotError if the model lacks weights, or is of another net.
    """
    test = pb.NetParameter()
    test.CopyFrom(param)
    test.state.phase = pb.TEST
    test = filter_net(test)
    stored = {layer.name: layer for layer in model.layers}
    folded: dict[str, list[str]] = {}
    gone: set[int] = set()
    for index, layer in enumerate(test.layer):
        if index in gone or not (_has_foldable_weights(layer) or _is_affine(layer)):
            continue
        followers = list(_followers(test, index))
        if not followers:
            continue
        blobs = stored_weights(layer, stored)
        outputs = outputs_of(layer, blobs[0]) if layer.type in PARAM_OF else math.prod(blobs[0].shape)
        whole = _affine(layer, blobs, outputs) if _is_affine(layer) else identity(outputs)
        for follower in followers:
            whole = whole.then(_affine(test.layer[follower], stored_weights(test.layer[follower], stored), outputs))
        behind = [test.layer[follower] for follower in followers]
        stored[layer.name] = _as_scale(layer, behind, whole) if _is_affine(layer) else _with(layer, blobs, whole)
        layer.top[0] = behind[-1].top[0]
        folded[layer.name] = [other.name for other in behind]
        gone.update(followers)
    left = [layer for index, layer in enumerate(test.layer) if index not in gone]
    made = Model(
        pb.NetParameter(), [StoredLayer(layer, getattr(stored.get(layer.name), "blobs", [])) for layer in left]
    )
    made.param.CopyFrom(test)
    made.param.ClearField("layer")
    made.param.ClearField("state")
    net = made.net()
    if param.HasField("state"):  # for the stages in rules of layers
        net.state.CopyFrom(param.state)
    return Merged(net, made, folded)


def _has_foldable_weights(layer: Any) -> bool:
    if layer.type not in PARAM_OF or len(layer.bottom) != 1 or len(layer.top) != 1 or any(layer.loss_weight):
        return False
    axis = getattr(layer, PARAM_OF[layer.type]).axis
    return axis == 1 and not any(spec.name for spec in layer.param)


def _followers(net: Any, index: int) -> Iterator[int]:
    """Yields the indices of the successive layers that can be folded into a layer: each alone reads the one before."""
    while True:
        top, readers = net.layer[index].top[0], []
        for later in range(index + 1, len(net.layer)):
            if top in net.layer[later].bottom:
                readers.append(later)
            if top in net.layer[later].top:  # overwritten
                break
        if len(readers) != 1 or not _is_affine(net.layer[readers[0]]):
            return
        yield (index := readers[0])


def _is_affine(layer: Any) -> bool:
    if len(layer.bottom) != 1 or len(layer.top) != 1 or any(spec.name for spec in layer.param):
        return False
    if layer.type not in _NORMALISATIONS or any(layer.loss_weight) or not all(layer.propagate_down):
        return False
    return is_affine(_created(layer, (1,) * MAX_AXES))  # no negative axis is 1 there


def _created(layer: Any, shape: tuple[int, ...]) -> Layer:
    """The layer of phase TEST, unless it states another, for a bottom of this shape."""
    param = pb.LayerParameter(phase=pb.TEST)
    param.MergeFrom(layer)
    param.ClearField("param")
    engine = cpu_engine()
    with log.quiet():
        made = create_layer(param, Context(engine, CaffeRandom(0)))
        made.initialize([Blob(engine.xp, shape)], [Blob(engine.xp)])
    return made


def _affine(layer: Any, blobs: list[StoredBlob], outputs: int) -> Affine:
    """The affine function of a BatchNorm, BN, Scale or Bias."""
    made = _created(layer, (1, outputs))
    sizes, wanted = ([math.prod(blob.shape) for blob in given] for given in (blobs, made.blobs))
    if sizes != wanted:
        raise SnapshotError(
            f'layer "{layer.name}" ({layer.type}): the model has {sizes} values for it, not {len(wanted)} blobs for '
            f"{outputs} channels"
        )
    for own, blob in zip(made.blobs, blobs, strict=True):
        own.data[...] = np.asarray(blob.data).reshape(own.shape)
    return affine_of(made)


def _with(layer: Any, blobs: list[StoredBlob], affine: Affine) -> StoredLayer:
    """The layer with an affine function folded into its weights and bias."""
    weights, bias = blobs[0], blobs[1] if len(blobs) > 1 else None
    p = getattr(layer, PARAM_OF[layer.type])
    values, axis, group = np.array(weights.data), 0, 1
    if layer.type == "Deconvolution":
        axis, group = 1, p.group
    elif layer.type == "InnerProduct" and p.transpose:
        values, axis = values.reshape(-1, affine.scale.size), 1  # an old file has four axes
    values, shift = affine.of_weights(values, None if bias is None else np.array(bias.data), axis, group)
    scaled = StoredBlob(weights.shape, values.reshape(weights.shape), legacy=weights.legacy)
    p.ClearField("bias_term")
    if bias is None and layer.param:
        layer.param.add().CopyFrom(layer.param[0])
    shape, legacy = (shift.shape, False) if bias is None else (bias.shape, bias.legacy)
    shifted = StoredBlob(shape, shift.reshape(shape), legacy=legacy)
    return StoredLayer(layer, [scaled, shifted])


def _as_scale(layer: Any, followers: list[Any], affine: Affine) -> StoredLayer:
    """The layer converted to a Scale that computes its own affine function and those of its followers."""
    scales = [list(other.param) for other in (layer, *followers) if other.type == "Scale"]
    for field in ("batch_norm_param", "bn_param", "scale_param", "bias_param", "param"):
        layer.ClearField(field)
    layer.type, layer.scale_param.bias_term = "Scale", True
    layer.param.extend(scales[-1] if scales else [])
    values = (array.astype(np.float32) for array in (affine.scale, affine.shift))
    return StoredLayer(layer, [StoredBlob(array.shape, array) for array in values])


PARAM_OF = {
    "Convolution": "convolution_param",
    "ConvolutionDepthwise": "convolution_param",
    "DepthwiseConvolution": "convolution_param",
    "Deconvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}


def stored_weights(layer: Any, stored: Mapping[str, StoredLayer]) -> list[StoredBlob]:
    """The blobs of a layer, by its name: for a type in PARAM_OF weights, and a bias if it has one.

    Raises SnapshotError if there are none, or if they do not fit the layer.
    """
    found = stored.get(layer.name)
    if found is None or not found.blobs:
        raise SnapshotError(f'the model has no weights for layer "{layer.name}"')
    if layer.type in PARAM_OF and not _fit(layer, found.blobs):
        shapes = " and ".join(str(blob.shape) for blob in found.blobs)
        raise SnapshotError(
            f'the model has blobs of shape {shapes} for layer "{layer.name}" ({layer.type}), which the net describes '
            "otherwise; the two do not belong together"
        )
    return found.blobs


def outputs_of(layer: Any, weights: StoredBlob) -> int:
    """The number of outputs of a layer of a type in PARAM_OF. A depthwise one need not give it."""
    outputs = int(getattr(layer, PARAM_OF[layer.type]).num_output)
    return outputs or (weights.shape[0] if "Depthwise" in layer.type else 0)


def _fit(layer: Any, blobs: list[StoredBlob]) -> bool:
    p, weights = getattr(layer, PARAM_OF[layer.type]), blobs[0]
    if len(blobs) != 1 + p.bias_term or len(weights.shape) < 2:
        return False
    outputs = outputs_of(layer, weights)
    if outputs < 1 or (p.bias_term and math.prod(blobs[1].shape) != outputs):
        return False
    if layer.type == "InnerProduct":
        return weights.shape[-1 if p.transpose else -2] == outputs  # an old file has two more axes
    sizes = list(p.kernel_size) * (len(weights.shape) - 2 if len(p.kernel_size) == 1 else 1)
    if list(weights.shape[2:]) != ([p.kernel_h, p.kernel_w] if p.HasField("kernel_h") else sizes):
        return False
    if layer.type == "Deconvolution":
        return weights.shape[1] * p.group == outputs and weights.shape[0] % p.group == 0
    return weights.shape[0] == outputs
