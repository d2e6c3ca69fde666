"""Losses of scores that have 16 bits."""

import ml_dtypes
import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from tests import engine_choice
from tests.conftest import make_net


def run(shape, labels, scores, dtype):
    """Loss and gradient of SoftmaxWithLoss on scores of this type."""
    dims = " ".join(f"dim: {size}" for size in shape)
    positions = " ".join(f"dim: {size}" for size in labels.shape)
    net = make_net(
        'layer { name: "in" type: "Input" top: "x" top: "label" '
        f"input_param {{ shape {{ {dims} }} shape {{ {positions} }} }} }}"
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" }',
        "TRAIN",
    )
    x, node = net.blob("x"), net.nodes[-1]
    x.set_dtype(dtype)
    x.data[...] = scores
    net.blob("label").data[...] = labels
    node.forward()
    node.tops[0].diff[...] = 0.7
    node.layer.backward(node.tops, [True, False], node.bottoms)
    return node.tops[0].data, node.layer.probability.data, x.diff


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_scores_of_16_bits_are_computed_with_in_float32(dtype, monkeypatch):
    monkeypatch.setattr(engine_choice, "chosen", NumpyEngine)
    random = np.random.default_rng(4)
    scores = (3 * random.standard_normal((2, 21, 5, 3))).astype(dtype)
    labels = random.integers(0, 21, (2, 5, 3)).astype(np.float32)
    loss, found, dx = run(scores.shape, labels, scores, dtype)
    wanted_loss, wanted, wanted_dx = run(scores.shape, labels, scores.astype(np.float32), np.float32)
    np.testing.assert_allclose(loss, wanted_loss, rtol=3e-6)
    np.testing.assert_allclose(found, wanted, rtol=3e-6)
    assert dx.dtype == dtype
    np.testing.assert_allclose(dx.astype(np.float32), wanted_dx, rtol=1e-2, atol=1e-6)
