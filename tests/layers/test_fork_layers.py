"""Single layers against the code of Caffe's forks (see tests/golden/forks/README.md)."""

import numpy as np
import pytest

from tests.cases import each_of
from tests.conftest import GOLDEN, make_net
from tests.golden_values import assert_close, assert_same
from tests.layers.replay import golden_cases, replay

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

FOLDER = GOLDEN / "forks"
CASES = golden_cases(FOLDER)

# Pure data movement, and whole numbers: not a bit of difference.
EXACT = {
    "BoxAnnotatorOHEM",
    "DetectionEvaluate",
    "Flip",
    "Permute",
    "Reorg",
    "Reverse",
    "ShuffleChannel",
    "Transpose",
}

# Cases in which the fork's code is wrong and fcaffe is not; their tests say what it does instead.
WRONG_IN_THE_FORK = {
    "layers/DetectionLoss/no_objects.npz",  # test_yolo.py
    "layers/MultiBoxLoss/no_mining_logistic_two_images.npz",  # its gradient: test_contract.py
    "layers/MultiBoxLoss/twice_forward_only.npz",
}
CASES = [case for case in CASES if case["file"] not in WRONG_IN_THE_FORK]


@each_of((case["type"], case) for case in CASES)
def test_layer(kind, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare = assert_same if kind in EXACT else assert_close
    for value in replay(case, FOLDER):
        compare(value.ours, value.golden, value.name)


def test_lstm_of_the_ocr_fork_has_an_axis_of_sequences():
    """It computes what caffe-lstm's does with the rows of its input, for as many sequences as there are."""
    fillers = 'weight_filler { type: "xavier" } bias_filler { type: "uniform" }'
    text = """force_backward: true layer { name: "x" type: "Input" top: "x" input_param { shape { %s } } }
      layer { name: "lstm" type: "Lstm" bottom: "x" top: "h" lstm_param { num_output: 5 %s %s } }
      layer { name: "loss" type: "Reduction" bottom: "h" top: "loss" loss_weight: 1
              reduction_param { operation: SUMSQ } }"""
    ours = make_net(text % ("dim: 4 dim: 3 dim: 2", fillers, ""))
    for sequences in (3, 2):
        like = make_net(text % (f"dim: {4 * sequences} dim: 2", fillers, f"batch_size: {sequences}"))
        for blob, other in zip(ours.layers[1].blobs, like.layers[1].blobs, strict=True):
            blob.data[...] = other.data
        ours.blob("x").reshape(4, sequences, 2)
        values = np.random.default_rng(sequences).standard_normal((4, sequences, 2)).astype(np.float32)
        for net in (ours, like):
            net.blob("x").data[...] = values.reshape(net.blob("x").shape)
            net.forward()
            net.backward()
        assert ours.blob("h").shape == (4, sequences, 5)
        for name, part in (("h", "data"), ("x", "diff")):
            theirs = getattr(like.blob(name), part)
            assert_close(getattr(ours.blob(name), part).reshape(theirs.shape), theirs, name)
        for blob, other in zip(ours.layers[1].blobs, like.layers[1].blobs, strict=True):
            assert_close(blob.diff, other.diff, "a parameter's gradient")
            blob.diff[...] = 0
