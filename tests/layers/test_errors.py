"""What is wrong with a layer is said in one line: which layer, what, and what to do."""

import re

import numpy as np
import pytest

from fcaffe.errors import NetError
from tests.conftest import net_of_layer
from tests.layers.examples import EXAMPLES


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        ('type: "Eltwise" top: "y"', [(2, 3), (2, 4)], 'all bottoms must have one shape: "x0" (2, 3) and "x1" (2, 4)'),
        ('type: "Eltwise" top: "y" eltwise_param { operation: MAX coeff: 1 coeff: 1 }', [(2,), (2,)], "SUM only"),
        ('type: "Concat" top: "y"', [(2, 3, 4), (2, 1, 5)], 'in axis 1 only: "x0" (2, 3, 4) and "x1" (2, 1, 5)'),
        ('type: "Concat" top: "y" concat_param { axis: 1 concat_dim: 1 }', [(2, 3)], "either axis or concat_dim"),
        ('type: "Slice" top: "y" top: "z"', [(2, 3)], "cannot cut axis 1 of the bottom's shape (2, 3) into 2 equal"),
        ('type: "Reshape" top: "y" reshape_param { shape { dim: 4 dim: -1 } }', [(2, 3)], "shape (2, 3) (6 values)"),
        ('type: "EuclideanLoss"', [(2, 3), (2, 4)], 'Inputs must have the same dimension: "x0" (2, 3) and "x1" (2, 4)'),
        ('type: "EuclideanLoss" top: "y" top: "z"', [(2, 3), (2, 3)], "takes 1 top"),
        ('type: "SoftmaxWithLoss"', [(2, 4, 5), (2,)], "label per position, shape (2, 5) without the axis"),
        ('type: "LRN" top: "y" lrn_param { local_size: 4 }', [(1, 3, 2, 2)], "local_size must be odd, not 4"),
        ('type: "BatchNorm" top: "y" param { lr_mult: 1 }', [(2, 3)], "param 0 must have lr_mult: 0"),
        ('type: "Scale" top: "y"', [(2, 3), (4,)], "operand of shape (4,) does not match the bottom's shape (2, 3)"),
        ('type: "DummyData" top: "y" dummy_data_param { num: 1 }', [], "channels must be given once"),
        ('type: "Input" top: "y" top: "z" top: "w" input_param { shape {} shape {} }', [], "2 for 3 tops"),
        ('type: "AbsVal" top: "x0"', [(2, 3)], "does not work in place"),
        (
            'type: "Pooling" top: "x0" pooling_param { kernel_size: 2 stride: 2 }',
            [(1, 2, 4, 4)],
            'does not work in place, for it makes (1, 2, 2, 2) of "x0" (1, 2, 4, 4); give its top another name',
        ),
        ('type: "Exp" top: "y" exp_param { base: 0 }', [(2, 3)], "base must be positive, or -1 for e, not 0"),
        ('type: "Clip" top: "y"', [(2, 3)], "clip_param { min: ... max: ... } is missing"),
        ('type: "ArgMax" top: "y" argmax_param { top_k: 7 }', [(2, 6)], "top_k must be from 1 to 6"),
        ('type: "Filter" top: "y" top: "z"', [(4, 3), (4,)], "2 bottoms, the last of them the selector, need 1 top"),
        ('type: "Crop" top: "y"', [(1, 1, 5, 5), (1, 1, 6, 4)], "cannot take 6 from 0 on along axis 2"),
        ('type: "Im2col" top: "y"', [(1, 1, 4, 4)], "convolution_param.kernel_size is missing"),
        (
            'type: "Deconvolution" top: "y" convolution_param { num_output: 3 group: 2 kernel_size: 2 }',
            [(1, 4, 2, 2)],
            "group 2 must divide the 4 input channels and the 3 outputs",
        ),
        ('type: "SPP" top: "y" spp_param { pyramid_height: 3 }', [(1, 1, 5, 5)], "cannot pool 5 x 5 values into 4^2"),
        ('type: "MVN" top: "y"', [(1, 1, 2, 2, 2)], "at most 4 axes, not the shape (1, 1, 2, 2, 2)"),
        ('type: "HingeLoss"', [(4, 3), (4, 3)], 'one label per sample: "x0" (4, 3) and "x1" (4, 3)'),
        ('type: "InfogainLoss"', [(4, 3), (4,)], "infogain_loss_param.source or as third bottom"),
        ('type: "Softmx" top: "y"', [(2, 3)], "did you mean Softmax"),
        ('type: "INNER_PRODUCT" top: "y"', [(2, 3)], "did you mean InnerProduct?"),
    ],
)
def test_building(layer, shapes, message):
    with pytest.raises(NetError, match=re.escape(message)) as caught:
        net_of_layer(layer, *shapes)
    assert 'layer "it"' in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [
        'type: "SoftmaxWithLoss"',
        'type: "Accuracy" top: "y"',
        'type: "HingeLoss"',
        'type: "MultinomialLogisticLoss"',
    ],
)
@pytest.mark.parametrize(("label", "shown"), [(4, "4"), (-1, "-1"), (1e9, "1e+09")])
def test_label_that_is_no_class(layer, label, shown):
    net = net_of_layer(layer, (3, 4), (3,))
    net.blob("x1").data[2] = label
    with pytest.raises(NetError) as caught:
        net.forward()
    said = str(caught.value)
    assert said.startswith('layer "it"')
    assert f'label {shown} at position 2 of "x1" (3,) is none of the classes 0 to 3 of "x0"' in said


@pytest.mark.parametrize(
    ("layer", "shapes", "said"),
    [
        ('type: "BatchReindex" top: "y"', [(4, 2), (3,)], 'of "x1" (3,) is none of the rows 0 to 3 of "x0"'),
        (
            'type: "Embed" top: "y" embed_param { num_output: 2 input_dim: 4 }',
            [(3,)],
            'of "x0" (3,) is none of the rows 0 to 3 of its table (input_dim)',
        ),
    ],
)
@pytest.mark.parametrize(("index", "shown"), [(4, "4"), (-1, "-1"), (float("nan"), "nan")])
def test_index_that_is_no_row(layer, shapes, said, index, shown):
    net = net_of_layer(layer, *shapes)
    net.blob(f"x{len(shapes) - 1}").data[2] = index
    with pytest.raises(NetError, match=re.escape(f"index {shown} at position 2 {said}")) as caught:
        net.forward()
    assert str(caught.value).startswith('layer "it"')


def test_ignored_label_is_no_error():
    net = net_of_layer('type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }', (2, 4), (2,))
    net.blob("x1").data[...] = [255, 1]
    assert net.forward() == pytest.approx(np.log(4))


def test_labels_get_no_gradient():
    net = net_of_layer('type: "SoftmaxWithLoss" propagate_down: true propagate_down: true', (2, 4), (2,))
    net.forward()
    with pytest.raises(NetError, match='cannot give "x1" a gradient'):
        net.backward()


def backward_or_error(net, kind):
    try:
        net.backward()
    except NetError as problem:
        assert str(problem).startswith(f'layer "it" ({kind}): cannot go backward, for it has not gone forward')


def test_backward_without_forward():
    """Of a layer as it is made, or whose bottoms have become larger: it gives gradients or says what is wrong."""
    for kind, examples in EXAMPLES.items():
        for example in examples:
            net = net_of_layer(f'type: "{kind}" {example.text}', *example.bottoms, tops=example.tops)
            for index, values in example.values.items():
                blob = net.blob(f"x{index}")
                blob.data[...] = np.resize(values, blob.shape)
            backward_or_error(net, kind)
            net.forward()
            for index, shape in enumerate(example.bottoms):
                if shape and (example.batched is None or index in example.batched):
                    net.blob(f"x{index}").reshape(shape[0] + 1, *shape[1:])
            net.reshape()
            backward_or_error(net, kind)
