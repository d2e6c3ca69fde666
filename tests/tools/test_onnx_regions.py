"""Layers with regions in ONNX: rounding at exact halves, and kinds of layers that are refused."""

from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import LayerError
from fcaffe.onnx.check import random_inputs
from fcaffe.onnx.writing.export import to_onnx
from tests.conftest import make_net
from tests.layers.example import Example
from tests.tools.onnx_nets import example_net, input_layer, layer_text, relative_difference

pytest.importorskip("onnxruntime")

MAPS = (2, 3, 9, 12)


@pytest.mark.parametrize("pad", ["", "pad_ratio: 0.25"])
@pytest.mark.parametrize("scale", [0.5, 0.0625])
def test_rounding(scale: float, pad: str, tmp_path: Path) -> None:
    """Corners at every half cell, inside and outside of the maps, some in the wrong order."""
    param = f"roi_pooling_param {{ pooled_h: 3 pooled_w: 2 spatial_scale: {scale} {pad} }}"
    net = example_net("ROIPooling", Example(param, (MAPS, (400, 5))))
    random = np.random.default_rng(2)
    regions = random.integers(-6, 30, (400, 5)) / 2 / scale
    regions[:, 0] = random.integers(0, 2, 400)
    inputs = {"x0": random.standard_normal(MAPS), "x1": regions}
    assert relative_difference(net, inputs, tmp_path) == 0


def test_a_check_has_regions(tmp_path: Path) -> None:
    """Random numbers are none."""
    rois = 'layer { name: "r" type: "Input" top: "r" input_param { shape { dim: 6 dim: 5 } } }'
    pools = [
        f'layer {{ name: "p{index}" type: "ROIPooling" bottom: "x" bottom: "r" top: "p{index}" roi_pooling_param '
        f"{{ pooled_h: 2 pooled_w: {index} spatial_scale: 0.125 }} }}"
        for index in (1, 2)
    ]
    net = make_net("\n".join([input_layer("x", MAPS), rois, *pools]), "TEST")
    inputs = random_inputs(net)
    assert set(inputs["r"][:, 0]) == {0, 1} and (inputs["r"][:, 3] > inputs["r"][:, 1]).all()
    assert relative_difference(net, inputs, tmp_path) == 0


@pytest.mark.parametrize(
    ("kind", "example", "message"),
    [
        ("ROIAlign", Example("roi_pooling_param { pooled_h: 1 pooled_w: 1 }", (MAPS, (3, 5))), "corners of bins"),
        ("Lstm", Example("lstm_param { num_output: 2 }", ((4, 3), (4,))), "marks"),
    ],
)
def test_kinds_that_are_refused(kind: str, example: Example, message: str) -> None:
    with pytest.raises(LayerError, match=rf'layer "it" \({kind}\): cannot be written in ONNX: .*{message}'):
        to_onnx(make_net(layer_text(kind, example), "TEST"))
