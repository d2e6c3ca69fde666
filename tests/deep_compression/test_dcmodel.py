"""Compressed models: sparse arrays come back bit for bit, and damaged files are refused."""

from __future__ import annotations

import zlib
from io import BytesIO
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from fcaffe.deep_compression import dcmodel
from fcaffe.deep_compression.dcmodel import MOST_NUMBERS, ZEROS, decode, encode
from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model, StoredLayer, arrays, read_model, write_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb


def sparse(size: int, density: float, kinds: int, dtype: type = np.float32, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    book: np.ndarray = rng.standard_normal(kinds).astype(dtype)
    return np.where(rng.random(size) < density, book[rng.integers(0, kinds, size)], dtype(0))


@pytest.mark.parametrize("kinds", [1, 2, 3, 300])
@pytest.mark.parametrize("density", [0, 0.002, 0.08, 0.5, 1])
@pytest.mark.parametrize("size", [0, 1, 2, 511, 9000])
def test_sparse_arrays_come_back(size: int, density: float, kinds: int) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        values = sparse(size, density, kinds, dtype)
        coded = encode(values)
        assert coded is not None
        assert decode(coded, values.dtype, size).tobytes() == values.tobytes()


@pytest.mark.parametrize("zeros", [0, 1, ZEROS - 1, ZEROS, ZEROS + 1, 2 * ZEROS - 1, 2 * ZEROS, 5000])
def test_zeros_of_any_number_in_a_row(zeros: int) -> None:
    values = np.zeros(2 * zeros + 2, np.float32)
    values[[zeros, -1]] = -0.0, np.nan  # neither is 0, and both are what they were
    coded = encode(values)
    assert coded is not None
    assert decode(coded, values.dtype, len(values)).tobytes() == values.tobytes()


def test_an_array_of_too_many_kinds_has_no_codes() -> None:
    most = np.arange(1, MOST_NUMBERS + 1, dtype=np.float32)
    coded = encode(most)
    assert coded is not None and np.array_equal(decode(coded, most.dtype, len(most)), most)
    assert encode(np.arange(1, MOST_NUMBERS + 2, dtype=np.float32)) is None
    late = np.concatenate([np.zeros(1 << 17), np.arange(1, MOST_NUMBERS + 2)])
    assert encode(late.astype(np.float32)) is None


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Model:
    def layer(name: str, *arrays: np.ndarray) -> StoredLayer:
        return StoredLayer(pb.LayerParameter(name=name, type="X"), [StoredBlob(a.shape, a) for a in arrays])

    bias = np.random.default_rng(1).standard_normal(30).astype(np.float32)
    layers = [
        layer("conv", sparse(1800, 0.3, 60).reshape(30, 60), bias),
        layer("ip", sparse(9000, 0.08, 30).reshape(30, 300), bias.astype(np.float64)),
        layer("zero", np.zeros((7, 9), np.float32), np.zeros((0, 3), np.float32), np.float32(3).reshape(())),
    ]
    return Model(pb.NetParameter(name="small"), layers)


def test_what_a_file_takes(model: Model, tmp_path: Path) -> None:
    model.layers[1].blobs[0] = StoredBlob((300, 900), sparse(270_000, 0.08, 32).reshape(300, 900))
    sizes = dcmodel.write(tmp_path / "x.dcmodel", model)
    size = (tmp_path / "x.dcmodel").stat().st_size
    assert sizes["zero", 0] < 10 and sizes["conv", 1] == 120 and sum(sizes.values()) < size < sum(sizes.values()) + 300
    bits_each = 8 * sizes["ip", 0] / np.count_nonzero(np.asarray(model.layers[1].blobs[0].data))
    assert bits_each < 10.3, "5 bits for one of 32 values, and the entropy of the gaps, 5.03 bits at this density"


def test_the_format_is_what_the_documentation_says(model: Model, tmp_path: Path) -> None:
    """Against a reader that knows nothing but docs/compression.md."""
    write_model(tmp_path / "x.dcmodel", model)
    content = (tmp_path / "x.dcmodel").read_bytes()
    assert content[:12] == b"\x89FCDM\r\n\x1a\2\0\0\0"
    assert int.from_bytes(content[-4:], "little") == zlib.crc32(content[:-4])
    file = BytesIO(content[12:-4])

    def number(size: int) -> int:
        return int.from_bytes(file.read(size), "little")

    assert number(8) == len(content)
    net = pb.NetParameter.FromString(zlib.decompress(file.read(number(8)), -15))
    assert [layer.name for layer in net.layer] == ["conv", "ip", "zero"]
    for layer, stored in zip(net.layer, model.layers, strict=True):
        for shape, blob in zip(layer.blobs, stored.blobs, strict=True):
            assert tuple(shape.shape.dim) == blob.shape
            form, dtype, array = number(1), f"<f{number(1)}", file.read(number(8))
            values = np.zeros(blob.data.size, dtype)
            if form == 1:
                values[:] = np.frombuffer(array, dtype)
            else:
                streams = []
                while array:
                    decoder = zlib.decompressobj(-15)
                    streams.append(decoder.decompress(array))
                    array = decoder.unused_data
                book, indices = np.frombuffer(streams[0], dtype), iter(zip_longest(*streams[2:], fillvalue=0))
                index = -1
                for zeros in streams[1]:
                    index += 255 if zeros == 255 else zeros + 1
                    if zeros != 255:
                        low, high = next(indices)
                        values[index] = book[low + 256 * high]
            np.testing.assert_array_equal(values, blob.data.reshape(-1))
            assert (number(1), number(1), number(8)) == (0, 0, 0), "there are no gradients"
    assert not file.read()


def test_every_damaged_byte_is_found(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "x.dcmodel"
    write_model(path, model)
    whole = path.read_bytes()
    for at in range(len(dcmodel.MAGIC), len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(SnapshotError, match=f"^{path}: it(s| is) "):
            read_model(path)
    for stop in (*range(len(dcmodel.MAGIC), 40), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:stop])
        with pytest.raises(SnapshotError, match=f"^{path}: it is cut off"):
            read_model(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(SnapshotError, match="its checksum is wrong"):
        read_model(path)
    path.write_bytes(whole[:8] + b"\x01" + whole[9:])
    with pytest.raises(SnapshotError, match="it is of version 1 of the format, and this fcaffe reads version 2"):
        read_model(path)


def test_files_with_a_right_checksum_and_wrong_content(model: Model, tmp_path: Path) -> None:
    """As somebody might make them on purpose: an error or a model, but no crash and no endless work."""
    path = tmp_path / "x.dcmodel"
    write_model(path, model)
    whole = path.read_bytes()
    refused, offsets = 0, range(20, len(whole) - 4, 5)
    for at in offsets:
        made = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 : -4]
        path.write_bytes(made + zlib.crc32(made).to_bytes(4, "little"))
        try:
            read_model(path)
        except SnapshotError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(offsets) / 5


def test_no_more_is_decoded_than_there_is_memory(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "x.dcmodel", model)
    monkeypatch.setattr(arrays, "obtainable_bytes", lambda _: 2000)
    with pytest.raises(SnapshotError, match=r"x\.dcmodel: its arrays take \d+ bytes, "):
        read_model(tmp_path / "x.dcmodel")
