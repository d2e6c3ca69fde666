"""pycaffe's net_spec: nets written in Python."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text, write_text
from fcaffe.pycaffe.net import Net
from fcaffe.pycaffe.net_spec import NetSpec, assign_proto, layers, params, to_proto
from fcaffe.pycaffe.session import TEST

LENET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  transform_param { scale: 0.5 } dummy_data_param { shape { dim: 8 dim: 1 dim: 28 dim: 28 } shape { dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 10 } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss" loss_weight: 2 }
"""


def lenet(n: Any) -> Any:
    """The net of LENET into `n`, by attribute."""
    shape = [{"dim": [8, 1, 28, 28]}, {"dim": [8]}]
    n.data, n.label = layers.DummyData(shape=shape, transform_param={"scale": 0.5}, ntop=2)
    n.conv1 = layers.Convolution(n.data, kernel_size=5, num_output=20, weight_filler={"type": "xavier"})
    n.pool1 = layers.Pooling(n.conv1, kernel_size=2, stride=2, pool=params.Pooling.MAX)
    n.ip1 = layers.InnerProduct(n.pool1, num_output=10, param=[{"lr_mult": 1}, {"lr_mult": 2}])
    n.relu1 = layers.ReLU(n.ip1, in_place=True)
    n.loss = layers.SoftmaxWithLoss(n.relu1, n.label, loss_weight=2)
    return n


def test_a_spec_is_the_prototxt_that_one_would_write(tmp_path: Path) -> None:
    made = lenet(NetSpec()).to_proto()
    assert str(made) == str(parse_text(LENET, pb.NetParameter))
    write_text(tmp_path / "net.prototxt", made)
    assert len(Net(str(tmp_path / "net.prototxt"), TEST).layers) == 6


def test_blobs_without_names_are_numbered_by_type() -> None:
    class Anonymous:
        pass

    made = lenet(Anonymous()).loss.to_proto()
    expected = parse_text(LENET, pb.NetParameter)
    assert [layer.type for layer in made.layer] == [layer.type for layer in expected.layer]
    assert [layer.name for layer in made.layer] == [f"{layer.type}1" for layer in expected.layer]
    assert list(made.layer[0].top) == ["DummyData1", "DummyData2"]
    assert list(made.layer[4].bottom) == list(made.layer[4].top) == ["InnerProduct1"]
    assert list(made.layer[5].bottom) == ["InnerProduct1", "DummyData2"]


def test_to_proto_takes_several_tops_and_each_layer_once() -> None:
    data = layers.Input(shape={"dim": [1, 2]})
    a, b = layers.ReLU(data), layers.Sigmoid(data)
    assert [layer.type for layer in to_proto(a, b).layer] == ["Input", "ReLU", "Sigmoid"]
    assert to_proto(a, b).layer[0].input_param.shape[0].dim[:] == [1, 2]


def test_layers_without_tops() -> None:
    n = NetSpec()
    n.a, n.b = layers.DummyData(shape={"dim": 3}, ntop=2)
    n.quiet = layers.Silence(n.a, ntop=0)
    n["more"] = layers.Silence(n.b, ntop=0)
    made = n.to_proto()
    assert [(layer.name, list(layer.top)) for layer in made.layer][1:] == [("quiet", []), ("more", [])]
    anonymous = to_proto(layers.Silence(n.a, ntop=0))
    assert [layer.name for layer in anonymous.layer] == ["DummyData1", "Silence1"]


def test_fields_of_the_layer_itself() -> None:
    n = NetSpec()
    n.x = layers.Input(name="other", include={"phase": pb.TEST}, input_param={})
    n.y = layers.Python(n.x, module="m", layer="L", param_str="{}", propagate_down=[True], ntop=1)
    x, y = n.to_proto().layer
    assert x.name == "other" and list(x.top) == ["x"] and x.include[0].phase == pb.TEST
    assert (y.python_param.module, y.python_param.param_str, list(y.propagate_down)) == ("m", "{}", [True])


def test_an_input_that_is_no_top_is_refused_in_caffes_words() -> None:
    pair = layers.DummyData(ntop=2)
    with pytest.raises(TypeError, match=r"^Silence input 0 is not a Top \(type is <class 'tuple'>\)$"):
        layers.Silence(pair, ntop=0)
    layers.Silence(*pair, ntop=0)


def test_parameters_that_the_schema_has_not() -> None:
    with pytest.raises(AttributeError, match=r'Convolution has no parameter "kernal"'):
        to_proto(layers.Convolution(kernal=3))
    with pytest.raises(AttributeError, match=r"Deconvolution has no param.*give convolution_param=dict\(kernel_siz"):
        to_proto(layers.Deconvolution(kernel_size=3))
    with pytest.raises(AttributeError, match=r'FillerParameter has no field "kind"'):
        to_proto(layers.Convolution(weight_filler={"kind": "xavier"}))
    with pytest.raises(AttributeError, match="no message NothingParameter"):
        _ = params.Nothing.MAX
    with pytest.raises(AttributeError, match="give a dict"):
        to_proto(layers.Convolution(weight_filler="xavier"))


def test_names_of_a_spec() -> None:
    n = NetSpec()
    n.a = layers.Input()
    assert n["a"] is n.a and list(n.tops) == ["a"]
    with pytest.raises(KeyError, match=r'has no "b"; it has a'):
        _ = n.b
    assert list(copy.copy(n).tops) == ["a"]


def test_a_spec_can_be_changed_as_in_ssds_fork() -> None:
    n = lenet(NetSpec())
    assert n.keys() == list(n.tops) and n.vals()[n.keys().index("conv1")] is n.conv1
    n.update("conv1", {"dilation": 2})
    n.update("label", {"include": {"phase": pb.TRAIN}})
    made = n.to_proto()
    assert list(made.layer[1].convolution_param.dilation) == [2] and made.layer[0].include[0].phase == pb.TRAIN
    del n["loss"]
    assert [layer.name for layer in n.to_proto().layer] == [layer.name for layer in made.layer[:-1]]


def test_a_value_of_a_wrong_type_is_named() -> None:
    n = NetSpec()
    n.conv = layers.Convolution(pad=3.0)
    with pytest.raises(TypeError, match=r'layer "conv" \(Convolution\), pad=3.0: '):
        n.to_proto()


def test_values_of_every_kind_are_assigned() -> None:
    param = pb.ConvolutionParameter()
    for name, value in {
        "kernel_size": 3,
        "stride": (1, 2),
        "pad": np.array([4, 5]),
        "num_output": np.int64(6),
        "bias_term": np.bool_(False),
        "engine": "CAFFE",
        "weight_filler": pb.FillerParameter(std=np.float32(0.5)),
    }.items():
        assign_proto(param, name, value)
    assert str(param) == str(
        parse_text(
            "num_output: 6 bias_term: false pad: 4 pad: 5 kernel_size: 3 stride: 1 stride: 2 engine: CAFFE "
            "weight_filler { std: 0.5 }",
            pb.ConvolutionParameter,
        )
    )
    assign_proto(param, "dilation", [])
    assert not param.dilation
