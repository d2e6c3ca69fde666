import json
import os
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from fcaffe.errors import SnapshotError
from fcaffe.proto import binary, blobs, write_binary
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import binary_class, read_binary
from fcaffe.proto.blobs import blob_shape, to_blob_proto
from tests.golden_values import blob_values

GOLDEN = Path(__file__).parents[1] / "golden/interop"
MODEL = GOLDEN / "model_iter_8.caffemodel"
STATE = GOLDEN / "model_iter_8.solverstate"
MEAN = GOLDEN / "mean_gray.binaryproto"


def test_a_model_of_caffe():
    net = read_binary(GOLDEN / "modeld_iter_8.caffemodel", pb.NetParameter)
    expected = np.load(GOLDEN / "model_with_diff.npz")
    for layer in net.layer:
        for index, blob in enumerate(layer.blobs):
            name = f"{layer.name}/{index}"
            assert blob_shape(blob) == expected[name].shape
            assert np.array_equal(blob_values(blob), expected[name].ravel())
            assert np.array_equal(blob_values(blob, "diff"), expected[f"{name}/diff"].ravel())
        layer.ClearField("blobs")
    assert net == ParseDict(json.loads((GOLDEN / "model_layers.json").read_text()), pb.NetParameter())


def test_a_solver_state_of_caffe():
    state = read_binary(STATE, pb.SolverState)
    expected = np.load(GOLDEN / "state.npz")
    assert (state.iter, state.current_step) == (expected["iter"], expected["current_step"])
    assert state.learned_net == str(expected["learned_net"])
    for index, blob in enumerate(state.history):
        assert np.array_equal(blob_values(blob).reshape(blob_shape(blob)), expected[f"history/{index}"])


@pytest.mark.parametrize(("path", "kind"), [(MODEL, pb.NetParameter), (STATE, pb.SolverState), (MEAN, pb.BlobProto)])
def test_files_come_out_byte_for_byte(tmp_path, path, kind):
    write_binary(tmp_path / "x", read_binary(path, kind))
    assert (tmp_path / "x").read_bytes() == path.read_bytes()


def test_arrays_come_back():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)  # not contiguous
    blob = to_blob_proto(array, diff=-array)
    assert blob_shape(blob) == (4, 2, 3)
    assert list(blob.data) == list(array.ravel())
    assert np.array_equal(blob_values(blob, "diff"), -array.ravel())
    assert len(blob_values(to_blob_proto(array), "diff")) == 0
    assert blob_shape(to_blob_proto(np.float32(3) * np.ones(()))) == ()


@pytest.mark.parametrize(("kind", "code"), [("DOUBLE", "<f8"), ("FLOAT", "<f4"), ("FLOAT16", "<f2")])
def test_raw_blobs_of_nvidias_fork(tmp_path, kind, code):
    values = np.array([[0.5, -2, 3]], code)
    raw_type = pb.BlobBytes.RawType.Value(kind)
    raw = pb.BlobBytes(raw_data_type=raw_type, raw_data=values.tobytes(), shape=pb.BlobShape(dim=[1, 3]))
    raw.raw_diff_type, raw.raw_diff = raw_type, (-values).tobytes()
    write_binary(tmp_path / "x", raw)
    blob = read_binary(tmp_path / "x", pb.BlobProto)
    assert blob_values(blob).dtype == np.float32
    assert (list(blob_values(blob)), list(blob_values(blob, "diff"))) == ([0.5, -2, 3], [-0.5, 2, -3])
    stored = blobs.stored_blob(raw)
    assert stored.data.dtype == stored.diff.dtype == np.dtype(code)
    back = pb.BlobBytes.FromString(blobs.stored_to_proto(stored, nvidia=True).SerializeToString())
    assert back == raw
    raw.ClearField("raw_data_type")
    with pytest.raises(SnapshotError, match="raw data of no known type"):
        blobs.stored_blob(raw)


ONE_BY_ONE = b"".join(b"\x2d" + np.float32(value).tobytes() for value in (1, 2, 3))  # field 5 as 32-bit numbers
NUMBERS = np.float32([1, 2, 3]).tobytes()


@pytest.mark.parametrize(
    "content",
    [
        pb.BlobBytes(data=[NUMBERS]).SerializeToString(),
        pb.BlobBytes(data=[NUMBERS[:4], NUMBERS[4:]]).SerializeToString(),
        pb.BlobBytes(double_data=[np.float64([1, 2, 3]).tobytes()], double_diff=[b"8" * 24]).SerializeToString(),
        ONE_BY_ONE,
        ONE_BY_ONE + pb.BlobBytes(diff=[NUMBERS]).SerializeToString(),
    ],
    ids=["packed", "in pieces", "doubles", "one by one", "of both kinds"],
)
def test_numbers_in_every_form(content):
    shape = pb.BlobBytes(shape=pb.BlobShape(dim=[3])).SerializeToString()
    assert list(blobs.stored_blob(pb.BlobBytes.FromString(content + shape)).data) == [1, 2, 3]


def test_the_kind_of_a_file_is_seen():
    kinds = {
        MODEL: pb.NetParameter,
        GOLDEN / "v1.caffemodel": pb.NetParameter,
        STATE: pb.SolverState,
        MEAN: pb.BlobProto,
    }
    assert {path: binary_class(path) for path in kinds} == kinds
    assert binary_class(GOLDEN / "net.prototxt") is None


@pytest.mark.parametrize("dim", [[1] * 33, [1 << 40], [1 << 40, 1 << 40], [-1, -3], [2], [0], []])
def test_a_shape_must_fit_the_values(dim):
    blob = pb.BlobProto(data=[1, 2, 3], shape=pb.BlobShape(dim=dim))
    with pytest.raises(SnapshotError, match=r"holds 3 values|33 axes"):
        blob_values(blob)


def test_every_cut_is_noticed(tmp_path):
    whole = MODEL.read_bytes()
    ends = {0}  # a file that ends with a layer is as good as a shorter net
    for layer in read_binary(MODEL, pb.NetParameter).layer:
        ends.add(max(ends) + len(pb.NetParameter(layer=[layer]).SerializeToString()))
    header = len(whole) - max(ends)
    for size in range(0, len(whole), 7):
        (tmp_path / "x").write_bytes(whole[:size])
        if size - header not in ends or size == header:
            with pytest.raises(SnapshotError, match=r"x is (empty|damaged or cut off)"):
                read_binary(tmp_path / "x", pb.NetParameter)


WRONG = [
    (pb.NetParameter, STATE, "is a solver state .*, not a model .*; give it as --snapshot"),
    (pb.SolverState, MODEL, "is a model .*, not a solver state .*; give it as --weights"),
    (pb.SolverState, GOLDEN / "v1.caffemodel", "is a model"),
    (pb.NetParameter, MEAN, "is a blob"),
    (pb.BlobProto, MODEL, "is a model"),
    (pb.NetParameter, GOLDEN / "net.prototxt", "is text, perhaps a prototxt; a model .* is wanted"),
    (pb.NetParameter, GOLDEN / "modelh_iter_8.caffemodel.h5", r"is an HDF5 file.*\.h5"),
    (pb.NetParameter, GOLDEN / "gray_lmdb/data.mdb", "is damaged or cut off"),
    (pb.NetParameter, GOLDEN, "is a folder"),
    (pb.SolverState, GOLDEN / "none", "does not exist"),
]


@pytest.mark.parametrize(("wanted", "path", "message"), WRONG)
def test_other_files_are_recognised(wanted, path, message):
    with pytest.raises(SnapshotError, match=f"{path} {message}"):
        read_binary(path, wanted)


def test_what_protobuf_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "LARGEST", 6000)
    monkeypatch.setattr(blobs, "LARGEST", 6000)
    with pytest.raises(SnapshotError, match="more than 6000 bytes"):
        read_binary(MODEL, pb.NetParameter)
    with pytest.raises(SnapshotError, match=r"larger than .* set snapshot_format: HDF5"):
        to_blob_proto(np.zeros(2000))
    net = pb.NetParameter(layer=[pb.LayerParameter(blobs=[to_blob_proto(np.zeros(1000))] * 2)])
    with pytest.raises(SnapshotError, match=r"x: with 80.. bytes .* set snapshot_format: HDF5"):
        write_binary(tmp_path / "x", net)
    assert not list(tmp_path.iterdir())


def test_new_files_have_the_usual_rights_and_links_stay(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "x")
    before = os.umask(0o027)
    try:
        write_binary(tmp_path / "link", pb.Datum(label=3))
    finally:
        os.umask(before)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
