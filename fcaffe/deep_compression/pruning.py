"""Fewer and fewer kinds of weights: small ones become 0, and of the others many share one number.

S. Han, H. Mao, W. Dally, "Deep Compression: Compressing Deep Neural Networks with Pruning, Trained Quantization and
Huffman Coding", 2016. What is trained in between is in fcaffe/tools/retraining.py; a .dcmodel holds what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fcaffe.deep_compression.huffman import MOST_SYMBOLS
from fcaffe.errors import SnapshotError, UsageError
from fcaffe.net.model_files import Model, StoredLayer
from fcaffe.proto import StoredBlob

MOST_BITS = MOST_SYMBOLS.bit_length() - 1
_PASSES = 300  # of k-means, at most

# For a layer of which nothing else is said: convolutions as in SqueezeNet (F. Iandola et al., 2016, table 2); inner
# products, of which the paper keeps 4 to 9 % in large layers, in between.
DENSITIES = {"Convolution": 0.33, "Deconvolution": 0.33, "InnerProduct": 0.06}
BITS = {"Convolution": 6, "Deconvolution": 6, "InnerProduct": 5}


@dataclass(frozen=True)
class Aim:
    """What is to become of a layer's weights: the share of them that is not 0, and 2**bits different numbers."""

    density: float
    bits: int


def aims(
    model: Model, densities: Mapping[str, float], qualities: Mapping[str, float], bits: Mapping[str, float]
) -> dict[str, Aim]:
    """What is to become of each convolution and inner product that has weights of its own.

    Each mapping is of layers' names; "" stands for all others. A quality is a threshold below which weights become 0,
    in standard deviations of the layer's weights. Raises UsageError for a layer that is not there, and SnapshotError
    for a model without any, or with weights that are no finite numbers.
    """
    borrowed = {layer.name for layer, index, *_ in model.shared() if index == 0}
    layers = [
        layer for layer in model.layers if layer.param.type in BITS and layer.blobs and layer.name not in borrowed
    ]
    if not layers:
        raise SnapshotError("the model has no convolution and no inner product with weights, of which the types tell")
    known = {"", *(layer.name for layer in layers)}
    if wrong := ", ".join(sorted({*densities, *qualities, *bits} - known)):
        raise UsageError(f"there is no convolution and no inner product with weights of its own called {wrong}")
    found = {}
    for layer in layers:
        quality = None
        for name in (layer.name, ""):
            if name in densities or name in qualities:
                density, quality = densities.get(name), qualities.get(name)
                break
        else:
            density = DENSITIES[layer.param.type]
        if density is None:
            assert quality is not None
            weights = _weights(layer)
            density = float((abs(weights) > quality * weights.std()).mean()) if weights.size else 1.0
        found[layer.name] = Aim(density, int(bits.get(layer.name, bits.get("", BITS[layer.param.type]))))
    return found


def pruned(model: Model, wanted: Mapping[str, Aim], share: float = 1.0) -> Model:
    """The model with the smallest weights of each layer 0, by their sizes, so that its density is left; or with a
    `share` below 1, density**share, to come to it by several steps of one factor each."""
    return _changed(model, wanted, lambda weights, aim: _prune(weights, aim.density**share))


def shared(model: Model, wanted: Mapping[str, Aim]) -> Model:
    """The model with those weights of each layer that are not 0 replaced by the nearest of 2**bits numbers."""
    return _changed(model, wanted, lambda weights, aim: _share(weights, 1 << aim.bits))


def centroids(values: np.ndarray, count: int) -> np.ndarray:
    """The centres of `count` clusters of numbers by k-means, float64 and rising, fewer if clusters come to be empty.

    They begin evenly between the smallest and the largest number, which keeps the few large weights best (section 3.2
    of the paper). In one dimension clusters are stretches of the sorted numbers, and their sums come from running ones.
    """
    ordered = np.sort(values.astype(np.float64), axis=None)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    centres = np.linspace(ordered[0], ordered[-1], count)
    before = None
    for _ in range(_PASSES):
        inner = np.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        bounds = np.concatenate([[0], inner, [len(ordered)]])
        if before is not None and np.array_equal(bounds, before):
            break
        before, sizes = bounds, np.diff(bounds)
        centres = np.where(sizes > 0, np.diff(sums[bounds]) / np.maximum(sizes, 1), centres)
    return np.unique(centres[np.diff(bounds) > 0])


def _prune(weights: np.ndarray, density: float) -> np.ndarray:
    keep = round(density * weights.size)
    flat = weights.reshape(-1).copy()
    if keep < flat.size:
        flat[np.argpartition(-abs(flat), keep)[keep:]] = 0
    return flat.reshape(weights.shape)


def _share(weights: np.ndarray, count: int) -> np.ndarray:
    places = weights != 0
    values = weights[places]
    if len(np.unique(values)) <= count:
        return weights
    centres = centroids(values, count)
    made = np.zeros_like(weights)
    made[places] = centres[np.searchsorted((centres[1:] + centres[:-1]) / 2, values.astype(np.float64))]
    return made


def _changed(model: Model, wanted: Mapping[str, Aim], change: Callable[[np.ndarray, Aim], np.ndarray]) -> Model:
    """The model with other weights in these layers, and in those that share theirs, and without gradients."""
    layers = []
    for layer in model.layers:
        blobs = [StoredBlob(blob.shape, blob.data, legacy=blob.legacy) for blob in layer.blobs]
        if layer.name in wanted:
            blobs[0].data = change(_weights(layer), wanted[layer.name])
        layers.append(StoredLayer(layer.param, blobs))
    made = Model(model.param, layers)
    for layer, index, owner, owned in made.shared():
        if owner.name in wanted and owned == 0 and index < len(layer.blobs):
            values = owner.blobs[owned].data
            assert values is not None
            layer.blobs[index].data = values.reshape(layer.blobs[index].shape)
    return made


def _weights(layer: StoredLayer) -> np.ndarray:
    values = layer.blobs[0].data
    if values is None or not np.isfinite(values).all():
        raise SnapshotError(f'the weights of layer "{layer.name}" are not there, or some are no finite numbers')
    return np.ascontiguousarray(values, np.float32)


def weight_counts(model: Model, wanted: Mapping[str, Aim]) -> Iterator[tuple[str, int, int, int]]:
    """Of each layer: its name, how many weights it has, how many are not 0, and how many kinds of these there are."""
    for layer in model.layers:
        if layer.name in wanted:
            weights = _weights(layer)
            values = weights[weights != 0]
            yield layer.name, weights.size, values.size, len(np.unique(values))
