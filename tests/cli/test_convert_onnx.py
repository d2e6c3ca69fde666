"""`fcaffe convert` to and from ONNX, and `fcaffe merge-bn`, as users call them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.model_files import write_model
from fcaffe.net.weights import to_model
from fcaffe.onnx.check_conversion import compare
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, write_binary
from tests.cli.conftest import Run
from tests.conftest import make_net
from tests.tools.onnx_graphs import model_of
from tests.tools.onnx_nets import input_layer, with_random_weights

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


NET = "\n".join(
    [
        'name: "small"',
        input_layer("data", (2, 3, 9, 12)),
        'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { name: "w" } '
        "convolution_param { num_output: 3 kernel_size: 3 pad: 1 bias_term: false } }",
        'layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }',
        'layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }',
        'layer { name: "again" type: "Convolution" bottom: "conv" top: "again" param { name: "w" } '
        "convolution_param { num_output: 3 kernel_size: 3 bias_term: false } }",
        'layer { name: "pool" type: "Pooling" bottom: "again" top: "pool" '
        "pooling_param { pool: AVE kernel_size: 3 stride: 2 } }",
        'layer { name: "prelu" type: "PReLU" bottom: "pool" top: "pool" }',
        'layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 4 } }',
    ]
)


def saved(model: Any, name: str = "torch.onnx") -> Any:
    Path(name).write_bytes(model.SerializeToString())
    return model


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    model = to_model(with_random_weights(make_net(NET, "TEST")))
    for layer in model.layers:
        if layer.name == "ip":  # as an old file has it
            layer.blobs[0].shape, layer.blobs[0].legacy = (1, 1, *layer.blobs[0].shape), True
            layer.blobs[0].data = layer.blobs[0].data.reshape(layer.blobs[0].shape)
    write_model("net.caffemodel", model)
    write_binary("mean.binaryproto", pb.BlobProto(shape=pb.BlobShape(dim=[1]), data=[1]))


def test_there_and_back(run: Run) -> None:
    made = run("convert", "net.caffemodel", "net.onnx", "--model", "net.prototxt", "--check")
    assert made.code == 0, made.err
    assert made.out.startswith("net.onnx: model from net.caffemodel\nrandom values 0: largest difference ")
    for words in [], ["--model", "net.prototxt"]:
        back = run("convert", "net.onnx", "back.caffemodel", *words, "--check")
        assert back.code == 0 and "largest difference" in back.out, back.err
        assert all(one.largest < 1e-5 for one in compare("net.caffemodel", "back.caffemodel", "net.prototxt").values())


def test_preprocessing_and_folding(run: Run) -> None:
    np.savez("pictures.npz", data=np.random.default_rng(1).uniform(0, 255, (2, 3, 9, 12)))
    words = ["--mean", "104,117,123", "--scale", "0.017", "--swap-channels", "--fold-bn", "--input", "pictures.npz"]
    made = run("convert", "net.caffemodel", "net.onnx", "--model", "net.prototxt", "--check", *words)
    assert made.code == 0 and "pictures.npz: largest difference" in made.out, made.err
    kinds = [node.op_type for node in onnx.load("net.onnx").graph.node]
    assert kinds[:6] == ["Gather", "Sub", "Mul", "Conv", "Mul", "Add"], "shared weights take nothing in"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("net.caffemodel x.onnx", "give the deploy prototxt of net.caffemodel as --model"),
        ("net.caffemodel x.h5 --scale 2", "are for ONNX files, not for x.h5"),
        ("net.caffemodel x.h5 --input a.npy", "--input is for --check"),
        ("net.caffemodel x.onnx --model net.prototxt --mean 1,2", "a mean of shape (2,) does not fit"),
        ("net.caffemodel x.onnx --model net.prototxt --mean 1,x", "--mean takes a file, or a number"),
        ("net.caffemodel x.onnx --model net.prototxt --opset 9", "version 17 to 21, not 9"),
        ("net.prototxt x.onnx", "is a net, which is written to a file that ends in .prototxt"),
        ("none.onnx x.caffemodel", "none.onnx does not exist"),
        ("net.caffemodel x.npz --check --input a.npy", "--input is for a net"),
        ("net.caffemodel x.prototxt --check", "--check compares models, and x.prototxt is a net"),
        ("mean.binaryproto x.npy --check", "--check compares models, and mean.binaryproto is a mean"),
        ("erf.onnx x.prototxt x.caffemodel --mean 1", "with WEIGHTS the net is from IN"),
        ("erf.onnx x.prototxt x.caffemodel --input-shape 2,3", "NAME:N,C,H,W"),
        ("erf.onnx x.prototxt x.caffemodel --input-shape x:4,3", "dynamic axes"),
        ("erf.onnx x.prototxt x.caffemodel", 'node "Erf_0" (Erf): cannot be converted to Caffe: Caffe has no error'),
        ("erf.onnx x.caffemodel --forks", "for a net from an .onnx file"),
        ("erf.onnx x.caffemodel", 'node "Erf_0" (Erf): cannot be converted to Caffe'),
        ("net.caffemodel x.prototxt x.caffemodel", "IN.onnx OUT.prototxt WEIGHTS, in this order; not net.caffemodel"),
        ("erf.onnx x.caffemodel x.prototxt", "IN.onnx OUT.prototxt WEIGHTS, in this order; not erf.onnx x.caffe"),
        ("x.prototxt erf.onnx x.caffemodel", "IN.onnx OUT.prototxt WEIGHTS, in this order; not x.prototxt erf.o"),
        ("r18.pth net.prototxt x.caffemodel", "export the model by torch.onnx.export"),
        ("r18.pt x.caffemodel --model net.prototxt", "export the model by torch.onnx.export"),
        ("det.onnx x.prototxt x.caffemodel", "or export only the module before it"),
    ],
)
def test_errors_are_one_line(words: str, message: str, run: Run) -> None:
    saved(model_of("y = Erf (x)", {"x": (2, 3)}), "erf.onnx")
    saved(model_of("y = Det (x)", {"x": (1, 3, 3)}), "det.onnx")
    assert message in run("convert", *words.split()).fatal
    assert not list(Path().glob("x.*"))


def test_merge_bn(run: Run) -> None:
    Path("net.prototxt").write_text(NET.replace('param { name: "w" }', ""))
    made = run("merge-bn", "net.prototxt", "net.caffemodel", "new.prototxt", "new.caffemodel")
    assert made.out == "conv has taken in norm, scale\nnew.prototxt: 2 layers fewer than net.prototxt\n"
    assert "BatchNorm" not in Path("new.prototxt").read_text()
    counts = [
        json.loads(run("summary", path, "--phase", "TEST", "--json").out)["macs"]
        for path in ("net.prototxt", "new.prototxt")
    ]
    assert counts[0] - counts[1] == 2 * 2 * 3 * 9 * 12, "one for each value of norm, and of scale"
    assert run("convert", "new.caffemodel", "new.onnx", "--model", "new.prototxt", "--check").code == 0


def test_weights_by_name(run: Run) -> None:
    """Other attributes than the layer has get a warning."""
    run("convert", "net.caffemodel", "net.onnx", "--model", "net.prototxt")
    words = ["convert", "net.onnx", "x.caffemodel", "--model", "net.prototxt"]
    made = run(*words, "--check")
    assert made.code == 0 and "random values 1" in made.out, made.err
    assert "set it in the net" not in made.err
    Path("net.prototxt").write_text(NET.replace('"BatchNorm"', '"BatchNorm" batch_norm_param { eps: 0.01 }'))
    assert "has epsilon" in run(*words).err
    missing = NET.replace('name: "ip"', 'name: "other"')
    Path("net.prototxt").write_text(missing.replace('top: "ip"', 'top: "other"'))
    assert 'for layer "other" (InnerProduct): there is no node' in run(*words).fatal


def test_equal_values_say_nothing(run: Run) -> None:
    saved(model_of("a = Abs (x) n = Neg (a) y = Relu (n)", {"x": (2, 3)}))
    assert "all values of y are 0" in run("convert", "torch.onnx", "n.prototxt", "n.npz", "--check").err


def test_a_foreign_model_becomes_a_net_that_trains(run: Run) -> None:
    """From ONNX to a prototxt and a caffemodel, with a check, and on to a training from these weights."""
    model = model_of(
        "c = Conv <pads = [1, 1, 0, 0]> (x, w) n = BatchNormalization (c, s, s, s, v) g = Gelu (n) "
        "p = GlobalAveragePool (g) f = Flatten (p) y = Gemm (f, k)",
        {"x": (2, 3, 8, 8)},
        {"w": (4, 3, 3, 3), "s": (4,), "v": (4,), "k": (4, 5)},
        20,
    )
    model.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(np.ones(4, np.float32), "v"))
    Path("theirs.onnx").write_bytes(model.SerializeToString())
    made = run("convert", "theirs.onnx", "deploy.prototxt", "theirs.caffemodel", "--check", "--merge-bn")
    assert made.code == 0, made.err
    assert re.fullmatch(
        r"deploy.prototxt, theirs.caffemodel: \d+ layers from theirs.onnx\n"
        r"y: largest difference [\d.e-]+, of values up to [\d.]+\n",
        made.out,
    )
    text = Path("deploy.prototxt").read_text()
    assert "BatchNorm" not in text
    more = (
        'layer { name: "label" type: "DummyData" top: "label" dummy_data_param { shape { dim: 2 } } } '
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }'
    )
    train = text.replace('type: "Input"', 'type: "DummyData"').replace("input_param", "dummy_data_param")
    Path("train.prototxt").write_text(train + more)
    Path("solver.prototxt").write_text('net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 3 display: 1')
    trained = run("train", "--solver", "solver.prototxt", "--weights", "theirs.caffemodel")
    assert trained.code == 0, trained.err
    losses = [float(loss) for loss in re.findall(r"\bloss = ([\d.e-]+)", trained.err)]
    assert losses[-1] < losses[0]


def test_forks_read_ceil_mode(run: Run) -> None:
    body = "a = Conv <strides = [2, 2]> (x, w) b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a) y = Relu (b)"
    saved(model_of(body, {"x": (1, 3, 13, 13)}, {"w": (4, 3, 1, 1)}))
    assert run("convert", "torch.onnx", "forks.prototxt", "forks.caffemodel", "--forks", "--check").code == 0
    assert run("convert", "torch.onnx", "bvlc.prototxt", "bvlc.caffemodel", "--check").code == 0
    texts = [Path(f"{name}.prototxt").read_text() for name in ("forks", "bvlc")]
    assert ["ceil_mode: false" in text for text in texts] == [True, False]
    assert ["round_mode: FLOOR" in text for text in texts] == [False, True]
    assert Path("forks.caffemodel").read_bytes() == Path("bvlc.caffemodel").read_bytes()


def test_float16_is_compared_as_onnx_runtime_computes_it(run: Run) -> None:
    model = model_of("a = Conv (x, w) y = Relu (a)", {"x": (1, 64, 8, 8)}, {"w": (8, 64, 3, 3)})
    half = onnx.TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = half
    saved(model)
    done = run("convert", "torch.onnx", "half.prototxt", "half.caffemodel", "--check")
    assert done.code == 0, done.err
    assert float(re.search(r"largest difference (\S+),", done.out)[1]) > 0, "they do not compute alike"


def test_layers_have_the_names_of_modules_not_of_numbered_nodes(run: Run) -> None:
    model = model_of(
        "a = Conv (x, w) b = Relu (a) y = Conv (b, v)", {"x": (1, 3, 8, 8)}, {"w": (4, 3, 1, 1), "v": (2, 4, 1, 1)}
    )
    first, relu, second = model.graph.node
    first.name, relu.name, second.name = "node_Conv_12", "node_relu", "own"
    for node, tensor, name in zip((first, second), model.graph.initializer, ("block.0.conv", "other"), strict=True):
        node.input[1] = tensor.name = f"{name}.weight"
    saved(model)
    assert run("convert", "torch.onnx", "net2.prototxt", "net2.caffemodel", "--check").code == 0
    names = [layer.name for layer in read_net("net2.prototxt").layer]
    assert names == ["x", "block.0.conv", "node_relu", "own"]
