"""The nets and solvers under models/: complete, consistent, and with the names and sizes of the published models."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import log
from fcaffe.engines import cpu_engine
from fcaffe.net import Context, Net
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import read_net, read_solver
from fcaffe.rng import CaffeRandom
from fcaffe.solvers import Solver

ROOT = Path(__file__).resolve().parents[2]
DETECTOR, READER = ROOT / "models" / "ssd_shapes", ROOT / "models" / "crnn_digits"
ALL = sorted(folder for folder in (ROOT / "models").iterdir() if (folder / "solver.prototxt").exists())
FOLDERS = [folder for folder in ALL if folder not in (DETECTOR, READER)]  # of nets that classify
NETS = [path for folder in FOLDERS for path in sorted(folder.glob("*.prototxt")) if "solver" not in path.name]
SOLVERS = [path for folder in FOLDERS for path in sorted(folder.glob("*solver*.prototxt"))]
NAMES = [folder.name for folder in FOLDERS]

# Elements of all parameter blobs of deploy.prototxt, BatchNorm's three included.
PARAMETERS = {
    "alexnet": 60_965_224,
    "caffenet": 60_965_224,
    "cifar10_quick": 145_578,
    "crnn_digits": 109_195,
    "digits": 35_914,
    "googlenet": 6_998_552,
    "lenet": 431_080,
    "nin_cifar10": 966_986,
    "nin_imagenet": 7_595_176,
    "resnet50": 25_610_269,
    "ssd_shapes": 258_944,
    "squeezenet_v1.0": 1_248_424,
    "squeezenet_v1.1": 1_235_496,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}

TEST_IMAGES = {"digits": 360, "mnist": 10_000, "cifar10": 10_000, "ilsvrc12": 50_000}  # by folder of the LMDB

# Checksums of the names, types and tops of the published models' layers, by which published weights load.
LAYERS = {
    "alexnet": "710571e9",
    "caffenet": "adf644ef",
    "cifar10_quick": "34ce6897",
    "digits": "6ff98f51",
    "googlenet": "a1e820a1",
    "lenet": "85cad895",
    "nin_cifar10": "4ebe0743",
    "nin_imagenet": "9a5824d1",
    "resnet50": "77b197ef",
    "squeezenet_v1.0": "92f06122",
    "squeezenet_v1.1": "f62ee199",
    "vgg16": "43e7a618",
    "vgg19": "e23ef84b",
}


def label(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def in_phase(net: Any, phase: int) -> list[Any]:
    return [layer for layer in net.layer if not layer.include or any(rule.phase == phase for rule in layer.include)]


def outputs(layer: Any) -> int | None:
    return {"Convolution": layer.convolution_param, "InnerProduct": layer.inner_product_param}[layer.type].num_output


def without_fillers(layer: Any) -> Any:
    """What deploy and train_val must have in common: all but how weights start and learn."""
    same = type(layer)()
    same.CopyFrom(layer)
    del same.param[:]
    same.ClearField("batch_norm_param")
    for name in ("convolution_param", "inner_product_param"):
        if same.HasField(name):
            for filler in ("weight_filler", "bias_filler"):
                getattr(same, name).ClearField(filler)
    return same


def test_every_model_is_known() -> None:
    assert sorted(PARAMETERS) == [folder.name for folder in ALL]
    assert sorted(LAYERS) == NAMES


@pytest.mark.parametrize("folder", ALL, ids=[folder.name for folder in ALL])
def test_folder_is_complete(folder: Path) -> None:
    for name in ("train_val.prototxt", "deploy.prototxt", "solver.prototxt", "readme.md"):
        assert (folder / name).is_file()
    readme = (folder / "readme.md").read_text(encoding="utf-8")
    assert f"fcaffe train --solver models/{folder.name}/" in readme
    assert f"{PARAMETERS[folder.name]:,} parameters" in readme
    table = (ROOT / "models" / "readme.md").read_text(encoding="utf-8")
    assert f"[{folder.name}]({folder.name}/readme.md) | {PARAMETERS[folder.name]:,} |" in table


@pytest.mark.parametrize("path", NETS, ids=label)
@pytest.mark.parametrize("phase", [pb.TRAIN, pb.TEST], ids=["TRAIN", "TEST"])
def test_net_is_connected(path: Path, phase: int) -> None:
    """In each phase every bottom is a top of an earlier layer, and no two layers have one name."""
    tops: set[str] = set()
    layers = in_phase(read_net(str(path)), phase)
    for layer in layers:
        assert set(layer.bottom) <= tops, f"{layer.name} reads {set(layer.bottom) - tops}"
        tops.update(layer.top)
    names = [layer.name for layer in layers]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", [path for path in NETS if "train_val" in path.name], ids=label)
def test_train_val_trains_and_tests(path: Path) -> None:
    net = read_net(str(path))
    for phase, types in ((pb.TRAIN, {"Data", "SoftmaxWithLoss"}), (pb.TEST, {"Data", "SoftmaxWithLoss", "Accuracy"})):
        layers = in_phase(net, phase)
        assert types <= {layer.type for layer in layers}
        assert [layer.type for layer in layers].count("Data") == 1
    top_k = {layer.accuracy_param.top_k for layer in in_phase(net, pb.TEST) if layer.type == "Accuracy"}
    classes = [outputs(layer) for layer in net.layer if layer.type in ("Convolution", "InnerProduct")][-1]
    assert top_k == ({1, 5} if classes == 1000 else {1})


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_deploy_is_the_trained_net(folder: Path) -> None:
    """Input, then layers of train_val with their shapes unchanged, then the softmax."""
    deploy = read_net(str(folder / "deploy.prototxt"))
    trained = {layer.name: layer for layer in read_net(str(folder / "train_val.prototxt")).layer}
    assert (deploy.layer[0].type, list(deploy.layer[0].top)) == ("Input", ["data"])
    assert (deploy.layer[-1].type, list(deploy.layer[-1].top)) == ("Softmax", ["prob"])
    for layer in deploy.layer[1:-1]:
        assert without_fillers(layer) == without_fillers(trained[layer.name])


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_layers_have_the_published_names(folder: Path) -> None:
    layers = read_net(folder / "deploy.prototxt").layer
    text = "\n".join(f"{layer.name} {layer.type} {' '.join(layer.top)}" for layer in layers)
    assert hashlib.sha256(text.encode()).hexdigest()[:8] == LAYERS[folder.name]


@pytest.mark.parametrize("path", SOLVERS, ids=label)
def test_solver_runs_a_net_of_its_folder(path: Path) -> None:
    solver = read_solver(str(path))
    assert (ROOT / solver.net).parent == path.parent
    assert (ROOT / solver.net).is_file()
    assert Path(solver.snapshot_prefix).parent == path.parent.relative_to(ROOT)
    assert solver.max_iter > 0 and solver.base_lr > 0 and solver.test_iter and solver.lr_policy


@pytest.mark.parametrize("path", SOLVERS, ids=label)
def test_one_test_reads_each_test_image_once(path: Path) -> None:
    solver = read_solver(str(path))
    (data,) = [layer for layer in in_phase(read_net(str(ROOT / solver.net)), pb.TEST) if layer.type == "Data"]
    images = TEST_IMAGES[Path(data.data_param.source).parent.name]
    read = solver.test_iter[0] * data.data_param.batch_size
    assert images <= read < images + data.data_param.batch_size


@pytest.mark.parametrize(
    ("name", "base_lr", "max_iter", "crop"), [("googlenet", 0.08, 90_000, 224), ("nin_imagenet", 0.04, 55_000, 227)]
)
def test_firecaffe_trains_the_same_net_with_a_large_batch(name: str, base_lr: float, max_iter: int, crop: int) -> None:
    folder = ROOT / "models" / name
    solver = read_solver(str(folder / "solver_firecaffe.prototxt"))
    assert (solver.base_lr, solver.max_iter) == (pytest.approx(base_lr), max_iter)
    large, standard = read_net(str(ROOT / solver.net)), read_net(str(folder / "train_val.prototxt"))
    data = large.layer[0]
    assert (data.data_param.batch_size, data.transform_param.crop_size) == (1024, crop)
    assert large.layer[2:] == standard.layer[2:]  # the first two read the data


def quiet_net(param: Any, phase: int) -> Net:
    param.state.phase = phase
    log.set_minimum(2)
    return Net(param, Context(cpu_engine(), CaffeRandom(1)))


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_deploy_has_the_published_size_and_runs(folder: Path) -> None:
    net = quiet_net(read_net(folder / "deploy.prototxt"), pb.TEST)
    assert net.parameters.count == PARAMETERS[folder.name]
    net.blob("data").data[...] = 1
    net.forward()
    probabilities = net.blob("prob").data.reshape(-1)
    assert probabilities.size in (10, 1000)
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_train_val_runs_forward_and_backward(folder: Path) -> None:
    """One image, made up in place of the database: a finite loss, and a gradient in every weight."""
    param = read_net(folder / "train_val.prototxt")
    deploy = read_net(folder / "deploy.prototxt")
    for layer in param.layer:
        if layer.type == "Data":
            layer.type = "DummyData"
            layer.dummy_data_param.data_filler.add(type="gaussian", std=50)
            layer.dummy_data_param.data_filler.add(type="constant", value=3)
            layer.dummy_data_param.shape.add().CopyFrom(deploy.layer[0].input_param.shape[0])
            layer.dummy_data_param.shape.add(dim=[1])
            layer.dummy_data_param.shape[0].dim[0] = 1
    net = quiet_net(param, pb.TRAIN)
    assert np.isfinite(net.forward())
    net.backward()
    for parameter in net.parameters.owned:
        if parameter.lr_mult and parameter.index == 0:
            assert parameter.blob.diff.any(), parameter.layer.name


@pytest.mark.parametrize(
    ("folder", "script", "part", "settings", "loss"),
    [
        (DETECTOR, "shapes", "shapes_train_lmdb", {"base_lr": 0.01}, "mbox_loss"),
        (READER, "digit_strings", "train.txt", {"base_lr": 0.004, "type": "Adam", "momentum2": 0.999}, "loss"),
    ],
)
def test_nets_train_on_drawn_pictures(
    folder: Path, script: str, part: str, settings: dict[str, Any], loss: str, tmp_path: Path
) -> None:
    """Twelve iterations lower the loss. deploy has the layers that train_val trains."""
    subprocess.run(
        [sys.executable, ROOT / "scripts/data" / script, "--out", tmp_path, "--train", "8", "--test", "1"], check=True
    )
    param = read_net(folder / "train_val.prototxt")
    data = param.layer[0].hdf5_data_param if folder == READER else param.layer[0].data_param
    data.source, data.batch_size = str(tmp_path / part), 8
    common = {"lr_policy": "fixed", "momentum": 0.9, "random_seed": 1, "snapshot_after_train": False}
    solver_param = pb.SolverParameter(net_param=param, **common, **settings)
    with log.quiet():
        solver = Solver(solver_param, cpu_engine())
        losses = []
        for _ in range(12):
            solver.step(1)
            losses.append(float(solver.net.blob(loss).data))
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    trained = {layer.name: layer for layer in param.layer}
    for layer in read_net(folder / "deploy.prototxt").layer[1:]:
        own = trained[layer.name]
        own.ClearField("include")
        assert without_fillers(layer) == without_fillers(own)
