"""Trains a net whose pruned weights stay 0, or whose shared weights stay equal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import Engine
from fcaffe.model_files import Model, StoredLayer
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Observer, Solver


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
        self._parts = [(own, *self._clusters(solver.data[own])) for own in weights_of(solver, layers)]

    def _clusters(self, weights: Any) -> tuple[Any, Any]:
        """The cluster of each weight, and 1 / size of each cluster (0 for the cluster of zeros)."""
        xp = self._xp
        values, codes = xp.unique(weights, return_inverse=True)
        sizes = xp.bincount(codes, minlength=len(values))
        return codes, xp.where(values != 0, 1 / xp.maximum(sizes, 1), 0)

    def gradients_ready(self) -> None:
        for own, codes, scales in self._parts:
            sums = self._xp.bincount(codes, weights=self._diff[own], minlength=len(scales))
            self._diff[own] = (sums * scales).astype(self._diff.dtype)[codes]


class Retraining:
    """Trains models with a solver's net and data, at a constant learning rate, without snapshots and tests."""

    def __init__(self, param: Any, engine: Engine, rate: float) -> None:
        own = pb.SolverParameter()
        own.CopyFrom(param)
        for field in ("test_net", "test_net_param", "test_iter", "test_state", "test_interval", "snapshot", "weights"):
            own.ClearField(field)
        own.snapshot_after_train, own.lr_policy, own.base_lr = False, "fixed", rate
        with log.quiet():
            self._solver = Solver(own, engine, "counter", on_nan="stop")

    def train(self, model: Model, iterations: int, constraint: type[Masked | Shared], layers: Collection[str]) -> Model:
        """Train a model, and return it with the new weights. Raises SnapshotError if it does not fit the net.

        The data continue where the last call ended. The histories of the update rule begin with zeros.

        Args:
            model: the weights to begin with.
            iterations: how many.
            constraint: the observer that constrains the weights.
            layers: names of the layers that are constrained.
        """
        solver = self._solver
        with log.quiet():
            copy_weights(solver.net, model, "the model")
        for history in solver.history:
            history[...] = 0
        solver.observers[:] = [constraint(solver, layers)]
        solver.step(iterations)
        trained = {layer.name: layer.blobs for layer in to_model(solver.net).layers}
        return Model(
            model.param,
            [StoredLayer(layer.param, list(_copies(layer, trained.get(layer.name)))) for layer in model.layers],
        )

    def close(self) -> None:
        self._solver.close()


def weights_of(solver: Solver, layers: Collection[str]) -> Iterator[slice]:
    """Yields the slices of these layers' weights, without biases, in the solver's flat buffers."""
    parameters = solver.net.parameters
    for parameter, own in zip(parameters.owned, parameters.slices(), strict=True):
        if parameter.layer.name in layers and parameter.index == 0:
            yield own


def _copies(layer: StoredLayer, trained: list[StoredBlob] | None) -> Iterator[StoredBlob]:
    """Yields the blobs of a layer, with trained values if there are any."""
    for index, blob in enumerate(layer.blobs):
        values = blob.data if trained is None else trained[index].data
        if values is not None and trained is not None:
            values = np.array(values, order="C").reshape(blob.shape)
        yield StoredBlob(blob.shape, values, legacy=blob.legacy)
