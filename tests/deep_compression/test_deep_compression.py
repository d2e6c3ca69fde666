"""Pruning, shared weights, and training on of what is pruned and shared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.deep_compression.pruning import (
    Aim,
    Masked,
    Retraining,
    Shared,
    aims,
    centroids,
    pruned,
    shared,
)
from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import Model, StoredLayer
from fcaffe.net.weights import to_model
from fcaffe.proto import StoredBlob, parse_text
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers import Solver, solver_types
from tests.engine_choice import engine

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
        dummy_data_param { shape { dim: 6 dim: 2 dim: 5 dim: 5 } shape { dim: 6 }
                           data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 2 }
        convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip1" type: "InnerProduct" bottom: "conv" top: "ip1" param { name: "w" }
        inner_product_param { num_output: 54 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" param { name: "w" }
        inner_product_param { num_output: 54 weight_filler { type: "xavier" } } }
layer { name: "ip3" type: "InnerProduct" bottom: "ip2" top: "ip3"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip3" bottom: "label" top: "loss" }
"""
LAYERS = {"conv": Aim(0.4, 3), "ip1": Aim(0.1, 2), "ip3": Aim(0.25, 4)}


def weights(model: Model) -> dict[str, np.ndarray]:
    found = {layer.name: np.array(layer.blobs[0].data) for layer in model.layers if layer.blobs}
    assert np.array_equal(found["ip1"], found["ip2"]), "they share them"
    return found


@pytest.fixture
def model(solver_from: Callable[..., Solver]) -> Model:
    made = to_model(solver_from(f"net_param {{ {NET} }} base_lr: 0.1 lr_policy: 'fixed' random_seed: 3").net)
    for layer in made.layers:
        for blob in layer.blobs:
            blob.data = np.array(blob.data)
    return made


def retraining(kind: str = "SGD") -> Retraining:
    momentum = 0 if kind in ("AdaGrad", "RMSProp") else 0.9
    text = (
        f'net_param {{ {NET} }} base_lr: 9 lr_policy: "step" type: "{kind}" momentum: {momentum} weight_decay: 0.01 '
        "delta: 1e-6 momentum2: 0.99 rms_decay: 0.9 clip_gradients: 5 snapshot: 1 test_interval: 3"
    )
    return Retraining(parse_text(text, pb.SolverParameter), engine(), 0.01)


def test_pruning_leaves_the_largest(model: Model) -> None:
    before, after = weights(model), weights(pruned(model, LAYERS))
    for name, aim in LAYERS.items():
        kept = after[name] != 0
        assert kept.sum() == round(aim.density * kept.size)
        np.testing.assert_array_equal(after[name][kept], before[name][kept])
        assert abs(before[name][kept]).min() >= abs(before[name][~kept]).max()
    half = weights(pruned(model, LAYERS, 0.5))
    assert (half["ip1"] != 0).mean() == pytest.approx(0.1**0.5, abs=1e-3), "two steps of one factor"
    for density in (0.0, 1.0):
        now = weights(pruned(model, {"conv": Aim(density, 8)}))["conv"]
        np.testing.assert_array_equal(now, before["conv"] * density)


def test_shared_weights_are_the_nearest_of_few_and_no_zero_is_one(model: Model) -> None:
    small = pruned(model, LAYERS)
    before, after = weights(small), weights(shared(small, LAYERS))
    for name, aim in LAYERS.items():
        np.testing.assert_array_equal(after[name] != 0, before[name] != 0)
        centres = np.unique(after[name][after[name] != 0])
        assert 2 <= len(centres) <= 1 << aim.bits
        for centre in centres:
            assert before[name][after[name] == centre].mean() == pytest.approx(centre, rel=1e-5)
        distances = abs(before[name][..., np.newaxis] - centres).min(-1)
        np.testing.assert_allclose(
            abs(after[name] - before[name])[before[name] != 0], distances[before[name] != 0], atol=1e-6
        )
    again = shared(shared(small, LAYERS), LAYERS)
    assert all(np.array_equal(values, after[name]) for name, values in weights(again).items()), "nothing is left to do"


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_centroids_are_where_k_means_stops(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(700)
    centres = centroids(values, count)
    assert len(centres) <= count and (np.diff(centres) > 0).all()
    nearest = abs(values[:, np.newaxis] - centres).argmin(1)
    for index, centre in enumerate(centres):
        assert values[nearest == index].mean() == pytest.approx(centre)
    assert list(centroids(np.full(9, 0.5), count)) == [0.5]


@pytest.mark.parametrize("kind", solver_types())
def test_pruned_weights_stay_zero_and_others_learn(kind: str, model: Model) -> None:
    small, training = pruned(model, LAYERS), retraining(kind)
    try:
        after = training.train(training.train(small, 3, Masked, LAYERS), 3, Masked, LAYERS)
    finally:
        training.close()
    before, now = weights(small), weights(after)
    for name in LAYERS:
        np.testing.assert_array_equal(now[name] != 0, before[name] != 0)
        assert (now[name][now[name] != 0] != before[name][now[name] != 0]).mean() > 0.9
    biases = [[next(layer for layer in one.layers if layer.name == "ip3").blobs[1].data for one in (small, after)]]
    assert all(np.all(a != b) for a, b in biases)


@pytest.mark.parametrize("kind", solver_types())
def test_shared_weights_stay_equal_and_learn(kind: str, model: Model) -> None:
    small, training = shared(pruned(model, LAYERS), LAYERS), retraining(kind)
    try:
        after = training.train(small, 5, Shared, LAYERS)
    finally:
        training.close()
    before, now = weights(small), weights(after)
    for name in LAYERS:
        pairs = np.unique(np.stack([before[name].ravel(), now[name].ravel()]), axis=1)
        assert len(pairs[0]) == len(np.unique(before[name])), "each value has become one value"
        assert (pairs[0] != pairs[1]).sum() >= len(pairs[0]) - 1, "only 0 stays"
        assert ((pairs[0] == 0) == (pairs[1] == 0)).all()


def test_a_step_is_that_of_the_mean_gradient(model: Model) -> None:
    """Against the gradients of the same batch, taken weight by weight: SGD without momentum or decay."""
    text = f'net_param {{ {NET} }} base_lr: 0.1 lr_policy: "fixed" random_seed: 3'
    plain, tuned = (Retraining(parse_text(text, pb.SolverParameter), engine(), 0.1) for _ in range(2))
    small = shared(model, LAYERS)

    class Nobody(Masked):
        def gradients_ready(self) -> None: ...

    before = weights(small)
    each, together = (weights(t.train(small, 1, kept, LAYERS)) for t, kept in ((plain, Nobody), (tuned, Shared)))
    for name in LAYERS:
        for value in np.unique(before[name]):
            here = before[name] == value
            np.testing.assert_allclose(together[name][here], each[name][here].mean(), rtol=1e-4, atol=1e-6)
    plain.close()
    tuned.close()


def test_what_is_wanted_of_which_layer(model: Model) -> None:
    found = aims(model, {"conv": 0.5}, {"": 6, "ip3": 3})
    assert found == {"conv": Aim(0.5, 6), "ip1": Aim(0.06, 6), "ip3": Aim(0.06, 3)}
    assert {aim.density for aim in aims(model, {"": 0.5}, {}).values()} == {0.5}
    with pytest.raises(UsageError, match="called ip2, relu"):
        aims(model, {"relu": 0.5}, {"ip2": 1})
    with pytest.raises(SnapshotError, match="no convolution and no inner product"):
        aims(Model(pb.NetParameter(), model.layers[2:3]), {}, {})


def test_weights_that_are_no_numbers_are_refused() -> None:
    blob = StoredBlob((2,), np.array([1, np.nan], np.float32))
    model = Model(pb.NetParameter(), [StoredLayer(pb.LayerParameter(name="a", type="InnerProduct"), [blob])])
    with pytest.raises(SnapshotError, match='weights of layer "a" are missing or not finite'):
        pruned(model, {"a": Aim(0.5, 5)})
