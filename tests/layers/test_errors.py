"""What is wrong with a layer is said in one line: which layer, what, and what to do."""

import re

import numpy as np
import pytest

from fcaffe.errors import NetError
from tests.conftest import make_net


def net_of(layer, *shapes, force_backward=False):
    """A net with inputs "a", "b", ... of these shapes and the layer "it" on them."""
    names = "abcdef"[: len(shapes)]
    text = "force_backward: true\n" if force_backward else ""
    for name, shape in zip(names, shapes, strict=True):
        dims = " ".join(f"dim: {dim}" for dim in shape)
        text += f'layer {{ name: "in_{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'
    bottoms = " ".join(f'bottom: "{name}"' for name in names)
    text += f'layer {{ name: "it" {bottoms} {layer} }}'
    return make_net(text)


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        ('type: "Eltwise" top: "y"', [(2, 3), (2, 4)], 'all bottoms must have one shape: "a" (2, 3) and "b" (2, 4)'),
        ('type: "Eltwise" top: "y" eltwise_param { coeff: 1 }', [(2,), (2,)], "coeff must be given once per bottom"),
        ('type: "Eltwise" top: "y" eltwise_param { operation: MAX coeff: 1 coeff: 1 }', [(2,), (2,)], "SUM only"),
        ('type: "Eltwise" top: "y"', [(2,)], "takes at least 2 bottom"),
        ('type: "Concat" top: "y"', [(2, 3, 4), (2, 1, 5)], 'in axis 1 only: "a" (2, 3, 4) and "b" (2, 1, 5)'),
        ('type: "Concat" top: "y" concat_param { axis: 3 }', [(2, 3)], "axis 3 is out of range"),
        ('type: "Concat" top: "y" concat_param { axis: 1 concat_dim: 1 }', [(2, 3)], "either axis or concat_dim"),
        ('type: "Slice" top: "y" top: "z"', [(2, 3)], "cannot cut axis 1 of the bottom's shape (2, 3) into 2 equal"),
        ('type: "Slice" top: "y" top: "z" slice_param { slice_point: 3 }', [(2, 3)], "must rise within axis 1"),
        ('type: "Slice" top: "y" slice_param { slice_point: 1 }', [(2, 3)], "1 tops need 0 slice_point(s), not 1"),
        ('type: "Flatten" top: "a"', [(2, 3)], "does not work in place"),
        ('type: "Flatten" top: "y" flatten_param { axis: 1 end_axis: 0 }', [(2, 3)], "lies behind end_axis 0"),
        ('type: "Reshape" top: "y" reshape_param { shape { dim: 4 dim: -1 } }', [(2, 3)], "shape (2, 3) (6 values)"),
        ('type: "Reshape" top: "y" reshape_param { shape { dim: -1 dim: -1 } }', [(2, 3)], "one -1"),
        ('type: "EuclideanLoss"', [(2, 3), (2, 4)], 'Inputs must have the same dimension: "a" (2, 3) and "b" (2, 4)'),
        ('type: "EuclideanLoss"', [(2, 3), (3, 2)], "agree in the first dimension"),
        ('type: "SigmoidCrossEntropyLoss"', [(2, 3), (2,)], "inputs must have the same count"),
        ('type: "SoftmaxWithLoss" top: "y" top: "z"', [(2, 3), (2,)], "takes 1 top"),
        ('type: "SoftmaxWithLoss" softmax_param { axis: 2 }', [(2, 3), (2,)], "axis 2 is out of range"),
        ('type: "SoftmaxWithLoss"', [(2, 4, 5), (2,)], "label per position, shape (2, 5) without the axis"),
        ('type: "Accuracy" top: "y"', [(2, 4), (2, 4)], "one label per position, shape (2,)"),
        ('type: "Accuracy" top: "y" accuracy_param { top_k: 4 }', [(2, 3), (2,)], "top_k must be from 1 to the 3"),
        ('type: "LRN" top: "y" lrn_param { local_size: 4 }', [(1, 3, 2, 2)], "local_size must be odd, not 4"),
        ('type: "LRN" top: "y"', [(2, 3)], "needs a bottom of four axes (N, C, H, W), not (2, 3)"),
        ('type: "BatchNorm" top: "y" param { lr_mult: 1 }', [(2, 3)], "param 0 must have lr_mult: 0"),
        ('type: "Scale" top: "y" scale_param { axis: 1 num_axes: 2 }', [(2, 3)], "do not fit the bottom's shape"),
        ('type: "Scale" top: "y"', [(2, 3), (4,)], "operand of shape (4,) does not match the bottom's shape (2, 3)"),
        ('type: "Dropout" top: "y" dropout_param { dropout_ratio: 1.5 }', [(2, 3)], "from 0 to 1, not 1.5"),
        ('type: "DummyData" top: "y" dummy_data_param { num: 1 }', [], "channels must be given once"),
        ('type: "DummyData" top: "y" dummy_data_param { shape { dim: -1 } }', [], "cannot have the shape (-1,)"),
        ('type: "DummyData" top: "y" dummy_data_param { shape { dim: 1 } data_filler { type: "x" } }', [], "unknown"),
        ('type: "Input" top: "y" top: "z" top: "w" input_param { shape {} shape {} }', [], "2 for 3 tops"),
        ('type: "Softmx" top: "y"', [(2, 3)], "did you mean Softmax"),
    ],
)
def test_building(layer, shapes, message):
    with pytest.raises(NetError, match=re.escape(message)) as caught:
        net_of(layer, *shapes)
    assert 'layer "it"' in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("layer", ['type: "SoftmaxWithLoss"', 'type: "Accuracy" top: "y"'])
@pytest.mark.parametrize(("label", "shown"), [(4, "4"), (-1, "-1"), (1e9, "1e+09")])
def test_label_that_is_no_class(layer, label, shown):
    net = net_of(layer, (3, 4), (3,))
    net.blob("b").data[2] = label
    with pytest.raises(NetError) as caught:
        net.forward()
    said = str(caught.value)
    assert said.startswith('layer "it"')
    assert f'label {shown} at position 2 of "b" (3,) is none of the classes 0 to 3 of "a"' in said


def test_ignored_label_is_no_error():
    net = net_of('type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }', (2, 4), (2,))
    net.blob("b").data[...] = [255, 1]
    assert net.forward() == pytest.approx(np.log(4))


def test_labels_get_no_gradient():
    net = net_of('type: "SoftmaxWithLoss" propagate_down: true propagate_down: true', (2, 4), (2,), force_backward=True)
    net.forward()
    with pytest.raises(NetError, match="cannot give its label bottom a gradient"):
        net.backward()


def test_sum_in_place_warns(capsys):
    net = net_of('type: "Eltwise" top: "a"', (2,), (2,))
    assert "loses its first bottom" in capsys.readouterr().err
    net.blob("a").data[...] = 1
    net.blob("b").data[...] = 2
    net.forward()
    assert net.blob("a").data.tolist() == [2, 2]
