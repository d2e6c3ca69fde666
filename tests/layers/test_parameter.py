"""Parameter: its top stays the parameter's own memory, wherever that moves."""

import numpy as np

from tests.conftest import make_net

NET = """
layer { name: "a" type: "Parameter" top: "a" param { name: "same" } parameter_param { shape { dim: 2 dim: 3 } } }
layer { name: "b" type: "Parameter" top: "b" param { name: "same" } parameter_param { shape { dim: 2 dim: 3 } } }
layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum"
  eltwise_param { coeff: 1 coeff: 10 } loss_weight: 1 }
"""


def test_shared_parameter_in_a_flat_buffer():
    net = make_net(NET)
    data, diff = np.zeros((2, net.parameters.extent), np.float32)
    net.parameters.flatten(data, diff)
    data[:] = range(6)
    assert net.forward() == 15 * 11
    for name in "ab":
        np.testing.assert_array_equal(net.blob(name).data, [[0, 1, 2], [3, 4, 5]])
    for passes in (1, 2):  # as iter_size does
        net.backward()
        np.testing.assert_array_equal(diff, [11 * passes] * 6)
