"""Layers whose top is the memory of its bottom in Caffe: a script may write either, data and gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fcaffe as caffe

LAYERS = {
    "Flatten": "",
    "Reshape": "reshape_param { shape { dim: 0 dim: -1 dim: 2 } }",
    "Concat": "",
    "Slice": "",
}
NET = """
force_backward: true
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: {batch} dim: 3 dim: 6 dim: 6 }} }} }}
layer {{ name: "conv" type: "Convolution" bottom: "x" top: "a" convolution_param {{ num_output: 4 kernel_size: 3
  weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "shared" type: "{kind}" bottom: "a" top: "b" {param} }}
{behind}
layer {{ name: "ip" type: "InnerProduct" bottom: "b" top: "c" inner_product_param {{ num_output: 5
  weight_filler {{ type: "xavier" }} }} }}
"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "b" top: "b" }'


@pytest.mark.usefixtures("on_each_engine")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("behind", ["", RELU])
def test_bottom_and_top_are_one_memory(kind: str, behind: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(NET.format(kind=kind, param=LAYERS[kind], behind=behind, batch=2))
    net = caffe.Net(str(path), caffe.TEST)
    random = np.random.default_rng(1)
    for number, batch in enumerate([2, 2, 5, 3, 3, 2]):
        net.blobs["x"].reshape(batch, 3, 6, 6)
        net.reshape()
        net.blobs["x"].data[...] = random.standard_normal((batch, 3, 6, 6))
        net.forward()
        for part in "data", "diff":
            a, b = (getattr(net.blobs[name], part) for name in "ab")
            np.testing.assert_array_equal(a.ravel(), b.ravel(), err_msg=f"{number}: {part}")
            a[...] = random.standard_normal(a.shape)
            np.testing.assert_array_equal(a.ravel(), getattr(net.blobs["b"], part).ravel())
            b.ravel()[3:9] = 7
            np.testing.assert_array_equal(getattr(net.blobs["a"], part).ravel(), b.ravel())
        net.blobs["a"].data[...] = values = random.standard_normal(net.blobs["a"].data.shape).astype(np.float32)
        weights, bias = (blob.data for blob in net.params["ip"])
        expected = values.reshape(batch, -1) @ weights.T + bias
        np.testing.assert_allclose(net.forward(start="ip")["c"], expected, rtol=1e-4, atol=1e-4)
        net.blobs["c"].diff[...] = 1
        net.backward()
        np.testing.assert_array_equal(net.blobs["a"].diff.ravel(), net.blobs["b"].diff.ravel())


@pytest.mark.parametrize("kind", LAYERS)
def test_nets_of_a_solver_have_a_copy(kind: str, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET.format(kind=kind, param=LAYERS[kind], behind="", batch=2))
    (tmp_path / "solver.prototxt").write_text(f'net: "{tmp_path}/net.prototxt" base_lr: 0.1 lr_policy: "fixed"')
    net = caffe.get_solver(str(tmp_path / "solver.prototxt")).net
    net.forward()
    assert np.array_equal(net.blobs["a"].data.ravel(), net.blobs["b"].data.ravel())
    before = net.blobs["b"].data.copy()
    net.blobs["a"].data[...] += 1
    assert np.array_equal(net.blobs["b"].data, before)
