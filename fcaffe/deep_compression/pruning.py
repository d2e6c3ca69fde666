"""Pruning (small weights become 0), weight sharing (the others share few numbers), and training on with either.

S. Han, H. Mao, W. Dally, "Deep Compression: Compressing Deep Neural Networks with Pruning, Trained Quantization and
Huffman Coding", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import Engine
from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import Model, StoredLayer, take_shared
from fcaffe.model_files.npz import MOST_NUMBERS
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Observer, Solver
from fcaffe.tools.nets import model_scores

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


def aims(model: Model, densities: Mapping[str, float], bits: Mapping[str, float]) -> dict[str, Aim]:
    """The targets of all convolutions and inner products that own their weights.

    The mappings are by layer, and "" stands for all other layers. Raises UsageError if the model has no such layer, and
    SnapshotError if it has no such weights.
    """
    sharers = {layer.name for layer, index, *_ in model.shared() if index == 0}
    layers = [layer for layer in model.layers if layer.param.type in BITS and layer.blobs and layer.name not in sharers]
    if not layers:
        raise SnapshotError("the model has no convolution and no inner product with weights")
    known = {"", *(layer.name for layer in layers)}
    if wrong := ", ".join(sorted({*densities, *bits} - known)):
        raise UsageError(f"there is no convolution and no inner product with weights of its own called {wrong}")

    def of(given: Mapping[str, float], layer: StoredLayer, default: float) -> float:
        return given.get(layer.name, given.get("", default))

    return {
        layer.name: Aim(of(densities, layer, DENSITIES[layer.param.type]), int(of(bits, layer, BITS[layer.param.type])))
        for layer in layers
    }


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
    for layer, index, owner, _ in made.shared():
        if owner.name in wanted and index < len(layer.blobs):
            layer.blobs[index].data = None
    take_shared(made)
    return made


def _weights(layer: StoredLayer) -> np.ndarray:
    values = layer.blobs[0].data
    if values is None or not np.isfinite(values).all():
        raise SnapshotError(f'the weights of layer "{layer.name}" are missing or not finite')
    return np.ascontiguousarray(values, np.float32)


class Masked(Observer):
    """Sets the gradients of weights that are 0 to 0, so that the weights stay 0.

    Decay of 0 is 0, histories begin at 0, and every rule's step is then 0.
    """

    def __init__(self, solver: Solver, layers: Collection[str]) -> None:
        self._diff = solver.diff
        self._masks = [(own, solver.data[own] != 0) for own in weights_of(solver, layers)]

    def gradients_ready(self) -> None:
        for own, mask in self._masks:
            self._diff[own] *= mask


class Shared(Observer):
    """Gives equal weights the mean of their gradients, so that they stay equal. Weights that are 0 stay 0.

    The paper takes the sum of the gradients. With the mean, the solver's learning rate fits clusters of any size.
    """

    def __init__(self, solver: Solver, layers: Collection[str]) -> None:
        self._diff, self._xp = solver.diff, solver.engine.xp
        self._parts = []  # of a layer: its slice, the cluster of each weight, 1 / size of each cluster (0 of zeros)
        for own in weights_of(solver, layers):
            values, codes = self._xp.unique(solver.data[own], return_inverse=True)
            sizes = self._xp.bincount(codes, minlength=len(values))
            self._parts.append((own, codes, self._xp.where(values != 0, 1 / self._xp.maximum(sizes, 1), 0)))

    def gradients_ready(self) -> None:
        for own, codes, scales in self._parts:
            sums = self._xp.bincount(codes, weights=self._diff[own], minlength=len(scales))
            self._diff[own] = (sums * scales).astype(self._diff.dtype)[codes]


Constraint = type[Masked | Shared]


class Retraining:
    """Trains models with a solver's net and data, at a constant learning rate, and tests them by its test nets."""

    def __init__(self, param: Any, engine: Engine, rate: float) -> None:
        self._param, self._engine = param, engine
        own = pb.SolverParameter()
        own.CopyFrom(param)
        for field in ("test_net", "test_net_param", "test_iter", "test_state", "test_interval", "snapshot", "weights"):
            own.ClearField(field)
        own.snapshot_after_train, own.lr_policy, own.base_lr = False, "fixed", rate
        with log.quiet():
            self._solver = Solver(own, engine, "counter", on_nan="stop")

    def test(self, model: Model, what: str) -> None:
        """Score the model by the solver's test nets, and log the outputs."""
        scores = model_scores(self._param, model, self._engine)
        log.info(f"{what}: {', '.join(f'{name} = {value:.4f}' for name, value in scores)}")

    def step(self, model: Model, what: str, constraint: Constraint, layers: Collection[str]) -> Model:
        """Test a model, train it as `train` does for a tenth of max_iter, and test it again."""
        self.test(model, what)
        count = max(1, self._param.max_iter // 10)
        model = self.train(model, count, constraint, layers)
        self.test(model, f"after {count} iterations")
        return model

    def train(self, model: Model, iterations: int, constraint: Constraint, layers: Collection[str]) -> Model:
        """Train a model, and return it with the new weights. Raises SnapshotError if it does not fit the net.

        The constraint holds for the weights of these layers. The data continue where the last call ended. The histories
        of the update rule begin with zeros.
        """
        solver = self._solver
        with log.quiet():
            copy_weights(solver.net, model, "the model")
        for history in solver.history:
            history[...] = 0
        solver.observers[:] = [constraint(solver, layers)]
        solver.step(iterations)
        trained = {}
        for layer in to_model(solver.net).layers:  # whose arrays may be the net's own memory
            trained[layer.name] = [StoredBlob(blob.shape, np.array(blob.data)) for blob in layer.blobs]
        made = [StoredLayer(layer.param, trained.get(layer.name, layer.blobs)) for layer in model.layers]
        return Model(model.param, made)

    def close(self) -> None:
        self._solver.close()


def weights_of(solver: Solver, layers: Collection[str]) -> Iterator[slice]:
    """Yields the slices of these layers' weights, without biases, in the solver's flat buffers."""
    for parameter, own in solver.net.parameters.with_slices():
        if parameter.layer.name in layers and parameter.index == 0:
            yield own
