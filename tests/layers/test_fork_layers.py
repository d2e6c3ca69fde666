"""Single layers against the code of Caffe's forks (see tests/golden/forks/README.md)."""

import pytest

from tests.conftest import GOLDEN
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
    "layers/MultiBoxLoss/no_mining_logistic_two_images.npz",  # test_multibox_loss.py
    "layers/MultiBoxLoss/twice_forward_only.npz",
}
CASES = [case for case in CASES if case["file"] not in WRONG_IN_THE_FORK]


@pytest.mark.parametrize("case", CASES, ids=[case["file"].removesuffix(".npz") for case in CASES])
def test_layer(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in replay(case, FOLDER):
        if case["type"] in EXACT:
            assert_same(value.ours, value.golden, value.name)
        else:
            assert_close(value.ours, value.golden, value.name)
