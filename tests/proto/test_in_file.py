"""Numbers that stay in their file are those that protobuf finds there, and take no memory that nobody asked for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.input_files import open_input
from fcaffe.model_files import read_model, write_model
from fcaffe.net import Net
from fcaffe.net.weights import load_weights, to_model
from fcaffe.proto import StoredBlob, in_file
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import read_binary, read_outline
from fcaffe.proto.blobs import stored_blob
from fcaffe.proto.in_file import InFile, Source, outline_of
from fcaffe.solvers.snapshot.state_files import read_state, write_state

INTEROP = Path(__file__).parents[1] / "golden/interop"
MODELS = ["model_iter_8.caffemodel", "modeld_iter_8.caffemodel", "v1.caffemodel"]


def blobs_of(net: Any) -> list[Any]:
    return [blob for layer in (*net.layer, *net.layers) for blob in layer.blobs]


def same(ours: StoredBlob, theirs: StoredBlob) -> bool:
    pairs = ((ours.data, theirs.data), (ours.diff, theirs.diff))
    return ours.shape == theirs.shape and all(
        (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and np.array_equal(a, b))) for a, b in pairs
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_reads_the_same_with_its_numbers_left_in_the_file(name: str) -> None:
    outline, stored_of = read_outline(INTEROP / name, pb.NetBytes)
    whole = read_binary(INTEROP / name, pb.NetBytes)
    assert len(blobs_of(outline)) == len(blobs_of(whole)) > 0
    for ours, theirs in zip(blobs_of(outline), blobs_of(whole), strict=True):
        assert not (ours.data or ours.double_data) and (theirs.data or theirs.double_data)
        assert same(stored_of(ours), stored_blob(theirs))


def source_of(path: Path) -> Source:
    return Source(open_input(path), path)


def write_net(path: Path, *blobs: bytes) -> None:
    net = pb.NetBytes(layer=[pb.LayerBytes(name="one", blobs=[pb.BlobBytes.FromString(blob) for blob in blobs])])
    path.write_bytes(net.SerializeToString())


ONE_BY_ONE = b"".join(b"\x2d" + np.float32(value).tobytes() for value in (1, 2, 3))  # field 5 as 32-bit numbers
SHAPE = pb.BlobBytes(shape=pb.BlobShape(dim=[3])).SerializeToString()
NUMBERS = np.float32([1, 2, 3]).tobytes()


@pytest.mark.parametrize(
    ("blob", "stays"),
    [
        (pb.BlobBytes(data=[NUMBERS]).SerializeToString(), True),
        (pb.BlobBytes(data=[NUMBERS[:4], NUMBERS[4:]]).SerializeToString(), False),
        (
            pb.BlobBytes(double_data=[np.float64([1, 2, 3]).tobytes()], double_diff=[b"8" * 24]).SerializeToString(),
            True,
        ),
        (pb.BlobBytes(raw_data_type=pb.BlobBytes.FLOAT, raw_data=NUMBERS).SerializeToString(), True),
        (ONE_BY_ONE, False),
        (ONE_BY_ONE + pb.BlobBytes(diff=[NUMBERS]).SerializeToString(), False),
        (pb.BlobBytes(data=[NUMBERS], array_index=7).SerializeToString(), True),
    ],
    ids=["packed", "in pieces", "doubles", "raw", "one by one", "of both kinds", "with a place of its own"],
)
def test_numbers_in_every_form(blob: bytes, stays: bool, tmp_path: Path) -> None:
    write_net(tmp_path / "x", blob + SHAPE, blob + SHAPE)
    outline, stored_of = read_outline(tmp_path / "x", pb.NetBytes)
    for found in blobs_of(outline):
        stored = stored_of(found)
        assert isinstance(stored._data, InFile) is stays
        assert list(stored.data) == [1, 2, 3] and same(stored, stored_blob(pb.BlobBytes.FromString(blob + SHAPE)))
    assert [list(blob.data) for blob in read_model(tmp_path / "x").layers[0].blobs] == [[1, 2, 3]] * 2


@pytest.mark.parametrize(
    "content",
    [
        b"\x0b\x0c",  # a group
        b"\xa2\x06\x7f",  # a layer that goes on behind the end
        b"\xa2\x06",
        b"\xff" * 20,
        b"\x02\x00",  # a field of number 0
    ],
)
def test_what_is_no_message_is_left_to_protobuf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((INTEROP / MODELS[0]).read_bytes() + content)
    assert outline_of(source_of(tmp_path / "x"), pb.NetBytes) is None


def test_too_many_fields_are_left_to_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_file, "MOST_FIELDS", 20)
    assert outline_of(source_of(INTEROP / MODELS[0]), pb.NetBytes) is None
    theirs = read_binary(INTEROP / MODELS[0], pb.NetBytes)
    ours = read_model(INTEROP / MODELS[0])
    assert [list(blob.shape) for layer in ours.layers for blob in layer.blobs] == [
        list(blob.shape.dim) for blob in blobs_of(theirs)
    ]


def test_a_file_that_is_cut_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes((INTEROP / MODELS[0]).read_bytes())
    model = read_model(path)
    with open(path, "rb+") as file:
        file.truncate(100)
    with pytest.raises(SnapshotError, match=f"{path} has become shorter"):
        model.checksum()


def test_a_file_that_is_replaced_after_it_was_opened_is_read_on(tmp_path: Path) -> None:
    write_model(tmp_path / "x.caffemodel", read_model(INTEROP / MODELS[0]))
    model = read_model(tmp_path / "x.caffemodel")
    before = model.checksum()
    write_model(tmp_path / "x.caffemodel", read_model(INTEROP / "v1.caffemodel"))
    assert model.checksum() == before != read_model(tmp_path / "x.caffemodel").checksum()


@pytest.mark.parametrize("name", MODELS)
def test_models_are_written_as_protobuf_writes_them(name: str, tmp_path: Path) -> None:
    model = read_model(INTEROP / name)
    write_model(tmp_path / "x.caffemodel", model)
    content = (tmp_path / "x.caffemodel").read_bytes()
    assert pb.NetParameter.FromString(content).SerializeToString() == content
    assert content == (INTEROP / name).read_bytes() or name == "v1.caffemodel"  # which is brought up to date


def test_states_are_written_as_protobuf_writes_them(tmp_path: Path) -> None:
    path = INTEROP / "model_iter_8.solverstate"
    state = read_state(path)
    write_state(tmp_path / "x.solverstate", state)
    assert (tmp_path / "x.solverstate").read_bytes() == path.read_bytes()
    assert all(isinstance(blob._data, InFile) for blob in state.history)


DEEP = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 500 } } }
"""
LAYER = """
layer { name: "ip%d" type: "InnerProduct" bottom: "x" top: "y%d" inner_product_param { num_output: 1000 } }
"""
LARGEST_LAYER = 4 * 1000 * 501


def test_saving_and_loading_take_the_memory_of_one_layer_at_most(net_from: Callable[..., Net], tmp_path: Path) -> None:
    net = net_from(DEEP + "".join(LAYER % (index, index) for index in range(8)))
    for node in net.nodes:
        for blob in node.layer.blobs:
            blob.data[...] = np.random.default_rng(node.index).random(blob.shape)
    before = [np.array(own.blob.data) for own in net.parameters.owned]
    path = str(tmp_path / "x.caffemodel")
    assert peak(lambda: write_model(path, to_model(net))) < 1.1 * LARGEST_LAYER
    net.parameters.flatten(np.zeros(net.parameters.extent, np.float32), np.zeros(net.parameters.extent, np.float32))
    for own in net.parameters.owned:
        own.blob.data[...] = 0
    assert peak(lambda: load_weights(net, path)) < 1.1 * LARGEST_LAYER
    for own, values in zip(net.parameters.owned, before, strict=True):
        assert np.array_equal(own.blob.data, values)


def peak(work: Callable[[], Any]) -> int:
    """The most bytes that it has allocated at a time."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
