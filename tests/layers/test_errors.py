"""What is wrong with a layer is said in one line: which layer, what, and what to do."""

import re

import numpy as np
import pytest

from fcaffe.errors import NetError
from tests.conftest import make_net
from tests.layers.examples import EXAMPLES


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
        ('type: "Eltwise" top: "y" eltwise_param { operation: MAX coeff: 1 coeff: 1 }', [(2,), (2,)], "SUM only"),
        ('type: "Eltwise" top: "y"', [(2,)], "takes at least 2 bottom"),
        ('type: "Concat" top: "y"', [(2, 3, 4), (2, 1, 5)], 'in axis 1 only: "a" (2, 3, 4) and "b" (2, 1, 5)'),
        ('type: "Concat" top: "y" concat_param { axis: 1 concat_dim: 1 }', [(2, 3)], "either axis or concat_dim"),
        ('type: "Slice" top: "y" top: "z"', [(2, 3)], "cannot cut axis 1 of the bottom's shape (2, 3) into 2 equal"),
        ('type: "Slice" top: "y" top: "z" slice_param { slice_point: 4 }', [(2, 3)], "must rise within axis 1"),
        ('type: "Flatten" top: "y" flatten_param { axis: 1 end_axis: 0 }', [(2, 3)], "lies behind end_axis 0"),
        ('type: "Reshape" top: "y" reshape_param { shape { dim: 4 dim: -1 } }', [(2, 3)], "shape (2, 3) (6 values)"),
        ('type: "EuclideanLoss"', [(2, 3), (2, 4)], 'Inputs must have the same dimension: "a" (2, 3) and "b" (2, 4)'),
        ('type: "SigmoidCrossEntropyLoss"', [(2, 3), (2,)], "inputs must have the same count"),
        ('type: "EuclideanLoss" top: "y" top: "z"', [(2, 3), (2, 3)], "takes 1 top"),
        ('type: "SoftmaxWithLoss"', [(2, 4, 5), (2,)], "label per position, shape (2, 5) without the axis"),
        ('type: "Accuracy" top: "y" accuracy_param { top_k: 4 }', [(2, 3), (2,)], "top_k must be from 1 to the 3"),
        ('type: "LRN" top: "y" lrn_param { local_size: 4 }', [(1, 3, 2, 2)], "local_size must be odd, not 4"),
        ('type: "BatchNorm" top: "y" param { lr_mult: 1 }', [(2, 3)], "param 0 must have lr_mult: 0"),
        ('type: "Scale" top: "y"', [(2, 3), (4,)], "operand of shape (4,) does not match the bottom's shape (2, 3)"),
        ('type: "Dropout" top: "y" dropout_param { dropout_ratio: 1.5 }', [(2, 3)], "from 0 to 1, not 1.5"),
        ('type: "DummyData" top: "y" dummy_data_param { num: 1 }', [], "channels must be given once"),
        ('type: "DummyData" top: "y" dummy_data_param { shape { dim: 1 } data_filler { type: "x" } }', [], "unknown"),
        ('type: "Input" top: "y" top: "z" top: "w" input_param { shape {} shape {} }', [], "2 for 3 tops"),
        ('type: "AbsVal" top: "a"', [(2, 3)], "does not work in place"),
        (
            'type: "Pooling" top: "a" pooling_param { kernel_size: 2 stride: 2 }',
            [(1, 2, 4, 4)],
            'does not work in place, for it makes (1, 2, 2, 2) of "a" (1, 2, 4, 4); give its top another name',
        ),
        ('type: "Exp" top: "y" exp_param { base: 0 }', [(2, 3)], "base must be positive, or -1 for e, not 0"),
        ('type: "Log" top: "y" log_param { base: 1 }', [(2, 3)], "no logarithm to the base 1"),
        ('type: "Clip" top: "y"', [(2, 3)], "clip_param { min: ... max: ... } is missing"),
        ('type: "PReLU" top: "y"', [(3,)], "two axes or more, with channels on axis 1, not (3,)"),
        ('type: "ArgMax" top: "y" argmax_param { top_k: 7 }', [(2, 6)], "top_k must be from 1 to 6"),
        ('type: "Filter" top: "y" top: "z"', [(4, 3), (4,)], "2 bottoms, the last of them the selector, need 1 top"),
        ('type: "BatchReindex" top: "y"', [(4, 3), (4, 1)], "indices of one axis"),
        ('type: "Tile" top: "y"', [(2, 3)], "tile_param.tiles must be positive"),
        ('type: "Crop" top: "y"', [(1, 1, 5, 5), (1, 1, 6, 4)], "cannot take 6 from 0 on along axis 2"),
        ('type: "Crop" top: "y" crop_param { offset: 1 offset: 1 }', [(1, 1, 1)] * 2, "2 times for the 1 axes"),
        ('type: "Embed" top: "y" embed_param { num_output: 2 }', [(4,)], "input_dim must be positive"),
        ('type: "Im2col" top: "y"', [(1, 1, 4, 4)], "convolution_param.kernel_size is missing"),
        (
            'type: "Deconvolution" top: "y" convolution_param { num_output: 3 group: 2 kernel_size: 2 }',
            [(1, 4, 2, 2)],
            "group 2 must divide the 4 input channels and the 3 outputs",
        ),
        ('type: "SPP" top: "y" spp_param { pyramid_height: 3 }', [(1, 1, 5, 5)], "cannot pool 5 x 5 values into 4^2"),
        ('type: "MVN" top: "y"', [(1, 1, 2, 2, 2)], "at most 4 axes, not the shape (1, 1, 2, 2, 2)"),
        ('type: "HingeLoss"', [(4, 3), (4, 3)], 'one label per sample: "a" (4, 3) and "b" (4, 3)'),
        (
            'type: "ContrastiveLoss"',
            [(4, 3), (4, 2), (4,)],
            'bottoms of one shape, and one value per sample: "a" (4, 3)',
        ),
        ('type: "InfogainLoss"', [(4, 3), (4,)], "infogain_loss_param.source or as third bottom"),
        (
            'type: "InfogainLoss"',
            [(4, 3), (4,), (3, 4)],
            "its matrix has 12 values, not 3^2 for the 3 classes of (4, 3)",
        ),
        ('type: "Softmx" top: "y"', [(2, 3)], "did you mean Softmax"),
        ('type: "ImageLabelData" top: "y"', [(2, 3)], "(did you mean ImageData or DenseImageData?); if it is a fork's"),
        ('type: "INNER_PRODUCT" top: "y"', [(2, 3)], "did you mean InnerProduct?"),
    ],
)
def test_building(layer, shapes, message):
    with pytest.raises(NetError, match=re.escape(message)) as caught:
        net_of(layer, *shapes)
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
    net = net_of(layer, (3, 4), (3,))
    net.blob("b").data[2] = label
    with pytest.raises(NetError) as caught:
        net.forward()
    said = str(caught.value)
    assert said.startswith('layer "it"')
    assert f'label {shown} at position 2 of "b" (3,) is none of the classes 0 to 3 of "a"' in said


@pytest.mark.parametrize(
    ("layer", "shapes", "said"),
    [
        ('type: "BatchReindex" top: "y"', [(4, 2), (3,)], 'of "b" (3,) is none of the rows 0 to 3 of "a"'),
        (
            'type: "Embed" top: "y" embed_param { num_output: 2 input_dim: 4 }',
            [(3,)],
            'of "a" (3,) is none of the rows 0 to 3 of its table (input_dim)',
        ),
    ],
)
@pytest.mark.parametrize(("index", "shown"), [(4, "4"), (-1, "-1"), (float("nan"), "nan")])
def test_index_that_is_no_row(layer, shapes, said, index, shown):
    net = net_of(layer, *shapes)
    net.blob("ab"[len(shapes) - 1]).data[2] = index
    with pytest.raises(NetError, match=re.escape(f"index {shown} at position 2 {said}")) as caught:
        net.forward()
    assert str(caught.value).startswith('layer "it"')


def test_ignored_label_is_no_error():
    net = net_of('type: "SoftmaxWithLoss" loss_param { ignore_label: 255 }', (2, 4), (2,))
    net.blob("b").data[...] = [255, 1]
    assert net.forward() == pytest.approx(np.log(4))


def test_labels_get_no_gradient():
    net = net_of('type: "SoftmaxWithLoss" propagate_down: true propagate_down: true', (2, 4), (2,), force_backward=True)
    net.forward()
    with pytest.raises(NetError, match='cannot give "b" a gradient'):
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
            tops = " ".join(f'top: "top{number}"' for number in range(example.tops))
            net = net_of(f'type: "{kind}" {tops} {example.text}', *example.bottoms, force_backward=True)
            for index, values in example.values.items():
                blob = net.blob("abcdef"[index])
                blob.data[...] = np.resize(values, blob.shape)
            backward_or_error(net, kind)
            net.forward()
            for index, shape in enumerate(example.bottoms):
                if shape and (example.batched is None or index in example.batched):
                    net.blob("abcdef"[index]).reshape(shape[0] + 1, *shape[1:])
            net.reshape()
            backward_or_error(net, kind)
