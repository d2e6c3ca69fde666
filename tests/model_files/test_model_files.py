"""Model files of every format and fork: what is read, that it comes back bit for bit, and what is refused."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe import hdf5
from fcaffe.errors import FcaffeError, SnapshotError
from fcaffe.model_files import Model, StoredLayer, arrays, read_model, write_model
from fcaffe.model_files import caffemodel as caffemodel_format
from fcaffe.net import Net
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import StoredBlob, parse_text, write_binary
from fcaffe.proto import caffe_pb2 as pb
from tests.conftest import GOLDEN

h5py = pytest.importorskip("h5py")

INTEROP = GOLDEN / "interop"
HDF5 = INTEROP / "modelh_iter_8.caffemodel.h5"
ENDINGS = [".caffemodel", ".h5", ".npz", ".safetensors", ".dcmodel"]


def blobs_of(model: Model) -> dict[str, StoredBlob]:
    return {f"{layer.name}/{index}": blob for layer in model.layers for index, blob in enumerate(layer.blobs)}


def datasets(path: Path) -> dict[str, Any]:
    """Everything in an HDF5 file: groups, and the bits, type and shape of datasets."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update(
                {name: (item[()].tobytes(), item.dtype, item.shape) if isinstance(item, h5py.Dataset) else "group"}
            )
        )
    return found


def test_the_library_of_safetensors_reads_our_files(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    model = read_model(INTEROP / "model_iter_8.caffemodel")
    write_model(tmp_path / "x.safetensors", model)
    found = library.load_file(tmp_path / "x.safetensors")
    assert found.keys() == blobs_of(model).keys()
    for name, blob in blobs_of(model).items():
        np.testing.assert_array_equal(found[name], blob.data)
    library.save_file({"features.0.weight": np.zeros(3)}, tmp_path / "torch.safetensors")
    with pytest.raises(SnapshotError, match="If it is a state dict of PyTorch, convert an"):
        read_model(tmp_path / "torch.safetensors")


def test_caffes_hdf5_model_is_its_binary_one() -> None:
    model = read_model(HDF5)
    binary = blobs_of(read_model(INTEROP / "modeld_iter_8.caffemodel"))
    assert [layer.name for layer in model.layers] == sorted(layer.name for layer in model.layers)
    for name, blob in blobs_of(model).items():
        assert blob.diff is not None
        np.testing.assert_array_equal(blob.diff, binary[name].diff)
        if name.startswith("ip_b"):
            assert blob.data is None, "its owner has it"
        else:
            np.testing.assert_array_equal(blob.data, binary[name].data)
    assert set(blobs_of(model)) == set(binary)


def test_hdf5_is_laid_out_as_caffe_does_it(tmp_path: Path) -> None:
    write_model(tmp_path / "x.h5", read_model(INTEROP / "modeld_iter_8.caffemodel"))
    assert datasets(tmp_path / "x.h5") == datasets(HDF5)
    with h5py.File(tmp_path / "x.h5") as file:
        dataset = file["data/conv/0"].id
        assert dataset.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
        assert dataset.get_type().equal(h5py.h5t.IEEE_F32LE)
    write_model(tmp_path / "x.h5", read_model(INTEROP / "model_iter_8.caffemodel"))
    assert "diff" not in datasets(tmp_path / "x.h5")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["model_iter_4", "model_iter_8", "modeld_iter_8", "v1_upgraded"])
def test_every_format_keeps_every_bit(name: str, ending: str, tmp_path: Path) -> None:
    golden = INTEROP / f"{name}.caffemodel"
    write_model(tmp_path / f"x{ending}", read_model(golden))
    write_model(tmp_path / "back.caffemodel", read_model(tmp_path / f"x{ending}"))
    assert (tmp_path / "back.caffemodel").read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_caffes_hdf5_comes_back(ending: str, tmp_path: Path) -> None:
    write_model(tmp_path / f"x{ending}", read_model(HDF5))
    write_model(tmp_path / "back.h5", read_model(tmp_path / f"x{ending}"))
    assert datasets(tmp_path / "back.h5") == datasets(HDF5)


def test_v1_models_and_their_four_numbers() -> None:
    golden = np.load(INTEROP / "v1_model.npz")
    found = blobs_of(read_model(INTEROP / "v1.caffemodel"))
    assert set(found) == {name for name in golden if "/" in name}
    for name, blob in found.items():
        assert blob.legacy and len(blob.shape) == 4
        np.testing.assert_array_equal(blob.data.ravel(), golden[name].ravel())


def test_v0_models(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    net = parse_text(
        'input: "x" input_dim: 1 input_dim: 1 input_dim: 4 input_dim: 4'
        ' layers { layer { name: "p" type: "padding" pad: 2 } bottom: "x" top: "y" }'
        ' layers { layer { name: "c" type: "conv" num_output: 2 kernelsize: 1'
        " blobs { num: 2 channels: 1 height: 1 width: 1 data: 3 data: 4 }"
        ' blobs { num: 1 channels: 1 height: 1 width: 2 data: 5 data: 6 } } bottom: "y" top: "c" }',
        pb.NetParameter,
    )
    write_binary(tmp_path / "x", net)
    model = read_model(tmp_path / "x")
    assert [(layer.name, layer.param.type) for layer in model.layers] == [("input", "Input"), ("c", "Convolution")]
    assert model.layers[1].param.convolution_param.pad == [2]
    assert [list(blob.data.ravel()) for blob in model.layers[1].blobs] == [[3, 4], [5, 6]]
    assert "Successfully upgraded file specified using deprecated V0LayerParameter" in capfd.readouterr().err


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_every_kind_stay_what_they_are(ending: str, dtype: type, tmp_path: Path) -> None:
    values = np.array([[np.pi, -0.0, np.inf], [np.nan, np.finfo(dtype).tiny / 4, np.finfo(dtype).max]], dtype)
    made = Model(
        pb.NetParameter(name="n", force_backward=True),
        [
            StoredLayer(
                pb.LayerParameter(name="inception_3a/1x1", type="X", loss_weight=[0.5]),
                [
                    StoredBlob((2, 3), values, values[::-1].copy()),
                    StoredBlob((), dtype(3).reshape(())),
                    StoredBlob((1, 1, 2, 3), values.reshape(1, 1, 2, 3), legacy=True),
                    StoredBlob((0, 3), np.zeros((0, 3), dtype)),
                ],
            ),
            StoredLayer(pb.LayerParameter(name="inception_3a", type="ReLU")),
            StoredLayer(pb.LayerParameter(name="a", type="ReLU")),
        ],
    )
    write_model(tmp_path / f"x{ending}", made)
    read = read_model(tmp_path / f"x{ending}")
    assert read.param == made.param
    assert [layer.param for layer in read.layers] == [layer.param for layer in made.layers]
    for blob, original in zip(read.layers[0].blobs, made.layers[0].blobs, strict=True):
        assert (blob.shape, blob.legacy, blob.diff is None) == (original.shape, original.legacy, original.diff is None)
        if blob.data.size:
            assert blob.data.dtype == dtype
        assert blob.data.tobytes() == original.data.tobytes()
    assert read.layers[0].blobs[0].diff.tobytes() == made.layers[0].blobs[0].diff.tobytes()


SHARING = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" } param { name: "" }
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } bias_filler { type: "xavier" } } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" } param { name: "" }
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } bias_filler { type: "xavier" } } }
"""


@pytest.mark.parametrize("caffes_own", [False, True])
def test_shared_blobs_are_in_hdf5_once(caffes_own: bool, net_from: Callable[..., Net], tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    net = net_from(SHARING)
    write_model(path, to_model(net))
    with h5py.File(path, "a") as file:
        assert sorted(file["data/a"]) == ["0", "1"] and sorted(file["data/b"]) == ["1"]
        if caffes_own:
            for item in (file["data"], *file["data"].values()):
                for name in list(item.attrs):
                    del item.attrs[name]
    other = net_from(SHARING, seed=2)
    copy_weights(other, read_model(path), "x.h5")
    for mine, theirs in zip(net.layers, other.layers, strict=True):
        for blob, copied in zip(mine.blobs, theirs.blobs, strict=True):
            np.testing.assert_array_equal(blob.data, copied.data)
    unshared = net_from(SHARING.replace('name: "w"', 'name: ""'))
    if caffes_own:
        with pytest.raises(SnapshotError, match=r'layer "b" has . parameter blob'):
            copy_weights(unshared, read_model(path), "x.h5")
    else:
        copy_weights(unshared, read_model(path), "x.h5")


def test_nothing_is_copied_when_anything_does_not_fit(net_from: Callable[..., Net]) -> None:
    net = net_from(SHARING)
    before = [blob.data.copy() for layer in net.layers for blob in layer.blobs]
    model = to_model(net_from(SHARING, seed=2))
    model.layers[2].blobs[1] = StoredBlob((4,), np.zeros(4, np.float32))
    with pytest.raises(SnapshotError, match=r'param 1 of layer "b": shape mismatch.* 4 \(4\).* 3 \(3\)'):
        copy_weights(net, model, "x")
    after = [blob.data for layer in net.layers for blob in layer.blobs]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


# --- errors -----------------------------------------------------------------------------------------------------------


def layer(name: str, *shapes: tuple[int, ...]) -> StoredLayer:
    return StoredLayer(pb.LayerParameter(name=name), [StoredBlob(s, np.zeros(s, np.float32)) for s in shapes])


def test_what_is_too_large_for_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(pb.NetParameter(), [layer("a", (1000,)), layer("b", (1000,))])
    monkeypatch.setattr(caffemodel_format, "LARGEST", 7999)
    with pytest.raises(SnapshotError, match=r"x\.caffemodel: with 8000 bytes it is larger .* snapshot_format: HDF5"):
        write_model(tmp_path / "x.caffemodel", model)
    monkeypatch.setattr(caffemodel_format, "LARGEST", 8010)  # the numbers alone would fit
    with pytest.raises(SnapshotError, match="is larger than"):
        write_model(tmp_path / "x.caffemodel", model)
    assert not list(tmp_path.iterdir())
    write_model(tmp_path / "x.h5", model)
    assert sum(blob.nbytes for blob in blobs_of(read_model(tmp_path / "x.h5")).values()) == 8000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file.create_dataset("data", data=[1.0]), "there is no model in it"),
        (lambda file: file.create_dataset("data/a/0", data=["x"]), "no array of numbers"),
        (lambda file: file.create_dataset("data/a/0", (1 << 20, 1 << 20), "f4", chunks=(8, 8)), "is not in the file"),
        (lambda file: file.create_group("data"), "there are no layers in it"),
        (lambda file: file.create_dataset("data/ip", data=[1.0]), '"/data/ip" is no group'),
        (lambda file: file.create_dataset("data/a/123456789", data=[1.0]), "more than a layer can have"),
    ],
)
def test_hdf5_files_that_hold_no_model(make: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        make(file)
    with pytest.raises(SnapshotError, match=f"^{tmp_path}/x.h5: .*{message}"):
        read_model(tmp_path / "x.h5")


@pytest.mark.parametrize("ending", [".h5", ".npz"])
def test_no_more_is_read_than_there_is_memory(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / f"x{ending}", Model(pb.NetParameter(), [layer("a", (300,)), layer("b", (300,))]))
    read_model(tmp_path / f"x{ending}")
    for module in (hdf5, arrays):
        monkeypatch.setattr(module, "obtainable_bytes", lambda _: 2000)
    with pytest.raises(SnapshotError, match=r"x\.\w+: its arrays take \d+ bytes, "):
        read_model(tmp_path / f"x{ending}")


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_npz_files_of_others(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", **{"ip/0": np.ones((2, 3), order="F"), "ip/1": np.arange(3)})
    (stored,) = read_model(tmp_path / "x.npz").layers
    assert (stored.name, [blob.shape for blob in stored.blobs]) == ("ip", [(2, 3), (3,)])
    np.savez(tmp_path / "x.npz", weights=np.ones(3))
    with pytest.raises(SnapshotError, match=r'"weights" is no blob; the names are <layer>/<k>'):
        read_model(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", **{"a/0": np.array([{"an": "object"}])})
    with pytest.raises(SnapshotError, match=r"x\.npz"):
        read_model(tmp_path / "x.npz")
    header = b"\x93NUMPY\x01\0\x46\0{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}   \n"
    with pytest.raises(SnapshotError, match=r"not 43980465111\d\d of the shape"):
        read_model(npz(tmp_path / "y.npz", **{"a/0.npy": header}))
    bomb = header.replace(b"1099511627776", b"2000000000000") + bytes(50_000_000)
    with pytest.raises(SnapshotError, match=r"not 80000000000\d\d of the shape"):
        read_model(npz(tmp_path / "y.npz", **{"a/0.npy": bomb}))


@pytest.mark.parametrize("use", [read_model, lambda path: write_model(path, Model(pb.NetParameter(), []))])
def test_without_h5py_it_says_what_to_install(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(HDF5.read_bytes())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(FcaffeError, match=r"pip install h5py"):
        use(path)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_arrays_of_integers(kind: str, tmp_path: Path) -> None:
    """They become float32 in the net, and keep their type in a file that has it."""
    np.savez(tmp_path / "x.npz", **{"ip/0": np.arange(6).reshape(2, 3).astype(kind)})
    for ending in ENDINGS:
        write_model(tmp_path / f"y{ending}", read_model(tmp_path / "x.npz"))
        (blob,) = blobs_of(read_model(tmp_path / f"y{ending}")).values()
        np.testing.assert_array_equal(blob.data, np.arange(6).reshape(2, 3))
