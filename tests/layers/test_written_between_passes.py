"""Blobs that a script writes between forward and backward: layers whose backward reads them in Caffe read them here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.net import Net

pytestmark = pytest.mark.usefixtures("on_each_engine")

SMALL, LARGE = (2, 3, 5, 4), (2, 16, 24, 20)
INPUT = 'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {} dim: {} dim: {} dim: {} }} }} }}'


def backward(net: Net, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The bottom of forward, what a script then writes over it, the top's gradient and the bottom's."""
    random = np.random.default_rng(1)
    before, after, dy = (random.standard_normal(shape).astype(np.float32) for _ in range(3))
    net.blob("x").data[...] = before
    net.forward()
    net.blob("x").data[...] = after
    net.blob("y").diff[...] = dy
    net.backward()
    return before, after, dy, net.blob("x").diff.copy()


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=str)
@pytest.mark.parametrize("slope", [0, 0.25, -0.5])
def test_relu(slope: float, shape: tuple[int, ...], net_from: Callable[..., Net]) -> None:
    net = net_from(
        "force_backward: true " + INPUT.format(*shape) + 'layer { name: "relu" type: "ReLU" bottom: "x" top: "y" '
        f"relu_param {{ negative_slope: {slope} }} }}"
    )
    _, x, dy, dx = backward(net, shape)
    np.testing.assert_allclose(dx, dy * np.where(x > 0, 1, np.float32(slope)), rtol=1e-6)
