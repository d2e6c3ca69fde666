"""Deconvolution as it is used most: to enlarge images."""

import numpy as np

from tests.conftest import make_net


def enlarging_net(layer):
    return make_net(f"""
        layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 2 dim: 4 dim: 5 }} }} }}
        layer {{ name: "up" type: "Deconvolution" bottom: "x" top: "y" convolution_param {{ {layer} }} }}""")


def test_bilinear_weights_interpolate():
    net = enlarging_net(
        'num_output: 2 group: 2 kernel_size: 4 stride: 2 pad: 1 bias_term: false weight_filler { type: "bilinear" }'
    )
    rows, columns = np.mgrid[:4, :5]
    net.blob("x").data[...] = [[rows, columns]]
    net.forward()
    enlarged_rows, enlarged_columns = (np.mgrid[:8, :10] - 0.5) / 2
    inside = (slice(1, -1), slice(1, -1))  # at the edge there is nothing to interpolate with
    np.testing.assert_allclose(net.blob("y").data[0, 0][inside], enlarged_rows[inside])
    np.testing.assert_allclose(net.blob("y").data[0, 1][inside], enlarged_columns[inside])
