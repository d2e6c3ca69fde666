"""pycaffe's Net: names, live views, partial passes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe.errors import NetError, SnapshotError, UsageError
from fcaffe.pycaffe.net_spec import layers

TEXT = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 5 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.3 } } }
layer { name: "target" type: "Input" top: "target" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "target" top: "loss" loss_weight: 2 }
force_backward: true
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "net.prototxt"
    file.write_text(TEXT)
    return str(file)


@pytest.fixture
def net(path: str) -> caffe.Net:
    caffe.set_random_seed(3)
    made = caffe.Net(path, caffe.TEST)
    made.blobs["data"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 6, 5))
    return made


def test_names_are_pycaffes(net: caffe.Net) -> None:
    assert list(net.blobs) == ["data", "conv", "ip", "target", "loss"]
    assert list(net.params) == ["conv", "ip"]
    assert net._layer_names == ["data", "conv", "relu", "ip", "target", "loss"]
    assert [layer.type for layer in net.layers][:3] == ["Input", "Convolution", "ReLU"]
    assert (net.inputs, net.outputs) == (["data", "target"], ["loss"])
    assert net.top_names["conv"] == ["conv"] and net.bottom_names["loss"] == ["ip", "target"]
    assert net._blob_names == list(net.blobs) and net._blobs[1] is net.blobs["conv"]
    assert (net._inputs, net._outputs) == ([0, 3], [4]) and list(net.layer_dict) == net._layer_names
    assert [net._top_ids(i) for i in range(6)] == [[0], [1], [1], [2], [3], [4]]
    assert [net._bottom_ids(i) for i in range(6)] == [[], [0], [1], [1], [], [2, 3]]
    assert net._blob_loss_weights == [0, 0, 0, 0, 2]
    conv = net.blobs["conv"]
    assert (conv.num, conv.channels, conv.height, conv.width, conv.count) == (2, 4, 4, 3, 96)
    assert [blob.data.shape for blob in net.params["conv"]] == [(4, 3, 3, 3), (4,)]


def test_forward_and_backward_by_name(net: caffe.Net) -> None:
    loss = net._forward(0, 5)
    assert loss == pytest.approx(2 * float(net.blobs["loss"].data), rel=1e-6)
    out = net.forward(end="relu")
    assert list(out) == ["conv"] and np.all(out["conv"] >= 0)
    out = net.forward(data=np.ones((2, 3, 6, 5)), target=np.zeros((2, 3)))
    ip = net.blobs["ip"].data
    assert float(out["loss"]) == pytest.approx(float((ip**2).sum() / 4), rel=1e-5)
    gradients = net.backward()
    assert set(gradients) == {"data", "target"}
    np.testing.assert_allclose(net.blobs["ip"].diff, 2 * ip / 2, rtol=1e-5)


def test_forward_all_takes_any_number_of_samples(path: str) -> None:
    net = caffe.Net(path, caffe.TEST)
    random = np.random.default_rng(1)
    images, targets = random.standard_normal((5, 3, 6, 5)), random.standard_normal((5, 3))
    batches = list(net._batch({"data": images, "target": targets}))
    assert [batch["data"].shape for batch in batches] == [(2, 3, 6, 5)] * 3
    assert not batches[2]["target"][1].any() and np.array_equal(batches[2]["target"][0], targets[4])
    outs = net.forward_all(blobs=["conv", "ip"], data=images, target=targets)
    assert {name: out.shape for name, out in outs.items()} == {"conv": (5, 4, 4, 3), "ip": (5, 3), "loss": (3,)}
    assert {type(out) for out in outs.values()} == {np.ndarray}
    for start in (0, 2):
        pair = slice(start, start + 2)
        one = net.forward(blobs=["ip"], data=images[pair], target=targets[pair])
        np.testing.assert_array_equal(outs["ip"][pair], one["ip"])
        assert outs["loss"][start // 2] == one["loss"]
    assert len(net.forward_all(data=images[:4], target=targets[:4], blobs=["ip"])["ip"]) == 4
    with pytest.raises(UsageError, match=r"as many samples as the others; given were {'data': 5, 'target': 4}"):
        net.forward_all(data=images, target=targets[:4])


def test_forward_backward_all(path: str) -> None:
    net = caffe.Net(path, caffe.TEST)
    random = np.random.default_rng(2)
    images, targets = random.standard_normal((3, 3, 6, 5)), random.standard_normal((3, 3))
    outs, diffs = net.forward_backward_all(blobs=["ip"], diffs=["ip"], data=images, target=targets)
    assert outs["ip"].shape == (3, 3) and outs["loss"].shape == (2,)
    assert {name: diff.shape for name, diff in diffs.items()} == {
        "data": (3, 3, 6, 5),
        "target": (3, 3),
        "ip": (3, 3),
    }
    np.testing.assert_allclose(diffs["ip"], outs["ip"] - targets, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(diffs["target"], -diffs["ip"], rtol=1e-6)


def test_an_array_that_was_taken_once_stays_current(net: caffe.Net) -> None:
    """As long as its blob does not grow: through passes, cleared gradients, shapes of the same size and smaller."""
    conv, ip = net.blobs["conv"], net.blobs["ip"]
    values, gradient = conv.data, net.params["conv"][0].diff
    net.forward()
    net.backward()
    assert gradient.any() and np.array_equal(values, conv.data)
    net.clear_param_diffs()
    assert not gradient.any()
    data = net.blobs["data"].data
    for shape in ((2, 3, 5, 6), (1, 3, 6, 5), (2, 3, 6, 5)):
        net.blobs["data"].reshape(*shape)
        net.blobs["target"].reshape(shape[0], 3)
        net.reshape()
        data.flat[: net.blobs["data"].count] = np.arange(net.blobs["data"].count)
        net.forward()
        assert np.array_equal(net.blobs["data"].data.ravel(), np.arange(net.blobs["data"].count))
        assert np.array_equal(values.ravel()[: conv.count], conv.data.ravel())
    assert ip.data.shape == (2, 3)


def test_both_constructors(net: caffe.Net, path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = str(tmp_path / "small.caffemodel")
    net.save(saved)
    weights = net.params["conv"][0].data
    nets = [
        caffe.Net(network_file=path, phase=caffe.TEST, level=0, stages=None, weights=saved),
        caffe.Net(path, caffe.TEST, 0, ["deploy"], saved),
    ]
    capfd.readouterr()
    nets.append(caffe.Net(path, saved, caffe.TEST))
    warnings = re.findall(r"^W.* (_caffe\.cpp:\d+\] .*)$", capfd.readouterr().err, re.MULTILINE)
    assert warnings == [
        "_caffe.cpp:139] DEPRECATION WARNING - deprecated use of Python interface",
        '_caffe.cpp:140] Use this instead (with the named "weights" parameter):',
        f"_caffe.cpp:142] Net('{path}', 1, weights='{saved}')",
    ]
    assert all(np.array_equal(made.params["conv"][0].data, weights) for made in nets)


STAGES = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
layer { name: "always" type: "ReLU" bottom: "data" top: "always" }
layer { name: "deploy" type: "ReLU" bottom: "data" top: "deploy" include { stage: "deploy" } }
layer { name: "deep" type: "ReLU" bottom: "data" top: "deep" include { min_level: 2 } }
"""


def test_levels_and_stages(tmp_path: Path) -> None:
    file = tmp_path / "stages.prototxt"
    file.write_text(STAGES)
    for given, expected in (({}, set()), ({"stages": ["deploy"]}, {"deploy"}), ({"level": 2}, {"deep"})):
        names = set(caffe.Net(str(file), caffe.TEST, **given).layer_dict)
        assert names & {"deploy", "deep"} == expected


def test_blobs_and_parameters_are_sequences(net: caffe.Net) -> None:
    conv = net.params["conv"]
    assert len(conv) == 2 and [blob.shape for blob in conv[:]] == [(4, 3, 3, 3), (4,)]
    assert conv[-1].shape == (4,) and [blob.count for blob in reversed(conv)] == [4, 108]
    with pytest.raises(IndexError):
        conv[2]
    with pytest.raises(RuntimeError, match="takes no keywords"):
        net.blobs["data"].reshape(num=3)
    net.blobs["data"].reshape(1, 1, 1, 1, 1)
    with pytest.raises(RuntimeError, match="at most 4 axes"):
        print(net.blobs["data"].num)
    with pytest.raises(AttributeError, match="only in GPU mode"):
        print(net.blobs["data"]._gpu_data_ptr)


DROPOUT = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 50 } } }
layer { name: "drop" type: "Dropout" bottom: "data" top: "drop" }
"""


def test_set_rng_chooses_the_stream_of_noise(tmp_path: Path) -> None:
    file = tmp_path / "dropout.prototxt"
    file.write_text(DROPOUT)

    def passes(stream: str, seed: int = 1, number: int = 2) -> list[np.ndarray]:
        caffe.set_random_seed(seed)
        caffe.set_rng(stream)
        net = caffe.Net(str(file), caffe.TRAIN)
        net.blobs["data"].data[...] = 1
        return [net.forward()["drop"].copy() for _ in range(number)]

    try:
        first, second = passes("caffe")
        assert np.array_equal(first, passes("caffe")[0]) and not np.array_equal(first, second)
        assert np.array_equal(passes("counter"), passes("counter"))
        several = np.array([passes("counter", seed, 8) for seed in (1, 2)]).reshape(16, -1)
        assert len(np.unique(several, axis=0)) == 16 and set(np.unique(several)) == {0, 2}
        with pytest.raises(UsageError, match="'caffe' or 'counter'"):
            caffe.set_rng("mersenne")
    finally:
        caffe.set_rng("caffe")


def test_errors_name_the_thing_and_are_of_the_types_that_scripts_for_pycaffe_catch(net: caffe.Net, path: str) -> None:
    for call, kinds, words in (
        (lambda: net.copy_from("missing.caffemodel"), (SnapshotError, RuntimeError), r"missing\.caffemodel does not"),
        (lambda: caffe.Net("missing.prototxt", caffe.TEST), (RuntimeError,), r"missing\.prototxt"),
        (lambda: caffe.get_solver("missing.prototxt"), (RuntimeError,), r"missing\.prototxt"),
        (lambda: caffe.Net(path, caffe.TEST, weights="missing"), (RuntimeError,), "missing"),
        (lambda: caffe.Net(path), (TypeError, UsageError), "needs a phase, .*; given was None"),
        (lambda: net.forward(end="conv9"), (ValueError, UsageError), 'no layer "conv9"; its layers are data, conv'),
        (lambda: net.forward(blobs=["conv9"]), (KeyError,), "conv9"),
        (lambda: net.forward(images=np.zeros((2, 3))), (UsageError,), "inputs are"),
        (lambda: net.forward(data=np.zeros((3, 3, 6, 5)), target=np.zeros((2, 3))), (UsageError,), "not batch sized"),
        (lambda: net.set_input_arrays(np.zeros((2, 3, 6, 5)), np.zeros(2)), (NetError,), "not a MemoryData layer"),
    ):
        for kind in kinds:
            with pytest.raises(kind, match=words):
                call()


def spec() -> caffe.NetSpec:
    n = caffe.NetSpec()
    n.data, n.label = layers.DummyData(shape=[{"dim": [2, 3]}, {"dim": [2, 2]}], ntop=2, data_filler={"value": 2})
    n.ip = layers.InnerProduct(n.data, num_output=2, weight_filler={"type": "xavier"})
    n.loss = layers.EuclideanLoss(n.ip, n.label)
    return n


def test_nets_and_solvers_from_paths_texts_messages_and_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message, losses = spec().to_proto(), []
    solver = caffe.proto.caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", net_param=message, random_seed=3)
    (tmp_path / "n").write_text(str(message))
    for source in ("n", tmp_path / "n", str(message), " ".join(str(message).split("\n")), message, spec()):
        caffe.set_random_seed(3)
        losses.append(float(caffe.Net(source, caffe.TEST).forward()["loss"]))
    by_name = 'base_lr: 0.1 lr_policy: "fixed" random_seed: 3 net: "n"'
    for kind, source in product((caffe.get_solver, caffe.SGDSolver, caffe.Solver), (str(solver), by_name, solver)):
        trained = kind(source)
        trained.step(1)
        losses.append(float(trained.net.blobs["loss"].data))
    trained.snapshot()
    assert len(set(losses)) == 1 and (tmp_path / "solver_iter_1.caffemodel").exists()
    assert not message.HasField("state") and not solver.HasField("snapshot_prefix"), "unchanged"
    for make, wrongs in ((lambda x: caffe.Net(x, caffe.TEST), (None, b"n", solver)), (caffe.get_solver, (3, message))):
        for wrong in wrongs:
            with pytest.raises(TypeError, match=f"a prototxt's path or text, or a .*, not a {type(wrong).__name__}"):
                make(wrong)
    with pytest.raises(RuntimeError, match=r"net:\d+:1: .*foo"):
        caffe.Net(f"{message}foo: 3", caffe.TEST)


def test_several_memory_data_layers_by_name() -> None:
    layer = 'layer {{ name: "{0}" type: "MemoryData" top: "{0}" top: "{0}_y" memory_data_param {{ {1} }} }}'
    size = "batch_size: 2 channels: 1 height: 1 width: 3"
    net = caffe.Net(layer.format("a", size) + layer.format("b", size), caffe.TEST)
    given = np.arange(12, dtype=np.float32).reshape(4, 1, 1, 3)
    net.set_input_arrays(given, np.zeros(4))
    net.set_input_arrays(-given, np.ones(4), layer="b")
    for part in (slice(2), slice(2, 4), slice(2)):
        out = net.forward()
        assert np.array_equal(out["a"], given[part]) and np.array_equal(out["b"], -given[part])
        assert out["a_y"].sum() == 0 and out["b_y"].sum() == 2
    with pytest.raises(NetError, match='"c" is not a MemoryData layer; the net has a, b'):
        net.set_input_arrays(given, np.zeros(4), "c")
    with pytest.raises(NetError, match=r'"b".*takes'):
        net.set_input_arrays([["a"]], None, "b")
