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

TOLERANCE = {"RegionLoss": 4e-6}  # the fork adds up all squares one after the other, in float32


@pytest.mark.parametrize("case", CASES, ids=[case["file"].removesuffix(".npz") for case in CASES])
def test_layer(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in replay(case, FOLDER):
        if case["type"] in EXACT:
            assert_same(value.ours, value.golden, value.name)
        else:
            assert_close(value.ours, value.golden, value.name, TOLERANCE.get(case["type"], 2e-6))
