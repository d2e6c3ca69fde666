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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "its matrix has 9 values, not 4^2 for the 4 classes of (3, 4)"),
        (b"name: 'net'", "infogain_loss_param.source: {source} is text, perhaps a prototxt"),
        (b"", "infogain_loss_param.source: {source} is empty"),
    ],
)
def test_matrix_file_that_does_not_fit(tmp_path, content, message):
    source = tmp_path / "matrix.binaryproto"
    if content is None:
        write_binary(source, to_blob_proto(MATRIX[:3, :3]))
    else:
        source.write_bytes(content)
    with pytest.raises(NetError, match=r'layer "it".*' + re.escape(message.format(source=source))):
        loss_net(param=f'infogain_loss_param {{ source: "{source}" }}')
