"""The lines of docs/ways-out.md, run as they stand: each runtime gives fcaffe's scores."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from fcaffe.net import Net
from tests.conftest import make_net
from tests.tools.onnx_nets import input_layer, with_random_weights

pytest.importorskip("onnx")

from fcaffe.onnx.check import random_inputs, run_net
from fcaffe.onnx.library import OPSET
from fcaffe.onnx.writing.export import to_onnx, write_onnx

DOCUMENT = (Path(__file__).parents[2] / "docs" / "ways-out.md").read_text()
BLOCKS = dict(re.findall(r"^\*\*(.*?)\*\*.*?```python\n(.*?)```", DOCUMENT, re.MULTILINE | re.DOTALL))
PACKAGES = {"ONNX Runtime": ["onnxruntime"], "OpenVINO": ["openvino"], "OpenCV": ["cv2"], "PyTorch": ["onnx2torch"]}

# What image nets are made of: odd sizes, groups, padding that pooling rounds up, normalisations, branches.
NET = "\n".join(
    [
        input_layer("data", (1, 3, 31, 26)),
        'layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" '
        "convolution_param { num_output: 8 kernel_size: 3 stride: 2 bias_term: false } }",
        'layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" }',
        'layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" scale_param { bias_term: true } }',
        'layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }',
        'layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" '
        "pooling_param { pool: MAX kernel_size: 3 stride: 2 } }",
        'layer { name: "norm1" type: "LRN" bottom: "pool1" top: "norm1" lrn_param { local_size: 5 alpha: 0.1 } }',
        'layer { name: "conv2" type: "Convolution" bottom: "norm1" top: "conv2" '
        "convolution_param { num_output: 8 kernel_size: 3 pad: 2 dilation: 2 group: 2 } }",
        'layer { name: "prelu2" type: "PReLU" bottom: "conv2" top: "conv2" }',
        'layer { name: "sum" type: "Eltwise" bottom: "norm1" bottom: "conv2" top: "sum" }',
        'layer { name: "concat" type: "Concat" bottom: "sum" bottom: "conv2" top: "concat" }',
        'layer { name: "pool2" type: "Pooling" bottom: "concat" top: "pool2" '
        "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }",
        'layer { name: "up" type: "Deconvolution" bottom: "pool2" top: "up" '
        "convolution_param { num_output: 16 kernel_size: 4 stride: 2 pad: 1 group: 16 bias_term: false } }",
        'layer { name: "crop" type: "Crop" bottom: "up" bottom: "concat" top: "crop" crop_param { axis: 2 } }',
        'layer { name: "drop" type: "Dropout" bottom: "crop" top: "crop" }',
        'layer { name: "fc" type: "InnerProduct" bottom: "crop" top: "fc" inner_product_param { num_output: 10 } }',
        'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }',
    ]
)


@pytest.fixture(scope="module")
def net() -> Net:
    return with_random_weights(make_net(NET, "TEST"))


def test_there_are_lines_for_each_runtime() -> None:
    assert BLOCKS.keys() == PACKAGES.keys()


@pytest.mark.parametrize("runtime", PACKAGES)
def test_the_scores_are_fcaffes(runtime: str, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in PACKAGES[runtime]:
        try:
            importlib.import_module(package)
        except Exception as problem:  # such as a torchvision that was built for another torch
            pytest.skip(f"{package} is not there ({problem}): it is of the extra runtimes")
    monkeypatch.chdir(tmp_path)
    write_onnx("net.onnx", to_onnx(net, opset=17 if runtime == "PyTorch" else OPSET))
    inputs = random_inputs(net)
    scope = {"images": inputs["data"]}
    exec(BLOCKS[runtime], scope)
    np.testing.assert_allclose(scope["scores"], run_net(net, inputs)["prob"], atol=1e-4)
