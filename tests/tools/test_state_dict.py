"""State dicts of PyTorch, by torchvision's names; and our safetensors files, read by the library of the format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import SnapshotError, UsageError
from fcaffe.model_files import read_model, write_model
from fcaffe.net import Net
from fcaffe.net.build.filter import filter_net
from fcaffe.net.weights import load_weights, to_model
from fcaffe.onnx.check import random_inputs, run_net
from fcaffe.onnx.convert import convert
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.tools.nets import read_net_for
from fcaffe.tools.shapes import hollow_net
from fcaffe.tools.state_dict import differences, state_dict_of, torch_names
from tests.conftest import GOLDEN, make_net
from tests.tools.onnx_nets import input_layer, with_random_weights

library = pytest.importorskip("safetensors.numpy")


def convolution(name: str, bottom: str, outputs: int, bias: bool = True, kernel: int = 1) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ '
        f"num_output: {outputs} kernel_size: {kernel} pad: {kernel // 2} bias_term: {str(bias).lower()} }} }}"
    )


def norm(name: str, blob: str) -> str:
    return (
        f'layer {{ name: "bn_{name}" type: "BatchNorm" bottom: "{blob}" top: "{blob}" }}\n'
        f'layer {{ name: "scale_{name}" type: "Scale" bottom: "{blob}" top: "{blob}" '
        "scale_param { bias_term: true } }"
    )


MODELS = Path(__file__).parents[2] / "models"
DATA = input_layer("data", (2, 3, 4, 5))
FC = 'layer {{ name: "fc" type: "InnerProduct" bottom: "{}" top: "fc" inner_product_param {{ num_output: 3 }} }}'

RELU = 'layer {{ name: "relu_{0}" type: "ReLU" bottom: "{0}" top: "{0}" }}'
POOL = 'layer {{ name: "pool" type: "Pooling" bottom: "{}" top: "pool" pooling_param {{ kernel_size: 3 stride: 1 }} }}'
NETS = {
    "vgg": [
        convolution("c1", "data", 4, kernel=3),
        norm("c1", "c1"),
        POOL.format("c1"),
        convolution("c2", "pool", 4, kernel=3),
        RELU.format("c2"),
        FC.format("c2"),
    ],
    "squeezenet": [
        convolution("stem", "data", 4),
        POOL.format("stem"),
        convolution("squeeze", "pool", 4),
        convolution("one", "squeeze", 4),
        convolution("three", "squeeze", 4, kernel=3),
        'layer { name: "cat" type: "Concat" bottom: "one" bottom: "three" top: "cat" }',
        convolution("last", "cat", 2),
    ],
    # A bias and an eps that torchvision's nets do not have.
    "resnet": [
        convolution("stem", "data", 4),
        norm("stem", "stem"),
        POOL.format("stem"),
        convolution("c1", "pool", 5, bias=False),
        norm("c1", "c1"),
        RELU.format("c1"),
        convolution("c2", "c1", 4, bias=False),
        norm("c2", "c2").replace("}", "batch_norm_param { eps: 0.001 } }", 1),
        'layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "c2" top: "sum" }',
        FC.format("sum"),
    ],
}
MODULES = {
    "vgg": {"features.0", "features.1", "features.4", "classifier.0"},
    "squeezenet": {
        "features.0",
        *(f"features.3.{part}" for part in ("squeeze", "expand1x1", "expand3x3")),
        "classifier.1",
    },
    "resnet": {"conv1", "bn1", "fc", *(f"layer1.0.{kind}{n}" for kind in ("conv", "bn") for n in (1, 2))},
}


def made(kind: str) -> tuple[Net, str]:
    text = "\n".join([DATA, *NETS[kind]])
    return with_random_weights(make_net(text, "TEST")), text


@pytest.mark.parametrize("kind", NETS)
def test_a_state_dict_and_back(kind: str, tmp_path: Path) -> None:
    net, text = made(kind)
    (tmp_path / "net.prototxt").write_text(text)
    write_model(tmp_path / "net.caffemodel", to_model(net))
    files = [str(tmp_path / name) for name in ("net.caffemodel", "torch.safetensors", "back.caffemodel")]
    convert(files[0], files[1], str(tmp_path / "net.prototxt"), to="torchvision")
    found = library.load_file(files[1])
    assert {name.rpartition(".")[0] for name in found} == MODULES[kind]
    blobs = {node.name: [np.array(blob.data) for blob in node.layer.blobs] for node in net.nodes}
    if kind == "resnet":
        assert "conv1.bias" not in found and found["bn1.num_batches_tracked"] == 0
        for module, layer, eps in (("bn1", "bn_stem", 1e-5), ("layer1.0.bn2", "bn_c2", 1e-3)):
            variance = blobs[layer][1] / blobs[layer][2]
            np.testing.assert_allclose(found[f"{module}.running_var"] + 1e-5, variance + eps, rtol=1e-6)
        np.testing.assert_array_equal(found["layer1.0.conv2.weight"], blobs["c2"][0])
        np.testing.assert_array_equal(found["layer1.0.bn1.weight"], blobs["scale_c1"][0])
    convert(files[1], files[2], str(tmp_path / "net.prototxt"))
    other, inputs = make_net(text, "TEST"), random_inputs(net)
    load_weights(other, files[2])
    for name, values in run_net(net, inputs).items():
        np.testing.assert_allclose(run_net(other, inputs)[name], values, rtol=1e-4, atol=1e-5)


def torchvisions(kind: str) -> set[str]:
    """The modules with weights of torchvision's nets."""
    if kind.startswith("vgg"):
        places = {"vgg16": "0 2 5 7 10 12 14 17 19 21 24 26 28", "vgg19": "0 2 5 7 10 12 14 16 19 21 23 25 28 30 32 34"}
        return {f"features.{n}" for n in places[kind].split()} | {f"classifier.{n}" for n in (0, 3, 6)}
    if kind.startswith("squeezenet"):
        fires = {"squeezenet_v1.0": (3, 4, 5, 7, 8, 9, 10, 12), "squeezenet_v1.1": (3, 4, 6, 7, 9, 10, 11, 12)}[kind]
        parts = {f"features.{n}.{part}" for n in fires for part in ("squeeze", "expand1x1", "expand3x3")}
        return {"features.0", "classifier.1"} | parts
    blocks = [f"layer{stage + 1}.{n}" for stage, count in enumerate((3, 4, 6, 3)) for n in range(count)]
    inside = {f"{block}.{part}{n}" for block in blocks for part in ("conv", "bn") for n in (1, 2, 3)}
    return (
        {"conv1", "bn1", "fc"} | inside | {f"layer{stage}.0.downsample.{n}" for stage in (1, 2, 3, 4) for n in (0, 1)}
    )


@pytest.mark.parametrize("kind", ["vgg16", "vgg19", "squeezenet_v1.0", "squeezenet_v1.1", "resnet50"])
def test_our_models_have_torchvisions_names(kind: str) -> None:
    path = str(MODELS / kind / "deploy.prototxt")
    net, _ = hollow_net(filter_net(read_net_for(path, pb.TEST)), path)
    assert set(torch_names(net).values()) == torchvisions(kind)


@pytest.mark.parametrize("kind", ["alexnet", "caffenet", "googlenet", "lenet", "nin_imagenet"])
def test_other_nets_have_no_names_there(kind: str) -> None:
    path = str(MODELS / kind / "deploy.prototxt")
    net, _ = hollow_net(filter_net(read_net_for(path, pb.TEST)), path)
    with pytest.raises(UsageError, match="AlexNet and GoogLeNet are other nets than Caffe's"):
        torch_names(net)


def test_where_torchvisions_nets_compute_otherwise() -> None:
    path = str(MODELS / "resnet50" / "deploy.prototxt")
    net, _ = hollow_net(filter_net(read_net_for(path, pb.TEST)), path)
    assert [text.split(":")[0] for text in differences(net)] == [
        "strides in 1 x 1 convolutions, such as res3a_branch2a",
        "no padding in pool1",
    ]


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    net, text = made("vgg")
    (tmp_path / "net.prototxt").write_text(text)
    tensors = state_dict_of(net)
    wrong = [
        ({k: v for k, v in tensors.items() if k != "features.4.bias"}, r'features.4.bias is missing, and layer "c2"'),
        (tensors | {"features.4.weight": tensors["features.4.bias"]}, r"features.4.weight has the shape \(4,\)"),
        (tensors | {"features.6.weight": tensors["features.4.bias"]}, "the net has no layer for features.6.weight"),
    ]
    for values, message in wrong:
        library.save_file(values, tmp_path / "torch.safetensors")
        with pytest.raises(SnapshotError, match=message):
            convert(str(tmp_path / "torch.safetensors"), str(tmp_path / "x.h5"), str(tmp_path / "net.prototxt"))
    with pytest.raises(SnapshotError, match="If it is a state dict of PyTorch, convert it"):
        read_model(tmp_path / "torch.safetensors")


def test_the_formats_own_library_reads_our_files(tmp_path: Path) -> None:
    model = read_model(GOLDEN / "interop" / "model_iter_8.caffemodel")
    write_model(tmp_path / "x.safetensors", model)
    found = library.load_file(tmp_path / "x.safetensors")
    blobs = {f"{layer.name}/{index}": blob for layer in model.layers for index, blob in enumerate(layer.blobs)}
    assert found.keys() == blobs.keys()
    for name, blob in blobs.items():
        np.testing.assert_array_equal(found[name], blob.data)


@pytest.mark.parametrize("cut", [4, 40, 300, -1])
def test_damaged_files(cut: int, tmp_path: Path) -> None:
    net, _ = made("vgg")
    write_model(tmp_path / "x.safetensors", to_model(net))
    content = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(content[:cut])
    with pytest.raises(SnapshotError, match=r"x\.safetensors"):
        read_model(tmp_path / "x.safetensors")
