"""Compressed models: sparse arrays and Huffman codes come back bit for bit, and damaged files are refused."""

from __future__ import annotations

import heapq
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from fcaffe.deep_compression import dcmodel
from fcaffe.deep_compression.huffman import LONGEST, MOST_SYMBOLS, STREAM, code_lengths, pack, unpack
from fcaffe.deep_compression.sparse_codes import ZEROS, decode, encode
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
@pytest.mark.parametrize("size", [0, 1, 2, STREAM - 1, STREAM, STREAM + 1, 9000])
def test_sparse_arrays_come_back(size: int, density: float, kinds: int) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        values = sparse(size, density, kinds, dtype)
        coded = encode(values)
        assert coded is not None
        assert decode(coded, size).tobytes() == values.tobytes()


@pytest.mark.parametrize("zeros", [0, 1, ZEROS - 1, ZEROS, ZEROS + 1, 2 * ZEROS - 1, 2 * ZEROS, 5000])
def test_zeros_of_any_number_in_a_row(zeros: int) -> None:
    values = np.zeros(2 * zeros + 2, np.float32)
    values[[zeros, -1]] = -0.0, np.nan  # neither is 0, and both are what they were
    coded = encode(values)
    assert coded is not None
    assert decode(coded, len(values)).tobytes() == values.tobytes()


def test_an_array_of_too_many_kinds_has_no_codes() -> None:
    assert encode(np.arange(1, MOST_SYMBOLS + 1, dtype=np.float32)) is not None
    assert encode(np.arange(1, MOST_SYMBOLS + 2, dtype=np.float32)) is None
    late = np.concatenate([np.zeros(1 << 17), np.arange(1, MOST_SYMBOLS + 2)])
    assert encode(late.astype(np.float32)) is None


def huffmans_bits(counts: np.ndarray) -> int:
    """What Huffman's own algorithm needs, without a limit to the length: merge the two rarest until one is left."""
    heap, total = [int(count) for count in counts if count], 0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


@pytest.mark.parametrize("seed", range(5))
def test_codes_are_as_short_as_huffmans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 1 + 10**seed, rng.integers(2, 400))
    lengths = code_lengths(counts)
    assert lengths.max() <= LONGEST and (counts[lengths > 0] > 0).all()
    assert int((counts * lengths).sum()) == huffmans_bits(counts)
    assert sum(2.0 ** -lengths[lengths > 0].astype(float)) in (0, 1)


def test_no_code_is_longer_than_the_limit() -> None:
    counts = 2 ** np.arange(40)  # Huffman's own codes would have up to 39 bits
    lengths = code_lengths(counts)
    assert lengths.max() == LONGEST and sum(2.0 ** -lengths.astype(float)) == 1
    symbols = np.repeat(np.arange(40), np.minimum(counts, 300))
    np.testing.assert_array_equal(unpack(pack(symbols)), symbols)
    assert code_lengths(np.ones(MOST_SYMBOLS, int)).max() == 12


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
    sizes = {(one.layer, one.blob): one.nbytes for one in dcmodel.write(tmp_path / "x.dcmodel", model)}
    size = (tmp_path / "x.dcmodel").stat().st_size
    assert sizes["zero", 0] == 0 and sizes["conv", 1] == 120 and sum(sizes.values()) < size < 3200
    bits_each = 8 * sizes["ip", 0] / np.count_nonzero(np.asarray(model.layers[1].blobs[0].data))
    assert bits_each < 10.5, "5 bits for one of 30 values, and the entropy of the gaps, 5.03 bits at this density"


def bit_by_bit(content: bytes, lengths: bytes, count: int) -> tuple[list[int], int]:
    """So many symbols of a canonical code as docs/compression.md describes it, and how many bits they take."""
    codes, code = {}, 0
    for length in range(1, 17):
        code <<= 1
        for symbol in (symbol for symbol, own in enumerate(lengths) if own == length):
            codes[length, code] = symbol
            code += 1
    if not codes:
        return [len(lengths) - 1] * count, 0
    bits = (byte >> (7 - place) & 1 for byte in content for place in range(8))
    found, taken = list[int](), 0
    while len(found) < count:
        length, code = 0, 0
        while (length, code) not in codes:
            length, code = length + 1, 2 * code + next(bits)
        found.append(codes[length, code])
        taken += length
    return found, taken


def test_the_format_is_what_the_documentation_says(model: Model, tmp_path: Path) -> None:
    """Against a reader that knows nothing but docs/compression.md, and takes one bit after the other."""
    write_model(tmp_path / "x.dcmodel", model)
    file = (tmp_path / "x.dcmodel").read_bytes()
    assert file[:12] == b"\x89FCDM\r\n\x1a\1\0\0\0" and int.from_bytes(file[-4:], "little") == zlib.crc32(file[:-4])
    packed, unpacked = int.from_bytes(file[12:16], "little"), int.from_bytes(file[16:20], "little")
    index, content = BytesIO(zlib.decompress(file[28 : 28 + packed])), BytesIO(file[28 + packed : -4])
    assert len(index.getvalue()) == unpacked and len(content.getvalue()) == int.from_bytes(file[20:28], "little")

    def number(size: int) -> int:
        return int.from_bytes(index.read(size), "little")

    net = pb.NetParameter.FromString(index.read(number(4)))
    assert [layer.name for layer in net.layer] == ["conv", "ip", "zero"]
    for layer, stored in zip(net.layer, model.layers, strict=True):
        for shape, blob in zip(layer.blobs, stored.blobs, strict=True):
            assert tuple(shape.shape.dim) == blob.shape
            form, itemsize = number(1), number(1)
            values = np.zeros(blob.data.size, f"<f{itemsize}")
            if form == 1:
                values[:] = np.frombuffer(content.read(values.nbytes), values.dtype)
            else:
                book = np.frombuffer(index.read(number(2) * itemsize), values.dtype)
                described = []
                for _ in range(2):
                    count, kinds = number(8), number(2)
                    lengths = index.read(kinds)
                    described.append((count, lengths, sum(number(2) for _ in range(-(-count // 512)))))
                symbols = []
                for count, lengths, bits in described:
                    found, taken = bit_by_bit(content.read(-(-bits // 8)), lengths, count)
                    assert taken == bits
                    symbols.append(found)
                place, codes = -1, iter(symbols[1])
                for zeros in symbols[0]:
                    place += 255 if zeros == 255 else zeros + 1
                    if zeros != 255:
                        values[place] = book[next(codes)]
            np.testing.assert_array_equal(values, blob.data.reshape(-1))
            assert number(2) == 0, "there are no gradients"
    assert not index.read() and not content.read()


def test_only_what_a_net_has_is_decoded(model: Model, tmp_path: Path) -> None:
    write_model(tmp_path / "x.dcmodel", model)
    read = read_model(tmp_path / "x.dcmodel", {"conv": [1800, 30], "ip": [8, 30]})
    assert [[blob.has_data for blob in layer.blobs] for layer in read.layers] == [
        [True, True],
        [False, True],
        [False] * 3,
    ]
    assert [blob.shape for blob in read.layers[1].blobs] == [(30, 300), (30,)]


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
    path.write_bytes(whole[:8] + b"\x02" + whole[9:])
    with pytest.raises(SnapshotError, match="it is of version 2 of the format, and this fcaffe reads version 1"):
        read_model(path)


def test_files_with_a_right_check_sum_and_wrong_content(model: Model, tmp_path: Path) -> None:
    """As somebody might make them on purpose: an error or a model, but no crash and no endless work."""
    path = tmp_path / "x.dcmodel"
    write_model(path, model)
    whole = path.read_bytes()
    head = dcmodel._HEAD
    _, version, packed, unpacked, size = head.unpack_from(whole)
    index = bytearray(zlib.decompress(whole[head.size : head.size + packed]))
    content = whole[head.size + packed : -4]
    refused, places = 0, range(0, len(index), 11)
    for at in places:
        damaged = bytes(index[:at]) + bytes([index[at] ^ 0xFF]) + bytes(index[at + 1 :])
        again = zlib.compress(damaged)
        made = head.pack(dcmodel.MAGIC, version, len(again), unpacked, size) + again + content
        path.write_bytes(made + zlib.crc32(made).to_bytes(4, "little"))
        try:
            read_model(path)
        except SnapshotError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > len(places) / 3


def test_no_more_is_decoded_than_there_is_memory(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "x.dcmodel", model)
    monkeypatch.setattr(arrays, "obtainable_bytes", lambda _: 2000)
    with pytest.raises(SnapshotError, match=r"x\.dcmodel: its arrays take \d+ bytes, "):
        read_model(tmp_path / "x.dcmodel")
