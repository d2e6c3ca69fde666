"""Pruning (small weights become 0) and weight sharing (the others share few numbers).

S. Han, H. Mao, W. Dally, "Deep Compression: Compressing Deep Neural Networks with Pruning, Trained Quantization and
Huffman Coding", 2016. retraining.py trains the net between the steps, and dcmodel.py writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fcaffe.deep_compression.dcmodel import MOST_NUMBERS
from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.proto import StoredBlob

MOST_BITS = MOST_NUMBERS.bit_length() - 1
_PASSES = 300  # of k-means, at most

# Defaults: convolutions as in SqueezeNet (F. Iandola et al., 2016, table 2); inner products between the 4 and 9 % that
# the paper retains in large layers.
DENSITIES = {"Convolution": 0.33, "Deconvolution": 0.33, "InnerProduct": 0.06}
BITS = {"Convolution": 6, "Deconvolution": 6, "InnerProduct": 5}


@dataclass(frozen=True)
class Aim:
    """The target for a layer's weights: the share that is not 0, and 2**bits different numbers."""

    density: float
    bits: int


def aims(
    model: Model, densities: Mapping[str, float], qualities: Mapping[str, float], bits: Mapping[str, float]
) -> dict[str, Aim]:
    """The targets of all convolutions and inner products that own their weights.

    The mappings are by layer, and "" stands for all other layers. A quality is the threshold below which weights become
    0, in standard deviations of the layer's weights. Raises UsageError if the model has no such layer, and
    SnapshotError if it has no such weights, or weights that are not finite.
    """
    sharers = {layer.name for layer, index, *_ in model.shared() if index == 0}
    layers = [layer for layer in model.layers if layer.param.type in BITS and layer.blobs and layer.name not in sharers]
    if not layers:
        raise SnapshotError("the model has no convolution and no inner product with weights")
    known = {"", *(layer.name for layer in layers)}
    if wrong := ", ".join(sorted({*densities, *qualities, *bits} - known)):
        raise UsageError(f"there is no convolution and no inner product with weights of its own called {wrong}")
    found = {}
    for layer in layers:
        name = layer.name if layer.name in densities or layer.name in qualities else ""
        density = densities.get(name, DENSITIES[layer.param.type])
        if name in qualities and name not in densities:
            weights = _weights(layer)
            density = float((abs(weights) > qualities[name] * weights.std()).mean()) if weights.size else 1.0
        found[layer.name] = Aim(density, int(bits.get(layer.name, bits.get("", BITS[layer.param.type]))))
    return found


def pruned(model: Model, wanted: Mapping[str, Aim], share: float = 1.0) -> Model:
    """The model with the smallest weights of each layer set to 0, so that its density is reached.

    With a `share` below 1 the density is density**share, for several steps of one factor each.
    """
    return _changed(model, wanted, lambda weights, aim: _prune(weights, aim.density**share))


def shared(model: Model, wanted: Mapping[str, Aim]) -> Model:
    """The model with the non-zero weights of each layer replaced by the nearest of 2**bits numbers."""
    return _changed(model, wanted, lambda weights, aim: _share(weights, 1 << aim.bits))


def centroids(values: np.ndarray, count: int) -> np.ndarray:
    """The centres of `count` clusters by k-means, float64, ascending; fewer if clusters become empty.

    They begin evenly spaced from the smallest to the largest number, which preserves the few large weights best
    (section 3.2 of the paper). Clusters of sorted numbers are ranges, so cumulative sums give their means.
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
    nonzero = weights != 0
    values = weights[nonzero]
    if len(np.unique(values)) <= count:
        return weights
    centres = centroids(values, count)
    made = np.zeros_like(weights)
    made[nonzero] = centres[np.searchsorted((centres[1:] + centres[:-1]) / 2, values.astype(np.float64))]
    return made


def _changed(model: Model, wanted: Mapping[str, Aim], change: Callable[[np.ndarray, Aim], np.ndarray]) -> Model:
    """The model with changed weights in these layers and in layers that share them, without gradients."""
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
        raise SnapshotError(f'the weights of layer "{layer.name}" are missing or not finite')
    return np.ascontiguousarray(values, np.float32)


def weight_counts(model: Model, wanted: Mapping[str, Aim]) -> Iterator[tuple[str, int, int, int]]:
    """Yields for each layer its name, and the numbers of weights, non-zero weights, and different non-zero weights."""
    for layer in model.layers:
        if layer.name in wanted:
            weights = _weights(layer)
            values = weights[weights != 0]
            yield layer.name, weights.size, values.size, len(np.unique(values))
