"""How close is close to a value that BVLC Caffe produced."""

import numpy as np

TOLERANCE = 2e-6  # of the largest value; Caffe differs from itself by up to 5e-7 with another BLAS kernel
FLT_MAX = np.finfo(np.float32).max


def assert_close(ours, golden, what, tolerance=TOLERANCE):
    """|ours - golden| <= tolerance * max|golden|; NaN, infinities and +-FLT_MAX in the same places."""
    ours, golden = np.asarray(ours), np.asarray(golden)
    assert ours.shape == golden.shape, what
    special = ~(np.abs(golden) < FLT_MAX)
    np.testing.assert_array_equal(ours[special], golden[special], err_msg=what)
    difference = np.abs(ours - golden)[~special]
    if difference.size:
        limit = tolerance * np.abs(golden[~special]).max()
        assert difference.max() <= limit, f"{what}: differs by {difference.max():g}, allowed is {limit:g}"


def assert_same(ours, golden, what):
    np.testing.assert_array_equal(ours, golden, err_msg=what)
