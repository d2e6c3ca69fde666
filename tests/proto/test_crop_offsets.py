"""V1 layers of type CROP get the offset that follows from the layers between their bottoms."""

from __future__ import annotations

import pytest

from fcaffe.errors import ProtoError
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.upgrade import upgrade_net


def conv(name: str, bottom: str, fields: str, kind: str = "CONVOLUTION") -> str:
    return (
        f'layers {{ name: "{name}" type: {kind} bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: 2 {fields} }} }}"
    )


def pool(name: str, bottom: str) -> str:
    fields = "pooling_param { kernel_size: 2 stride: 2 }"
    return f'layers {{ name: "{name}" type: POOLING bottom: "{bottom}" top: "{name}" {fields} }}'


def crop(name: str, bottom: str, like: str) -> str:
    return f'layers {{ name: "{name}" type: CROP bottom: "{bottom}" bottom: "{like}" top: "{name}" }}'


def offsets(text: str) -> dict[str, list[int]]:
    net = parse_text('input: "data" input_dim: [1, 3, 500, 500]' + text, pb.NetParameter)
    upgrade_net(net, "net")
    return {layer.name: list(layer.crop_param.offset) for layer in net.layer if layer.type == "Crop"}


def vgg() -> list[str]:
    """The convolutions and poolings of VGG-16 with FCN's padding of 100; 3x3 with a pad of 1 change no positions."""
    layers, bottom = [conv("conv1", "data", "kernel_size: 3 pad: 100")], "conv1"
    for number in range(1, 6):
        layers.append(pool(f"pool{number}", bottom))
        bottom = f"pool{number}"
        layers.append(f'layers {{ name: "relu{number}" type: RELU bottom: "{bottom}" top: "{bottom}" }}')
    return [*layers, conv("fc6", "pool5", "kernel_size: 7"), conv("score", "fc6", "kernel_size: 1")]


def test_fcn_8s() -> None:
    """Each crop counts for those behind it."""
    text = [
        *vgg(),
        conv("score2", "score", "kernel_size: 4 stride: 2", "DECONVOLUTION"),
        conv("score-pool4", "pool4", "kernel_size: 1"),
        crop("score-pool4c", "score-pool4", "score2"),
        'layers { name: "fuse" type: ELTWISE bottom: "score2" bottom: "score-pool4c" top: "fuse" }',
        conv("score4", "fuse", "kernel_size: 4 stride: 2", "DECONVOLUTION"),
        conv("score-pool3", "pool3", "kernel_size: 1"),
        crop("score-pool3c", "score-pool3", "score4"),
        'layers { name: "fuse2" type: ELTWISE bottom: "score4" bottom: "score-pool3c" top: "fuse2" }',
        conv("big", "fuse2", "kernel_size: 16 stride: 8", "DECONVOLUTION"),
        crop("upscore", "big", "data"),
    ]
    assert offsets("\n".join(text)) == {"score-pool4c": [5, 5], "score-pool3c": [9, 9], "upscore": [31, 31]}


def test_dilated_kernels_reach_further_and_height_and_width_may_differ() -> None:
    for fields, expected in (
        ("kernel_size: 3 dilation: 2 pad: 4", [2, 2]),
        ("kernel_h: 3 kernel_w: 1 pad_h: 4 pad_w: 2", [3, 2]),
    ):
        assert offsets(conv("a", "data", fields) + crop("c", "a", "data")) == {"c": expected}


@pytest.mark.parametrize(
    "text",
    [
        crop("c", "a", "b"),
        conv("a", "data", "kernel_size: 3 stride: 2") + crop("c", "a", "data"),
        conv("a", "data", "kernel_size: 2") + crop("c", "a", "data"),
        conv("a", "data", "kernel_size: 3") + crop("c", "a", "data"),
        'layers { name: "c" type: CROP bottom: "data" top: "c" }',
    ],
    ids=["unrelated", "other scale", "half a position", "negative", "one bottom"],
)
def test_offsets_that_do_not_follow_are_refused(text: str) -> None:
    with pytest.raises(ProtoError, match=r'layer "c" \(CROP\): its offset does not follow .*crop_param'):
        offsets(text)


def test_other_types_of_forks() -> None:
    net = parse_text(
        'layers { name: "n" type: BN bottom: "x" top: "n" bn_param { scale_filler { value: 2 } } blobs_lr: 3 }'
        'layers { name: "i" type: INTERP bottom: "n" top: "i" interp_param { zoom_factor: 2 } }',
        pb.NetParameter,
    )
    upgrade_net(net, "net")
    assert net == parse_text(
        'layer { name: "n" type: "BN" bottom: "x" top: "n" bn_param { scale_filler { value: 2 } } '
        "param { lr_mult: 3 } }"
        'layer { name: "i" type: "Interp" bottom: "n" top: "i" interp_param { zoom_factor: 2 } }',
        pb.NetParameter,
    )
