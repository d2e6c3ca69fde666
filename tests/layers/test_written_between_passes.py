"""Blobs that a script writes between forward and backward: layers whose backward reads them in Caffe read them here."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import net_of_layer

pytestmark = pytest.mark.usefixtures("on_each_engine")

READ_AGAIN, SAVED = True, False
VALUES, LABELS = (8, 6, 9, 7), (8,)
LAYERS = {
    'type: "ReLU" relu_param { negative_slope: 0.25 }': ([VALUES], 0, READ_AGAIN),
    'type: "BatchNorm"': ([VALUES], 0, READ_AGAIN),
    'type: "SigmoidCrossEntropyLoss"': ([VALUES, VALUES], 0, READ_AGAIN),
    'type: "Embed" embed_param { input_dim: 6 num_output: 3 }': ([LABELS], 0, SAVED),
    'type: "BatchReindex"': ([VALUES, LABELS], 1, SAVED),
    'type: "MultinomialLogisticLoss"': ([(8, 6), LABELS], 1, READ_AGAIN),
    'type: "ContrastiveLoss" contrastive_loss_param { margin: 9 }': ([(8, 6), (8, 6), LABELS], 2, SAVED),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_what_backward_reads(layer: str) -> None:
    """Backward reads the bottom that was written, or what forward saved of it."""
    shapes, written, reads_again = LAYERS[layer]
    net = net_of_layer(layer, *shapes, tops=1)

    def gradients(changed: bool) -> list[np.ndarray]:
        random = np.random.default_rng(1)

        def values(shape: tuple[int, ...]) -> np.ndarray:
            return (
                random.integers(0, 2, shape) if shape == LABELS else random.uniform(0.1 - (shape == VALUES), 1, shape)
            )

        first, second = ([values(s) for s in shapes] for _ in range(2))
        for index, values in enumerate(first):
            net.blob(f"x{index}").data[...] = values
        for blob in net.layers[-1].blobs:
            blob.data[...], blob.diff[...] = 1, 0
        net.forward()
        if changed:
            net.blob(f"x{written}").data[...] = second[written]
        net.blob("y0").diff[...] = random.standard_normal(net.blob("y0").shape)
        net.backward()
        blobs = [net.blob(f"x{index}") for index, shape in enumerate(shapes) if shape != LABELS]
        return [blob.diff.copy() for blob in [*blobs, *net.layers[-1].blobs]]

    same = all(map(np.array_equal, gradients(True), gradients(False)))
    assert same is not reads_again
