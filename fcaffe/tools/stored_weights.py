"""The weights of a layer in a model, checked against the net."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fcaffe.errors import SnapshotError
from fcaffe.model_files import StoredLayer
from fcaffe.proto import StoredBlob

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
    if weights.shape[2:] != _kernel(p, len(weights.shape) - 2):
        return False
    if layer.type == "Deconvolution":
        return weights.shape[1] * p.group == outputs and weights.shape[0] % p.group == 0
    return weights.shape[0] == outputs


def _kernel(p: Any, axes: int) -> tuple[int, ...]:
    if p.HasField("kernel_h"):
        return p.kernel_h, p.kernel_w
    return tuple(p.kernel_size) * (axes if len(p.kernel_size) == 1 else 1)
