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


READ_AGAIN, SAVED = True, False
VALUES, LABELS = (8, 6, 9, 7), (8,)
LAYERS = {
    'type: "BatchNorm"': ([VALUES], 0, READ_AGAIN),
    'type: "SigmoidCrossEntropyLoss"': ([VALUES, VALUES], 0, READ_AGAIN),
    'type: "Embed" embed_param { input_dim: 6 num_output: 3 }': ([LABELS], 0, SAVED),
    'type: "BatchReindex"': ([VALUES, LABELS], 1, SAVED),
    'type: "MultinomialLogisticLoss"': ([(8, 6), LABELS], 1, READ_AGAIN),
    'type: "ContrastiveLoss" contrastive_loss_param { margin: 9 }': ([(8, 6), (8, 6), LABELS], 2, SAVED),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_what_backward_reads(layer: str, net_from: Callable[..., Net]) -> None:
    """Backward reads the bottom that was written, or what forward saved of it."""
    shapes, written, reads_again = LAYERS[layer]
    dims = [" ".join(f"dim: {n}" for n in shape) for shape in shapes]
    inputs = "".join(
        f'layer {{ name: "in{i}" type: "Input" top: "x{i}" input_param {{ shape {{ {text} }} }} }}'
        for i, text in enumerate(dims)
    )
    bottoms = " ".join(f'bottom: "x{i}"' for i in range(len(shapes)))
    net = net_from(f'force_backward: true {inputs} layer {{ name: "it" {layer} {bottoms} top: "y" }}')

    def gradients(changed: bool) -> list[np.ndarray]:
        random = np.random.default_rng(1)
        first, second = (
            [random.integers(0, 2, s) if s == LABELS else random.uniform(0.1, 1, s) for s in shapes] for _ in range(2)
        )
        for index, values in enumerate(first):
            net.blob(f"x{index}").data[...] = values
        for blob in net.layers[-1].blobs:
            blob.data[...], blob.diff[...] = 1, 0
        net.forward()
        if changed:
            net.blob(f"x{written}").data[...] = second[written]
        net.blob("y").diff[...] = random.standard_normal(net.blob("y").shape)
        net.backward()
        blobs = [net.blob(f"x{index}") for index, shape in enumerate(shapes) if shape != LABELS]
        return [blob.diff.copy() for blob in [*blobs, *net.layers[-1].blobs]]

    same = all(map(np.array_equal, gradients(True), gradients(False)))
    assert same is not reads_again
