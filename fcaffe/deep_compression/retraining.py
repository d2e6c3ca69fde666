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
from fcaffe.tools.nets import model_scores


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
    """Trains models with a solver's net and data, at a constant learning rate, and tests them by its test nets.

    `scores` has the outputs of each test (name, value), behind its description.
    """

    def __init__(self, param: Any, engine: Engine, rate: float) -> None:
        self.scores: list[tuple[str, list[tuple[str, float]]]] = []
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
        self.scores.append((what, scores))
        log.info(f"{what}: {', '.join(f'{name} = {value:.4f}' for name, value in scores)}")

    def step(
        self, model: Model, what: str, iterations: int | None, constraint: Constraint, layers: Collection[str]
    ) -> Model:
        """Test a model, train it as `train` does, for a tenth of max_iter without `iterations`, and test it again."""
        self.test(model, what)
        if count := max(1, self._param.max_iter // 10) if iterations is None else iterations:
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
        trained = {layer.name: layer.blobs for layer in to_model(solver.net).layers}
        made = []
        for layer in model.layers:
            pairs = zip(layer.blobs, trained.get(layer.name, layer.blobs), strict=True)
            made.append(StoredLayer(layer.param, [_copy(blob, new.data) for blob, new in pairs]))
        return Model(model.param, made)

    def close(self) -> None:
        self._solver.close()


def _copy(blob: StoredBlob, values: np.ndarray | None) -> StoredBlob:
    values = None if values is None else np.array(values, order="C").reshape(blob.shape)
    return StoredBlob(blob.shape, values, legacy=blob.legacy)


def weights_of(solver: Solver, layers: Collection[str]) -> Iterator[slice]:
    """Yields the slices of these layers' weights, without biases, in the solver's flat buffers."""
    parameters = solver.net.parameters
    for parameter, own in zip(parameters.owned, parameters.slices(), strict=True):
        if parameter.layer.name in layers and parameter.index == 0:
            yield own
