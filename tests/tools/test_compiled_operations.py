"""What a profile counts as spent in compiled operations."""

import numpy as np
import pytest

from fcaffe.engines import cpu_engine, find_onednn
from fcaffe.engines.windows import Windows
from fcaffe.tools.profile import counted


@pytest.mark.skipif(not find_onednn(), reason="needs onednn-cpu-gomp")
def test_primitives_and_plain_products_count():
    """The gradients of a convolution of one value are plain products."""
    engine, windows = cpu_engine("fp32", "onednn"), Windows((1, 1), (1, 1), (0, 0), (1, 1))
    x, dx, y = (np.ones((2, 5, 5, channels), np.float32).transpose(0, 3, 1, 2) for channels in (16, 16, 32))
    weights = np.ones((32, 16, 1, 1), np.float32)
    with counted(engine) as spent:
        engine.convolution_forward(x, weights, None, y, windows, 1)
        forward = len(spent)
        engine.convolution_backward_data(y, weights, dx, windows, 1)
        engine.convolution_backward_weights(x, y, weights, None, windows, 1, False)
    assert forward and len(spent) == forward + 2 and min(spent) > 0
    engine.convolution_forward(x, weights, None, y, windows, 1)
    assert len(spent) == forward + 2
