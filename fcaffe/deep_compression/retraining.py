"""Training on of a net of which some weights are 0 for good, or equal to one another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from fcaffe import log, pycaffe  # noqa: F401 - pycaffe registers the types of layers
from fcaffe.engines import Engine
from fcaffe.net.model_files import Model, StoredLayer
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Observer, Solver


class Masked(Observer):
    """Keeps weights at 0 that are so: their gradients are made 0.

    That suffices: decay of 0 is 0, and histories, which begin at 0, stay so. So does every rule's step.
    """

    def __init__(self, solver: Solver, layers: Collection[str]) -> None:
        self._diff = solver.diff
        self._masks = [(own, solver.data[own] != 0) for own in weights_of(solver, layers)]

    def gradients_ready(self) -> None:
        for own, mask in self._masks:
            self._diff[own] *= mask


class Shared(Observer):
    """Keeps weights equal that are so, and at 0 those that are 0: each gets the mean gradient of its equals.

    The paper takes the sum, the gradient by the shared number; the mean is that of the step nearest to the one that
    every weight for itself would take, and so the solver's rate goes with clusters of any size.
    """

    def __init__(self, solver: Solver, layers: Collection[str]) -> None:
        self._diff, self._xp = solver.diff, solver.engine.xp
        self._parts = [(own, *self._clusters(solver.data[own])) for own in weights_of(solver, layers)]

    def _clusters(self, weights: Any) -> tuple[Any, Any]:
        """The cluster of each weight, and 1 over the size of each, but 0 for that of the zeros."""
        xp = self._xp
        values, codes = xp.unique(weights, return_inverse=True)
        sizes = xp.bincount(codes, minlength=len(values))
        return codes, xp.where(values != 0, 1 / xp.maximum(sizes, 1), 0)

    def gradients_ready(self) -> None:
        for own, codes, scales in self._parts:
            sums = self._xp.bincount(codes, weights=self._diff[own], minlength=len(scales))
            self._diff[own] = (sums * scales).astype(self._diff.dtype)[codes]


class Retraining:
    """Trains models by a solver's net and data, at a rate that stays what it is.

    `rate` takes the place of the solver's base_lr and policy. Snapshots and tests are left out.
    """

    def __init__(self, param: Any, engine: Engine, rate: float) -> None:
        own = pb.SolverParameter()
        own.CopyFrom(param)
        for field in ("test_net", "test_net_param", "test_iter", "test_state", "test_interval", "snapshot", "weights"):
            own.ClearField(field)
        own.snapshot_after_train, own.lr_policy, own.base_lr = False, "fixed", rate
        with log.quiet():
            self._solver = Solver(own, engine, "counter", on_nan="stop")

    def train(self, model: Model, iterations: int, kept: type[Masked | Shared], layers: Collection[str]) -> Model:
        """The model after so many iterations, in which an observer has kept the weights of these layers.

        Data go on where they stood; the histories of the rule begin anew. Raises SnapshotError if the model does not
        fit into the net.
        """
        solver = self._solver
        with log.quiet():
            copy_weights(solver.net, model, "the model")
        for history in solver.history:
            history[...] = 0
        solver.observers[:] = [kept(solver, layers)]
        solver.step(iterations)
        trained = {layer.name: layer.blobs for layer in to_model(solver.net).layers}
        return Model(
            model.param,
            [StoredLayer(layer.param, list(_copies(layer, trained.get(layer.name)))) for layer in model.layers],
        )

    def close(self) -> None:
        self._solver.close()


def weights_of(solver: Solver, layers: Collection[str]) -> Iterator[slice]:
    """Where the weights of these layers, without their biases, lie in the solver's flat buffers."""
    parameters = solver.net.parameters
    for parameter, own in zip(parameters.owned, parameters.slices(), strict=True):
        if parameter.layer.name in layers and parameter.index == 0:
            yield own


def _copies(layer: StoredLayer, trained: list[StoredBlob] | None) -> Iterator[StoredBlob]:
    """The blobs of a layer with trained values, if there are any."""
    for index, blob in enumerate(layer.blobs):
        values = blob.data if trained is None else trained[index].data
        if values is not None and trained is not None:
            values = np.array(values, order="C").reshape(blob.shape)
        yield StoredBlob(blob.shape, values, legacy=blob.legacy)
