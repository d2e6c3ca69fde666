"""`fcaffe compress`: layers in two steps, exact where the rank is full, with fewer multiply-adds where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fcaffe.model_files import write_model
from fcaffe.net import Net
from fcaffe.net.weights import load_weights, to_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from tests.cli.conftest import Run
from tests.conftest import make_net
from tests.tools.onnx_nets import input_layer, with_random_weights

pytest.importorskip("onnx")

from fcaffe.onnx.check import random_inputs, run_net

NET = "\n".join(
    [
        input_layer("data", (2, 3, 9, 8)),
        'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 8 '
        "kernel_h: 3 kernel_w: 2 stride: 2 pad_h: 1 pad_w: 0 dilation: 1 } }",
        'layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }',
        'layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 24 } }',
    ]
)


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Net:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    made = with_random_weights(make_net(NET, "TEST"))
    weights = next(node for node in made.nodes if node.name == "ip").layer.blobs[0].data
    weights[...] = np.outer(np.arange(1, 25), weights[0]) + np.outer(np.arange(24)[::-1], weights[1])  # of rank 2
    write_model("net.caffemodel", to_model(made))
    return made


FILES = ["net.prototxt", "net.caffemodel", "new.prototxt", "new.caffemodel"]


def outputs() -> dict[str, np.ndarray]:
    made = make_net(Path("new.prototxt").read_text(), "TEST")
    load_weights(made, "new.caffemodel")
    return run_net(made, random_inputs(made))


def macs(run: Run, path: str) -> int:
    found: int = json.loads(run("summary", path, "--phase", "TEST", "--json").out)["macs"]
    return found


def test_whole_ranks_change_nothing(run: Run, net: Net) -> None:
    made = run("compress", *FILES, "--rank", "conv=8", "--rank", "ip=2")
    assert made.code == 0, made.err
    before = run_net(net, random_inputs(net))["ip"]
    np.testing.assert_allclose(outputs()["ip"], before, rtol=1e-4, atol=1e-4 * np.abs(before).max())


def test_energy_chooses_ranks_that_save_work(run: Run, net: Net) -> None:
    made = run("compress", *FILES, "--energy", "0.9999")
    assert made.code == 0 and "ip" in made.out and "conv" not in made.out, "only ip has small singular values"
    before = run_net(net, random_inputs(net))["ip"]
    assert np.linalg.norm(outputs()["ip"] - before) <= 0.05 * np.linalg.norm(before)
    assert macs(run, "new.prototxt") < macs(run, "net.prototxt") / 2


@pytest.mark.parametrize(
    ("old", "new"),
    [("num_output: 24", "num_output: 7"), ("num_output: 8", "num_output: 4"), ("kernel_h: 3", "kernel_h: 5")],
)
def test_a_model_of_another_net(old: str, new: str, run: Run) -> None:
    Path("net.prototxt").write_text(NET.replace(old, new))
    assert "which the net describes otherwise" in run("compress", *FILES).fatal
    assert not Path("new.prototxt").exists()


def test_weights_that_are_no_numbers(run: Run, net: Net) -> None:
    net.layers[1].blobs[0].data[0, 0, 0, 0] = np.nan
    write_model("net.caffemodel", to_model(net))
    assert 'weights of layer "conv" that are not finite' in run("compress", *FILES).fatal


def test_the_second_layer_has_the_loss_and_the_first_the_bottom(run: Run) -> None:
    Path("net.prototxt").write_text(NET.replace('top: "ip"', 'top: "ip" loss_weight: 0.5 propagate_down: false'))
    assert run("compress", *FILES, "--rank", "ip=2").code == 0
    param = parse_text(Path("new.prototxt").read_text(), pb.NetParameter)
    first, second = (layer for layer in param.layer if layer.name.startswith("ip_"))
    assert (list(first.loss_weight), list(first.propagate_down)) == ([], [False])
    assert (list(second.loss_weight), list(second.propagate_down)) == ([0.5], [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "relu=2"], "called relu"),
        (["--rank", "ip"], "--rank takes LAYER=N"),
        (["--rank", "ip=99"], "is from 1 to 24, not 99"),
        (["--energy", "2"], "--energy is a share above 0 and up to 1"),
    ],
)
def test_what_is_refused(words: list[str], message: str, run: Run) -> None:
    assert message in run("compress", *FILES, *words).fatal
    assert not Path("new.prototxt").exists()
