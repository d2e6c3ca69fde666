"""InfogainLoss: where its matrix comes from."""

import re

import numpy as np
import pytest

from fcaffe.errors import NetError
from fcaffe.proto import write_binary
from fcaffe.proto.blobs import to_blob_proto
from tests.conftest import make_net

SCORES = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
MATRIX = np.random.default_rng(2).uniform(size=(4, 4)).astype(np.float32)


def loss_net(bottoms="", param=""):
    return make_net(f"""
        force_backward: true
        layer {{ name: "in" type: "Input" top: "x" top: "label" top: "h" input_param {{
          shape {{ dim: 3 dim: 4 }} shape {{ dim: 3 }} shape {{ dim: 4 dim: 4 }} }} }}
        layer {{ name: "it" type: "InfogainLoss" bottom: "x" bottom: "label" {bottoms} top: "loss" {param} }}""")


def run(net):
    for name, values in ("x", SCORES), ("label", [2, 0, 3]), ("h", MATRIX):
        net.blob(name).data[...] = values
    loss = net.forward()
    net.backward()
    return loss, net.blob("x").diff.copy()


def test_matrix_from_a_file_equals_the_third_bottom(tmp_path):
    source = tmp_path / "matrix.binaryproto"
    write_binary(source, to_blob_proto(MATRIX.reshape(1, 1, 4, 4)))
    loss, gradient = run(loss_net(param=f'infogain_loss_param {{ source: "{source}" }}'))
    expected_loss, expected_gradient = run(loss_net('bottom: "h"'))
    assert loss == expected_loss > 0
    np.testing.assert_array_equal(gradient, expected_gradient)


@pytest.mark.parametrize("fits", [True, False])
def test_matrix_file_that_does_not_fit(tmp_path, fits):
    source = tmp_path / "matrix.binaryproto"
    source.write_bytes(to_blob_proto(MATRIX[:3, :3]).SerializeToString() if fits else b"name: 'net'")
    message = "its matrix has 9 values, not 4^2" if fits else f"infogain_loss_param.source: {source} is text"
    with pytest.raises(NetError, match=r'layer "it".*' + re.escape(message)):
        loss_net(param=f'infogain_loss_param {{ source: "{source}" }}')
