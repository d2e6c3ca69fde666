"""Single layers against the code of Caffe's forks (see tests/golden/forks/README.md)."""

import numpy as np
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

TOLERANCE = {"RegionLoss": 4e-6}  # the fork adds up all squares one after the other, in float32

# Where the fork divides by 0 for want of objects, the layer gives a number.
NUMBER_INSTEAD_OF_NAN = {"layers/DetectionLoss/no_objects.npz"}


@pytest.mark.parametrize("case", CASES, ids=[case["file"].removesuffix(".npz") for case in CASES])
def test_layer(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in replay(case, FOLDER):
        if case["file"] in NUMBER_INSTEAD_OF_NAN and np.isnan(value.golden).all():
            assert np.isfinite(value.ours)
        elif case["type"] in EXACT:
            assert_same(value.ours, value.golden, value.name)
        else:
            assert_close(value.ours, value.golden, value.name, TOLERANCE.get(case["type"], 2e-6))
