"""What scripts for pycaffe commonly do, by their idioms, against numbers computed without a net."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder of a script, in which `import caffe` finds fcaffe."""
    from fcaffe.as_caffe import provide_caffe

    before = set(sys.modules)
    provide_caffe()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("caffe", "spirals"):
            del sys.modules[name]


def write(file: str, text: str) -> str:
    Path(file).write_text(text)
    return file


CLASSIFIER = """
layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 1 dim: 3 dim: {size} dim: {size} }} }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
         convolution_param {{ num_output: 8 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }}
layer {{ name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param {{ kernel_size: 2 stride: 2 }} }}
{fc6}
layer {{ name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }}
{fc7}
layer {{ name: "prob" type: "Softmax" bottom: "fc7" top: "prob" }}
"""
INNER_PRODUCT = """layer { name: "NAME" type: "InnerProduct" bottom: "BOTTOM" top: "TOP"
  inner_product_param { num_output: NUMBER weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }"""
CONVOLUTION = """layer { name: "NAME" type: "Convolution" bottom: "BOTTOM" top: "TOP"
  convolution_param { num_output: NUMBER kernel_size: SIZE } }"""


def layer(template: str, **words: object) -> str:
    for word, value in words.items():
        template = template.replace(word.upper(), str(value))
    return template


@pytest.mark.usefixtures("folder")
def test_net_surgery_makes_a_classifier_fully_convolutional() -> None:
    """Inner products cast into convolutions classify every place of a larger image in one pass."""
    import caffe

    caffe.set_random_seed(1)
    ip = {"fc6": ("pool1", 16), "fc7": ("fc6", 5)}
    small = {
        name: layer(INNER_PRODUCT, name=name, bottom=bottom, top=name, number=number)
        for name, (bottom, number) in ip.items()
    }
    large = {
        name: layer(CONVOLUTION, name=f"{name}-conv", bottom=bottom, top=name, number=number, size=3 if i == 0 else 1)
        for i, (name, (bottom, number)) in enumerate(ip.items())
    }
    net = caffe.Net(write("net.prototxt", CLASSIFIER.format(size=8, **small)), caffe.TEST)
    net.save("net.caffemodel")
    file = write("full.prototxt", CLASSIFIER.format(size=14, **large))
    full = caffe.Net(file, "net.caffemodel", caffe.TEST)  # by Caffe's older constructor, as in its example
    fc_params = {name: (net.params[name][0].data, net.params[name][1].data) for name in ip}
    conv_params = {name: (full.params[f"{name}-conv"][0].data, full.params[f"{name}-conv"][1].data) for name in ip}
    for name in ip:
        conv_params[name][0].flat = fc_params[name][0].flat
        conv_params[name][1][...] = fc_params[name][1]
    full.save("full.caffemodel")
    full = caffe.Net(file, caffe.TEST, weights="full.caffemodel")

    image = np.random.default_rng(2).standard_normal((3, 14, 14)).astype(np.float32)
    out = full.forward_all(data=np.asarray([image]))
    assert out["prob"].shape == (1, 5, 4, 4)
    for row, column in np.ndindex(4, 4):  # the stride of the net is 2
        window = image[:, 2 * row : 2 * row + 8, 2 * column : 2 * column + 8]
        expected = net.forward(data=window[np.newaxis])["prob"][0]
        np.testing.assert_allclose(out["prob"][0, :, row, column], expected, rtol=1e-4)
