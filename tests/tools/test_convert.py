"""Conversions: every golden file there and back, bit for bit; older notations; means; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from fcaffe.errors import DataError, FcaffeError, ProtoError, SnapshotError, UsageError
from fcaffe.onnx.convert import convert
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto import parse_text
from fcaffe.proto.binary import read_binary
from fcaffe.proto.text import read_text
from fcaffe.solvers.snapshot.files import read_state
from tests.conftest import GOLDEN

h5py = pytest.importorskip("h5py")

INTEROP = GOLDEN / "interop"
BINARY = ["model_iter_4", "model_iter_8", "modeld_iter_8", "v1_upgraded"]


def there_and_back(source: Path, folder: Path, ending: str, **options: Any) -> Path:
    made, back = folder / f"made{ending}", folder / ("back" + "".join(source.suffixes))
    convert(str(source), str(made), **options)
    convert(str(made), str(back))
    return back


def contents(path: Path) -> dict[str, Any]:
    """Everything in an HDF5 file: groups (None), and bits, type and shape of datasets."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update(
                {name: (item[()].tobytes(), item.dtype, item.shape) if isinstance(item, h5py.Dataset) else None}
            )
        )
    return found


@pytest.mark.parametrize("name", BINARY)
def test_models_in_the_form_of_nvidias_fork(name: str, tmp_path: Path) -> None:
    source = INTEROP / f"{name}.caffemodel"
    assert there_and_back(source, tmp_path, ".caffemodel", to="nvidia").read_bytes() == source.read_bytes()
    net = read_binary(tmp_path / "made.caffemodel", pb.NetBytes)
    assert any(blob.raw_data for layer in net.layer for blob in layer.blobs)


def test_v1_models_become_current(tmp_path: Path) -> None:
    convert(str(INTEROP / "v1.caffemodel"), str(tmp_path / "x.caffemodel"))
    assert (tmp_path / "x.caffemodel").read_bytes() == (INTEROP / "v1_upgraded.caffemodel").read_bytes()
    convert(str(INTEROP / "v1.caffemodel"), str(tmp_path / "x.prototxt"))
    upgraded = json.loads((INTEROP / "v1_model_upgraded.json").read_text())
    net = ParseDict(upgraded, pb.NetParameter())
    for layer in net.layer:
        layer.ClearField("blobs")
    assert read_text(tmp_path / "x.prototxt", pb.NetParameter) == net


def test_caffes_hdf5_model_with_the_net_beside_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = INTEROP / "modelh_iter_8.caffemodel.h5"
    back = there_and_back(source, tmp_path, ".caffemodel", net=str(INTEROP / "net.prototxt"))
    assert contents(back) == contents(source)
    ours = read_binary(tmp_path / "made.caffemodel", pb.NetParameter)
    golden = read_binary(INTEROP / "modeld_iter_8.caffemodel", pb.NetParameter)
    for layer in golden.layer:
        layer.ClearField("loss_weight")  # this, and rates of 0 for BatchNorm, the layers themselves add
        if layer.type == "BatchNorm":
            layer.ClearField("param")
    assert ours == golden
    assert "holds nothing of the layers" not in capfd.readouterr().err
    with pytest.raises(SnapshotError, match=r'blob 0 of layer "ip_b" has no values.*--net'):
        convert(str(source), str(tmp_path / "x.caffemodel"))
    assert "give the net as --net" in capfd.readouterr().err
    with pytest.raises(SnapshotError, match=r"no layer bn, conv, ip_a, ip_b, scale, for which the model has blobs"):
        convert(str(source), str(tmp_path / "x.caffemodel"), net=str(INTEROP / "old_v0_input.prototxt"))


@pytest.mark.parametrize("name", ["model_iter_4.solverstate", "model_iter_8.solverstate"])
def test_states(name: str, tmp_path: Path) -> None:
    source = INTEROP / name
    assert there_and_back(source, tmp_path, ".solverstate.h5").read_bytes() == source.read_bytes()


def test_caffes_hdf5_state(tmp_path: Path) -> None:
    source = INTEROP / "modelh_iter_8.solverstate.h5"
    assert contents(there_and_back(source, tmp_path, ".solverstate")) == contents(source)
    state = read_state(tmp_path / "made.solverstate")
    golden = read_binary(INTEROP / "model_iter_8.solverstate", pb.SolverState)
    assert (state.iteration, state.current_step) == (golden.iter, golden.current_step)


@pytest.mark.parametrize("name", ["mean_gray", "mean_colour", "infogain_h"])
def test_means(name: str, tmp_path: Path) -> None:
    source = INTEROP / f"{name}.binaryproto"
    assert there_and_back(source, tmp_path, ".npy").read_bytes() == source.read_bytes()
    if name != "infogain_h":
        image = np.load(tmp_path / "made.npy")
        np.testing.assert_array_equal(image, np.load(INTEROP / "means.npz")[name.removeprefix("mean_")][0])
        assert (image.ndim, image.dtype) == (3, np.float32)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.zeros((2, 3, 4, 5), np.float32), np.float64(3)])
def test_other_arrays(array: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    back = there_and_back(tmp_path / "x.npy", tmp_path, ".binaryproto")
    assert np.load(back).dtype == array.dtype
    np.testing.assert_array_equal(np.load(back), array)


def test_the_mean_of_a_database(tmp_path: Path) -> None:
    convert(str(INTEROP / "gray_lmdb"), str(tmp_path / "x.binaryproto"))
    assert (tmp_path / "x.binaryproto").read_bytes() == (INTEROP / "mean_gray.binaryproto").read_bytes()


@pytest.mark.parametrize("name", sorted(path.name for path in INTEROP.glob("old_*.prototxt")))
def test_nets_and_solvers_become_current(name: str, tmp_path: Path) -> None:
    kind = "solver" if "solver" in name else "net"
    assert convert(str(INTEROP / name), str(tmp_path / "x.prototxt")) == kind
    message = pb.SolverParameter if kind == "solver" else pb.NetParameter
    upgraded = json.loads((INTEROP / "old_formats.json").read_text())[name]["upgraded"]
    assert read_text(tmp_path / "x.prototxt", message) == ParseDict(upgraded, message())


def test_a_net_in_binary_form(tmp_path: Path) -> None:
    net = parse_text('layers { name: "r" type: RELU bottom: "x" top: "x" }', pb.NetParameter)
    (tmp_path / "net").write_bytes(net.SerializeToString())
    convert(str(tmp_path / "net"), str(tmp_path / "net.prototxt"))
    assert read_text(tmp_path / "net.prototxt", pb.NetParameter) == parse_text(
        'layer { name: "r" type: "ReLU" bottom: "x" top: "x" }', pb.NetParameter
    )


MODEL, STATE, MEAN = INTEROP / "model_iter_8.caffemodel", INTEROP / "model_iter_8.solverstate", INTEROP / "means.npz"
REFUSED: list[tuple[Path, str, dict[str, Any], type[FcaffeError], str]] = [
    (MODEL, "x.solverstate", {}, UsageError, "is a model, which is written to a file that ends in .caffemodel or .h5"),
    (STATE, "x.npz", {}, UsageError, r"is a solver state, which .* ends in .solverstate or .h5"),
    (INTEROP / "mean_gray.binaryproto", "x.h5", {}, UsageError, "is a mean or other blob, .* .binaryproto or .npy"),
    (INTEROP / "net.prototxt", "x.caffemodel", {}, UsageError, "is a net, which is written to .* .prototxt"),
    (MODEL, "x.h5", {"to": "nvidia"}, UsageError, "only a model in a .caffemodel can have the form of NVIDIA's fork"),
    (STATE, "x.h5", {"net": "net.prototxt"}, UsageError, "--net is for models"),
    (INTEROP / "none.caffemodel", "x.h5", {}, SnapshotError, "none.caffemodel does not exist"),
    (INTEROP / "part0.h5", "x.npz", {}, SnapshotError, "part0.h5: there is no model in it"),
    (MEAN, "x.h5", {}, SnapshotError, '"gray" is no blob'),
    (INTEROP / "records.json", "x.prototxt", {}, ProtoError, r"records.json:1:1"),
    (INTEROP / "pictures", "x.binaryproto", {}, DataError, "pictures"),
]


@pytest.mark.parametrize(("source", "target", "options", "error", "message"), REFUSED)
def test_what_is_refused(
    source: Path, target: str, options: dict[str, Any], error: type[FcaffeError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        convert(str(source), str(tmp_path / target), **options)
    assert not list(tmp_path.iterdir())


def test_a_wrong_solver_is_told_as_a_solver(tmp_path: Path) -> None:
    for name, message in [("solver.prototxt", 'SolverParameter has no field named "base_rate"'),
                          ("net.prototxt", 'NetParameter has no field named "base_rate"')]:  # fmt: skip
        (tmp_path / name).write_text("base_rate: 1")
        with pytest.raises(ProtoError, match=message):
            convert(str(tmp_path / name), str(tmp_path / "x.prototxt"))


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'shape': (9,)}"])
def test_damaged_arrays(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(SnapshotError, match=r"x\.npy"):
        convert(str(tmp_path / "x.npy"), str(tmp_path / "y.binaryproto"))
    huge = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}".ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + huge)
    with pytest.raises(SnapshotError, match=r"cannot read .*x\.npy"):
        convert(str(tmp_path / "x.npy"), str(tmp_path / "y.binaryproto"))
