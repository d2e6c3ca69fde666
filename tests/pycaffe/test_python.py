"""Python layers: user code that was written for `import caffe`."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fcaffe
from fcaffe.as_caffe import provide_caffe
from fcaffe.errors import NetError
from fcaffe.net import Net
from tests.conftest import make_net
from tests.engine_choice import host

USER_LAYERS = Path(__file__).with_name("user_layers.py")


def python_layer(name: str, layer: str, links: str = "", param_str: str = "", more: str = "") -> str:
    return (
        f'layer {{ name: "{name}" type: "Python" {links} {more} python_param {{ '
        f'module: "tests.pycaffe.user_layers" layer: "{layer}" param_str: "{param_str}" }} }}\n'
    )


def data(*dims: int) -> str:
    shape = " ".join(f"dim: {dim}" for dim in dims)
    return f'layer {{ name: "data" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}\n'


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)


# --- what user code reads and writes ----------------------------------------------------------------------------------

CONVOLUTION = "convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: 'xavier' } }"


def between_convolutions(twice: str, thrice: str) -> str:
    """Convolutions, channels-last, around a split blob, a layer out of place and one in place."""
    return f"""
    force_backward: true
    {data(2, 3, 5, 4)}
    layer {{ name: "before" type: "Convolution" bottom: "x" top: "before" {CONVOLUTION} }}
    {twice}
    {thrice}
    layer {{ name: "after" type: "Convolution" bottom: "twice" top: "after" {CONVOLUTION} }}
    layer {{ name: "beside" type: "Convolution" bottom: "before" top: "beside" {CONVOLUTION} }}
    layer {{ name: "sum" type: "Eltwise" bottom: "after" bottom: "beside" bottom: "twice" top: "sum" }}
    layer {{ name: "loss" type: "Reduction" bottom: "sum" top: "loss" loss_weight: 1
             reduction_param {{ operation: SUMSQ }} }}"""


def power(name: str, links: str, scale: float) -> str:
    return f'layer {{ name: "{name}" type: "Power" {links} power_param {{ scale: {scale} }} }}'


def test_views_of_other_shapes_write_the_blobs() -> None:
    """The user's layer writes `data.reshape(n, -1)[:]` and `diff.ravel()[:]`."""
    twice, thrice = 'bottom: "before" top: "twice"', 'bottom: "twice" top: "twice"'
    ours = make_net(
        between_convolutions(python_layer("a", "Times", twice, "2"), python_layer("b", "Times", thrice, "3"))
    )
    expected = make_net(between_convolutions(power("a", twice, 2), power("b", thrice, 3)))
    for batch in (2, 7, 1):
        for net in (ours, expected):
            net.blob("x").reshape(batch, 3, 5, 4)
            net.blob("x").data[...] = net.blob("x").xp.asarray(values(batch, 3, 5, 4))
            net.forward()
            net.parameters.clear_diffs()
            net.backward()
        for name in ("before", "twice", "after", "sum", "loss"):
            np.testing.assert_allclose(
                host(ours.blob(name).data), host(expected.blob(name).data), rtol=1e-5, atol=1e-5, err_msg=name
            )
        gradient = host(expected.blob("x").diff)
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(host(ours.blob("x").diff), gradient, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(ours.parameters.owned, expected.parameters.owned, strict=True):
            np.testing.assert_allclose(host(mine.blob.diff), host(theirs.blob.diff), rtol=1e-4, atol=1e-4)


def test_parameters_and_what_a_script_sees(tmp_path: Path) -> None:
    prototxt = tmp_path / "net.prototxt"
    prototxt.write_text("force_backward: true\n" + data(2, 3, 4, 4) + python_layer("it", "Shift", LINKS))
    net = fcaffe.Net(str(prototxt), fcaffe.TRAIN)
    layer = net.layers[1]
    assert type(layer).__name__ == "Shift" and isinstance(layer, fcaffe.Layer)
    assert layer is net.layer_dict["it"]
    assert (layer.type, layer.phase, len(layer.blobs)) == ("Python", fcaffe.TRAIN, 1)
    assert [blob.shape for blob in net.params["it"]] == [(1, 3)]
    net.params["it"][0].data[0] = [1, 2, 3]
    net.blobs["x"].data[...] = values(2, 3, 4, 4)
    shifted = values(2, 3, 4, 4) + np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
    np.testing.assert_array_equal(net.forward()["y"], shifted)
    net.blobs["y"].diff[...] = 1
    for times in (1, 2):
        net._backward(1, 0)
        assert net.params["it"][0].diff.tolist() == [[32 * times] * 3]
    assert np.all(net.blobs["x"].diff == 1)
    net.save(str(tmp_path / "it.caffemodel"))
    other = fcaffe.Net(str(prototxt), fcaffe.TEST, weights=str(tmp_path / "it.caffemodel"))
    assert other.params["it"][0].data.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_phase(phase: str) -> None:
    net = make_net(python_layer("it", "Phase", 'top: "y"'), phase)
    net.forward()
    assert net.blob("y").shape == () and net.blob("y").data == getattr(fcaffe, phase)
    assert str(net.layers[0].user_layer.phase) == phase  # as Faster R-CNN's layers look it up in their settings


def test_a_loss_needs_its_weight() -> None:
    inputs = data(2, 3) + data(2, 3).replace('"data"', '"target"').replace('"x"', '"t"')
    links = 'bottom: "x" bottom: "t" top: "loss"'
    for more, expected in (("", 0), ("loss_weight: 2", 6)):
        net = make_net(inputs + python_layer("it", "EuclideanLoss", links, more=more))
        net.blob("x").data[...] = 1
        assert net.forward() == pytest.approx(expected / 2)
        assert net.blob("loss").data.tolist() == [1.5]
        assert net.nodes[-1].needs_backward is False  # nothing learns
    net = make_net(f"force_backward: true {inputs}" + python_layer("it", "EuclideanLoss", links, more="loss_weight: 2"))
    net.blob("x").data[...] = 1
    net.forward()
    net.backward()
    assert np.all(net.blob("x").diff == 1) and np.all(net.blob("t").diff == -1)


TRAINING = """
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 4 dim: 2 dim: 6 dim: 6 } shape { dim: 4 dim: 3 }
  data_filler { type: "gaussian" } data_filler { type: "uniform" } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""


def test_trains_as_with_the_built_in_loss(solver_from) -> None:
    links = 'bottom: "ip" bottom: "t" top: "loss"'
    built_in = f'layer {{ name: "loss" type: "EuclideanLoss" {links} }}'
    users = python_layer("loss", "EuclideanLoss", links, more="loss_weight: 1").replace(
        "param_str", "share_in_parallel: true param_str"
    )
    trained = []
    for loss in (built_in, users):
        solver = solver_from(
            f'net_param {{ {TRAINING} {loss} }} base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 6 '
            "random_seed: 7 weight_decay: 0.01 iter_size: 2"
        )
        solver.step(6)
        trained.append([host(parameter.blob.data) for parameter in solver.net.parameters.owned])
    before = make_net(TRAINING, seed=7).parameters.owned
    for built_in_weights, weights, start in zip(*trained, before, strict=True):
        assert np.abs(weights - host(start.blob.data)).max() > 1e-2
        np.testing.assert_allclose(weights, built_in_weights, rtol=1e-5, atol=1e-6)


# --- finding the user's class -----------------------------------------------------------------------------------------

LINKS = 'bottom: "x" top: "y"'
DOUBLE = """import caffe
from caffe.proto import caffe_pb2
import caffe.proto.caffe_pb2 as pb


class Double(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        assert pb is caffe_pb2 and pb.Datum().channels == 0
        top[0].data[...] = 2 * bottom[0].data
"""


def net_of(module: str, layer: str, param_str: str = "") -> Net:
    return make_net(
        "force_backward: true\n"
        + data(2, 3)
        + f'layer {{ name: "it" type: "Python" {LINKS} python_param {{ module: "{module}" layer: "{layer}" '
        f'param_str: "{param_str}" }} }}'
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, from which Python does not import by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_module_in_the_current_folder(folder: Path) -> None:
    (folder / "doubling.py").write_text(DOUBLE)
    net = net_of("doubling", "Double")
    net.blob("x").data[...] = 4
    net.forward()
    assert np.all(net.blob("y").data == 8)
    (folder / "younger.py").write_text(DOUBLE)
    (folder / "package").mkdir()
    (folder / "package" / "deeper.py").write_text(DOUBLE)
    net_of("younger", "Double")
    net_of("package.deeper", "Double")


def test_module_on_pythonpath_in_a_fresh_process(tmp_path: Path) -> None:
    """Nothing but fcaffe provides caffe there, not even a folder of that name."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "caffe").mkdir()
    (tmp_path / "lib" / "doubling.py").write_text(DOUBLE)
    prototxt = tmp_path / "net.prototxt"
    prototxt.write_text(
        data(2, 3) + f'layer {{ type: "Python" {LINKS} python_param {{ module: "doubling" layer: "Double" }} }}'
    )
    script = "import fcaffe; print(fcaffe.Net('net.prototxt', fcaffe.TEST).forward()['y'].shape)"
    source = str(Path(fcaffe.__file__).parents[1])
    path = os.pathsep.join([source, str(tmp_path / "lib")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "(2, 3)", done.stderr


@pytest.mark.parametrize(
    ("module", "layer", "message"),
    [
        (
            "no_such.module",
            "Double",
            r'there is no Python module "no_such.module" in {folder}, .*add it to PYTHONPATH$',
        ),
        (
            "tests.pycaffe.user_layers",
            "Tims",
            r'{file}.* has no class "Tims"; layers in it: EuclideanLoss, Times, Shift',
        ),
        ("tests.pycaffe.user_layers", "NoLayer", r'"NoLayer" in module .* a class that derives from caffe\.Layer$'),
        ("", "Double", "python_param needs module, a Python module, and layer, a class in it"),
    ],
)
def test_a_class_that_is_not_found(folder: Path, module: str, layer: str, message: str) -> None:
    with pytest.raises(NetError, match=r'layer "it" \(Python\): .*' + message.format(folder=folder, file=USER_LAYERS)):
        net_of(module, layer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nimport not_installed\n", "ModuleNotFoundError: No module named 'not_installed'"),
        ("\nprint 'Python 2'\n", "SyntaxError: "),
        ("import caffe\nimport caffe.cells\n", "ModuleNotFoundError: No module named 'caffe.cells'"),
    ],
)
def test_module_that_cannot_be_imported(folder: Path, text: str, message: str) -> None:
    (folder / "unfit.py").write_text(text)
    with pytest.raises(NetError) as caught:
        net_of("unfit", "Double")
    said = str(caught.value)
    assert said.startswith(f'layer "it" (Python): importing unfit: {message}')
    assert said.endswith(f"({folder / 'unfit.py'}, line 2)")
    assert caught.value.__cause__ is not None


def test_another_caffe_stays_what_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("caffe")
    other.__file__ = "/opt/caffe/python/caffe/__init__.py"
    other.Layer = type("Layer", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "caffe", other)
    provide_caffe()
    assert sys.modules["caffe"] is other
    (folder / "doubling.py").write_text("import caffe\nclass Double(caffe.Layer): pass\n")
    with pytest.raises(NetError, match=r"another caffe \(/opt/caffe/.*__init__.py\), write `import fcaffe as caffe`"):
        net_of("doubling", "Double")
    (folder / "own.py").write_text("import fcaffe as caffe\nclass Double(caffe.Layer):\n  reshape = print\n")
    net_of("own", "Double")


# --- errors in user code ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["setup", "reshape", "forward", "backward"])
def test_an_exception_says_where(method: str) -> None:
    line = next(n for n, text in enumerate(USER_LAYERS.read_text().splitlines(), 1) if "no such key" in text)
    with pytest.raises(NetError) as caught:
        net = net_of("tests.pycaffe.user_layers", "Broken", method)
        net.forward()
        net.backward()
    assert str(caught.value) == (
        f"layer \"it\" (Python): tests.pycaffe.user_layers.Broken.{method}: KeyError: 'no such key' "
        f"({USER_LAYERS}, line {line})"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, KeyError)  # scripts may catch either


def test_a_missing_method_is_named() -> None:
    net = net_of("tests.pycaffe.user_layers", "Forgetful")
    with pytest.raises(NetError, match=r"Forgetful\.forward: .*the class does not define forward\(self, bottom, top\)"):
        net.forward()
