"""An infinite gradient of one value of a top reaches only the values of the bottoms that this value depends on."""

import numpy as np
import pytest

from tests.engine_choice import host
from tests.layers.examples import Example
from tests.layers.test_contract import Case, each

pytestmark = pytest.mark.usefixtures("on_each_engine")

# Types that multiply gradients by a derivative or a mask of 0, as Caffe and the forks do, which gives NaN.
DERIVATIVES = {"Clip", "Dropout", "HingeLoss", "LSTM", "LSTMUnit", "Lstm", "RNN", "ReLU", "ReLU6", "SmoothL1Loss"}
BOXES = {"DetectionLoss", "MultiBoxLoss", "RegionLoss", "TripletLoss", "Yolov3"}
SEQUENCES = {"CTCLoss", "CtcLoss", "WarpCTCLoss"}  # whose ends may come before the last step
MATRICES = {"DeephiResize", "Interp", "PSROIPooling", "ROIAlign"}  # that are products with matrices in fcaffe


@each(lambda example: example.has_gradient)
def test_infinite_gradients(kind: str, example: Example) -> None:
    case = Case(kind, example)
    case.forward()
    asked = [blob for blob, down in zip(case.bottom, case.propagate_down, strict=True) if down]
    if not asked or kind in DERIVATIVES | BOXES | MATRICES | SEQUENCES:
        return

    def gradients(top: int, index: int, value: float) -> np.ndarray:
        """Of all values of the bottoms, where that of one value of a top is `value` and all others are 0."""
        for blob in case.top:
            blob.diff[...] = 0
        case.top[top].diff[np.unravel_index(index, case.top[top].shape)] = value
        with np.errstate(all="ignore"):
            case.layer.backward(case.top, case.propagate_down, case.bottom)
        return np.concatenate([host(blob.diff).ravel() for blob in asked])

    for top, blob in enumerate(case.top):
        for index in range(0, blob.count, max(1, blob.count // 7)):
            reached = gradients(top, index, 1) != 0
            for value in np.inf, np.nan:
                beyond = ~np.isfinite(gradients(top, index, value)) & ~reached
                assert not beyond.any(), f"top {top}, value {index}: {value} reaches {np.flatnonzero(beyond)}"
