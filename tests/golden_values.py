"""How close is close to a value that BVLC Caffe produced."""

import numpy as np

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import stored_blob

TOLERANCE = 2e-6  # of the largest value; Caffe differs from itself by up to 5e-7 with another BLAS kernel
FLT_MAX = np.finfo(np.float32).max


def assert_close(ours, golden, what, tolerance=TOLERANCE):
    """|ours - golden| <= tolerance * max|golden|; NaN, infinities and +-FLT_MAX in the same places."""
    difference = relative_difference(ours, golden, what)
    assert difference <= tolerance, f"{what}: differs by {difference:g} of the largest value, allowed is {tolerance:g}"


def relative_difference(ours, golden, what):
    """max|ours - golden| / max|golden|, without the NaN, infinities and +-FLT_MAX, which must be in the same places."""
    ours, golden = np.asarray(ours), np.asarray(golden)
    assert ours.shape == golden.shape, what
    special = ~(np.abs(golden) < FLT_MAX)
    np.testing.assert_array_equal(ours[special], golden[special], err_msg=what)
    differences = np.abs(ours[~special] - golden[~special])
    if not differences.any():
        return 0.0
    largest = np.abs(golden[~special]).max()
    return float(differences.max() / largest) if largest else np.inf


def assert_same(ours, golden, what):
    assert np.shape(ours) == np.shape(golden), what
    np.testing.assert_array_equal(ours, golden, err_msg=what)


def blob_values(blob, which="data"):
    """The values of a BlobProto, "data" or "diff", flat and as float32."""
    values = getattr(stored_blob(pb.BlobBytes.FromString(blob.SerializeToString())), which)
    return np.zeros(0, np.float32) if values is None else values.astype(np.float32).reshape(-1)
