"""Single layers against BVLC Caffe: inputs, parameters, outputs and gradients (see tests/golden/layers/README.md)."""

import pytest

from tests.cases import each_of
from tests.golden_values import assert_close, assert_same
from tests.layers.replay import golden_cases, replay

pytestmark = pytest.mark.usefixtures("on_each_engine", "all_threads")

CASES = golden_cases()

# Pure data movement, and whole numbers: not a bit of difference.
EXACT = {
    "AbsVal",
    "ArgMax",
    "BatchReindex",
    "Clip",
    "Concat",
    "Crop",
    "Filter",
    "Flatten",
    "Im2col",
    "Input",
    "Parameter",
    "Reshape",
    "Silence",
    "Slice",
    "Split",
    "Threshold",
    "Tile",
}


@each_of((case["type"], case) for case in CASES)
def test_layer(kind, case):
    compare = assert_same if kind in EXACT else assert_close
    for value in replay(case):
        compare(value.ours, value.golden, value.name)
