"""Nets as people write them: what Caffe builds from the odd ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import NetError
from fcaffe.model_files import read_model, write_model
from fcaffe.net import Net
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net
from fcaffe.pycaffe.net import Net as PyNet

NetFrom = Callable[..., Net]

INPUT = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }'


def ip(name: str, bottom: str, top: str, outputs: int, more: str = "") -> str:
    filler = 'weight_filler { type: "xavier" }'
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" {more} '
        f"inner_product_param {{ num_output: {outputs} {filler} }} }}"
    )


def test_nets_and_layers_without_a_name(net_from: NetFrom, tmp_path: Path) -> None:
    text = (
        INPUT.replace('name: "in"', "")
        + 'layer { type: "ReLU" bottom: "x" top: "x" }'
        + ip("", "x", "y", 3).replace('name: ""', "")
        + 'layer { type: "Softmax" bottom: "y" top: "p" }'
    )
    net = net_from(text)
    net.forward()
    assert net.name == ""
    assert net.layer_names == ["", "", "", ""]
    assert net.blob("p").shape == (2, 3)
    write_model(tmp_path / "x.caffemodel", to_model(net))
    assert [layer.name for layer in read_model(tmp_path / "x.caffemodel").layers] == [""] * 4
    assert list(PyNet._of(net).params) == [""]


def test_two_layers_of_one_name(net_from: NetFrom, tmp_path: Path) -> None:
    """Both are built and trained; `params` and `layer_dict` show the last, weights are loaded into the first."""
    text = INPUT + ip("ip", "x", "a", 3) + ip("ip", "a", "b", 5)
    net = net_from(text)
    assert net.layer_names == ["in", "ip", "ip"]
    assert [parameter.blob.shape for parameter in net.parameters.owned] == [(3, 48), (3,), (5, 3), (5,)]
    face = PyNet._of(net)
    assert [blob.data.shape for blob in face.params["ip"]] == [(5, 3), (5,)]
    same = INPUT + ip("ip", "x", "a", 48) + ip("ip", "a", "b", 48)
    saved, loaded = net_from(same), net_from(same, seed=2)
    write_model(tmp_path / "x.caffemodel", to_model(saved))
    before = loaded.layers[2].blobs[0].data.copy()
    copy_weights(loaded, read_model(tmp_path / "x.caffemodel"), "x")
    np.testing.assert_array_equal(loaded.layers[1].blobs[0].data, saved.layers[2].blobs[0].data)
    np.testing.assert_array_equal(loaded.layers[2].blobs[0].data, before)


STAGES = """
state { phase: TEST level: 2 stage: "deploy" stage: "b" }
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 } } }
layer { name: "a" type: "ReLU" bottom: "x" top: "a" include { stage: "deploy" } }
layer { name: "b" type: "ReLU" bottom: "x" top: "b" include { stage: "deploy" stage: "c" } }
layer { name: "c" type: "ReLU" bottom: "x" top: "c" include { not_stage: "c" min_level: 1 } }
layer { name: "d" type: "ReLU" bottom: "x" top: "d" exclude { stage: "b" not_stage: "c" } }
layer { name: "e" type: "ReLU" bottom: "x" top: "e" include { phase: TRAIN } include { max_level: 2 } }
layer { name: "f" type: "ReLU" bottom: "x" top: "f" include { max_level: 1 } }
"""


def test_a_state_inside_the_net_and_stages(net_from: NetFrom, tmp_path: Path) -> None:
    named = [name for name in net_from(STAGES, "TEST").layer_names if len(name) == 1]
    assert named == ["a", "c", "e"]
    assert net_from(STAGES, "TRAIN").layer_names == net_from(STAGES, "TEST").layer_names
    (tmp_path / "net.prototxt").write_text(STAGES)
    with_more = PyNet(str(tmp_path / "net.prototxt"), pb.TEST, level=0, stages=["c"])
    assert [name for name in with_more._layer_names if len(name) == 1] == ["a", "b", "d", "e", "f"]
    assert read_net(tmp_path / "net.prototxt").state.level == 2


SOLVER_NET = """
net_param { name: "inside"
  layers { name: "data" type: DUMMY_DATA top: "x" top: "t" dummy_data_param {
    num: 4 num: 4 channels: 3 channels: 2 height: 1 height: 1 width: 1 width: 1 data_filler { value: 1 } } }
  layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2
    inner_product_param { num_output: 2 weight_filler { type: "xavier" } } include { not_stage: "wide" } }
  layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" include { stage: "wide" }
    inner_product_param { num_output: 2 bias_term: false weight_filler { type: "xavier" } } }
  layers { name: "loss" type: EUCLIDEAN_LOSS bottom: "y" bottom: "t" }
}
base_lr: 0.1 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false solver_type: NESTEROV momentum: 0.5
test_iter: 1 test_interval: 1 test_state { phase: TEST stage: "wide" } regularization_type: "L1"
"""


def test_a_whole_net_in_a_solver(solver_from: Callable[..., Any]) -> None:
    solver = solver_from(SOLVER_NET)
    assert (solver.param.type, solver.net.name) == ("Nesterov", "inside")
    assert len(solver.net.layers[1].blobs) == 2 and len(solver.test_nets[0].layers[1].blobs) == 1
    assert [parameter.lr_mult for parameter in solver.net.parameters.owned] == [1, 2]
    with pytest.raises(NetError, match="cannot share"):
        solver.test_all()
    solver.close()


# --- deprecated fields of layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "divisor"),
    [("normalize: true", 9), ("normalize: false", 2), ("normalize: false normalization: FULL", 12)],
)
def test_normalize_of_a_loss(fields: str, divisor: int, net_from: NetFrom) -> None:
    text = INPUT.replace("dim: 4 dim: 4", "dim: 2 dim: 3") + (
        'layer { name: "l" type: "Input" top: "l" input_param { shape { dim: 2 dim: 1 dim: 2 dim: 3 } } }'
        f'layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "l" '
        f"loss_param {{ ignore_label: 2 {fields} }} }}"
    )
    net = net_from(text)
    net.blob("l").data[...] = np.where(np.arange(12) % 4 == 3, 2, 0).reshape(2, 1, 2, 3)
    assert net.forward() == pytest.approx(9 * np.log(3) / divisor)


def data(name: str, top: str, rules: str) -> str:
    return (
        f'layer {{ name: "{name}" type: "Input" top: "{top}" {rules} '
        "input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }"
    )


def test_a_net_that_lacks_its_data_without_a_stage(net_from: NetFrom) -> None:
    text = data("a", "x", "include { phase: TRAIN }") + data("b", "x", 'include { phase: TEST stage: "val" }')
    text += data("c", "x", 'exclude { phase: TEST stage: "all" } exclude { min_level: 0 }') + ip("ip", "x", "y", 3)
    with pytest.raises(NetError, match=r"Unknown bottom blob .x. .* of this phase and these stages"):
        net_from(text, phase="TEST")
    assert net_from('state { stage: "val" }' + text, phase="TEST").blob("y").shape == (2, 3)


def test_a_misspelt_top_is_not_what_a_layer_in_place_would_make(net_from: NetFrom) -> None:
    text = INPUT + ip("fc", "x", "fc_7", 3)
    text += 'layer { name: "drop" type: "Dropout" bottom: "fc7" top: "fc7" include { phase: TRAIN } }'
    with pytest.raises(NetError, match="did you mean 'fc_7'"):
        net_from(text + ip("last", "fc7", "y", 2), phase="TEST")
