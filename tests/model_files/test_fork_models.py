"""Models that forks of Caffe wrote, and the form of NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fcaffe.model_files import Model, StoredLayer, read_model, write_model
from fcaffe.net import Net
from fcaffe.net.weights import load_weights, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.wire import key, varint
from tests.conftest import GOLDEN

pytest.importorskip("h5py")

INTEROP = GOLDEN / "interop"
ENDINGS = [".caffemodel", ".h5", ".npz"]

NET = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 } }
"""


def field(number: int, content: bytes | int) -> bytes:
    """A field of any number on the wire, such as a fork has."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return key(number) + varint(len(content)) + content


LAYER = {
    "nvidia": field(145, 2) + field(146, 1) + field(147, 1) + field(149, 1) + field(152, b"\x08\x01"),
    # smooth_l1_loss_param stands where Caffe has clip_param, which needs two fields; engine is a string
    "intel": field(148, b"\x0d\0\0\x80\x3f") + field(149, b"MKLDNN") + field(139, b"\x08\x01\x28\x01\x32\x02\x0a\0"),
    "garbage in a known field": field(106, b"\xff\xff\xff"),
    "text that is not UTF-8 in a known field": field(107, field(1, b"\xff")),
}


@pytest.mark.parametrize("fork", LAYER)
@pytest.mark.parametrize("v1", [False, True])
def test_models_of_forks(fork: str, v1: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = np.float32([[1, 2, 3]])
    blob = pb.BlobBytes(shape=pb.BlobShape(dim=[1, 3]))
    if fork == "nvidia":
        blob.raw_data_type, blob.raw_data = pb.BlobBytes.FLOAT16, values.astype("<f2").tobytes()
        blob.raw_diff_type, blob.raw_diff = pb.BlobBytes.FLOAT, (2 * values).tobytes()
    else:
        blob.data.append(values.tobytes())
        blob.diff.append((2 * values).tobytes())
    if v1:
        layer = pb.V1LayerBytes(name="ip", type=14, bottom=["x"], top=["y"], blobs=[blob])
        content = field(2, layer.SerializeToString() + field(150, b"x"))
    else:
        layer = pb.LayerBytes(name="ip", type="InnerProduct", bottom=["x"], top=["y"], blobs=[blob])
        content = field(100, layer.SerializeToString() + LAYER[fork])
    (tmp_path / "x").write_bytes(field(1, b"n") + field(11, 1) + content)
    model = read_model(tmp_path / "x")
    assert model.param == pb.NetParameter(name="n")
    (stored,) = model.layers
    assert stored.param == pb.LayerParameter(name="ip", type="InnerProduct", bottom=["x"], top=["y"])
    np.testing.assert_array_equal(stored.blobs[0].data, values)
    np.testing.assert_array_equal(stored.blobs[0].diff, 2 * values)
    assert f"{tmp_path / 'x'} is of a fork of Caffe" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["model_iter_8", "modeld_iter_8"])
def test_the_form_of_nvidias_fork(name: str, tmp_path: Path) -> None:
    golden = INTEROP / f"{name}.caffemodel"
    write_model(tmp_path / "nv.caffemodel", read_model(golden), nvidia=True)
    net = pb.NetBytes.FromString((tmp_path / "nv.caffemodel").read_bytes())
    blobs = [blob for layer in net.layer for blob in layer.blobs]
    assert all(blob.raw_data_type == pb.BlobBytes.FLOAT and blob.raw_data and not blob.data for blob in blobs)
    assert all(bool(blob.raw_diff) == (name == "modeld_iter_8") and not blob.diff for blob in blobs)
    write_model(tmp_path / "back.caffemodel", read_model(tmp_path / "nv.caffemodel"))
    assert (tmp_path / "back.caffemodel").read_bytes() == golden.read_bytes()


def test_half_precision_is_kept_until_caffe_is_to_read_it(tmp_path: Path) -> None:
    half = np.float16([0.1, 65504])
    model = Model(pb.NetParameter(), [StoredLayer(pb.LayerParameter(name="a"), [StoredBlob((2,), half)])])
    for ending in (".h5", ".npz"):
        write_model(tmp_path / f"x{ending}", model)
        assert read_model(tmp_path / f"x{ending}").layers[0].blobs[0].data.tobytes() == half.tobytes()
    write_model(tmp_path / "nv.caffemodel", model, nvidia=True)
    assert read_model(tmp_path / "nv.caffemodel").layers[0].blobs[0].data.tobytes() == half.tobytes()
    write_model(tmp_path / "x.caffemodel", model)
    data = read_model(tmp_path / "x.caffemodel").layers[0].blobs[0].data
    assert data.dtype == np.float32 and list(data) == list(half.astype(np.float32))


def test_fields_of_forks_are_not_written(tmp_path: Path, net_from: Callable[..., Net]) -> None:
    net = net_from(NET.replace('top: "a"', 'top: "a" forward_type: FLOAT16'))
    for ending in ENDINGS:
        write_model(tmp_path / f"x{ending}", to_model(net))
        assert read_model(tmp_path / f"x{ending}").layers[1].param.ListFields()
        assert not read_model(tmp_path / f"x{ending}").layers[1].param.HasField("forward_type")
    plain = net_from(NET)
    write_model(tmp_path / "plain.caffemodel", to_model(plain))
    assert (tmp_path / "plain.caffemodel").read_bytes() == (tmp_path / "x.caffemodel").read_bytes()


BATCH_NORM = """force_backward: true
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "bn" type: "BatchNorm" bottom: "x" top: "y" batch_norm_param { scale_bias: true } %s }"""


@pytest.mark.parametrize("ending", [".caffemodel", ".npz", ".safetensors"])
@pytest.mark.parametrize("axes", [1, 4])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (3, 4, 0, 1, 2)], ids=["0.16", "0.15"])
def test_blobs_of_nvidias_batch_norm(
    order: tuple[int, ...], axes: int, ending: str, tmp_path: Path, net_from: Callable[..., Net]
) -> None:
    values = (
        np.float32([0.5, 1, 2]),
        np.float32([1, 4, 9]),
        np.float32([1]),
        np.float32([2, 3, 4]),
        np.float32([5, 6, 7]),
    )
    net = net_from(BATCH_NORM % "", "TEST")
    for own, array in zip(net.layers[1].blobs, values, strict=True):
        own.data[...] = array
    net.blob("x").data[...] = x = np.random.default_rng(1).standard_normal((2, 3, 4, 4))
    net.forward()
    expected = np.array(net.blob("y").data)
    shaped = [array.reshape((1, -1, 1, 1) if axes == 4 else -1) for array in values]
    stored = [StoredBlob(shaped[index].shape, shaped[index]) for index in order]
    layer = StoredLayer(pb.LayerParameter(name="bn", type="BatchNorm"), stored)
    write_model(tmp_path / f"m{ending}", Model(pb.NetParameter(), [layer]))
    other = net_from(BATCH_NORM % "", "TEST")
    load_weights(other, tmp_path / f"m{ending}")
    other.blob("x").data[...] = x
    other.forward()
    np.testing.assert_array_equal(other.blob("y").data, expected)


@pytest.mark.parametrize(
    ("specs", "rates"),
    [
        ("", [0, 0, 0, 1, 1]),
        ("param { lr_mult: 2 } param { lr_mult: 3 }", [0, 0, 0, 2, 3]),
        ("param { lr_mult: 1 } " * 3 + "param { lr_mult: 2 } param { lr_mult: 3 }", [0, 0, 0, 2, 3]),
        ("param { lr_mult: 0 } " * 4, [0, 0, 0, 0, 1]),
        ("param { lr_mult: 2 } param { lr_mult: 3 }" + "param { lr_mult: 0 }" * 2, [0, 0, 0, 2, 3]),  # 0.15
    ],
)
def test_rates_of_nvidias_batch_norm(specs: str, rates: list[float], net_from: Callable[..., Net]) -> None:
    layer = net_from(BATCH_NORM % specs).layers[1]
    found = [spec.lr_mult for spec in layer.param.param] + [1.0] * (5 - len(layer.param.param))
    assert found == rates
