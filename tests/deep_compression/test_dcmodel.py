"""Compressed models: sparse arrays come back bit for bit, and damaged files are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.model_files import Model, StoredLayer, arrays, read_model, write_model
from fcaffe.model_files.npz import MOST_NUMBERS, ZEROS, decode, encode
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb


def sparse(size: int, density: float, kinds: int, dtype: type = np.float32, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    book: np.ndarray = rng.standard_normal(kinds).astype(dtype)
    return np.where(rng.random(size) < density, book[rng.integers(0, kinds, size)], dtype(0))


def comes_back(values: np.ndarray) -> bool:
    """Whether the array has codes, from which it comes back bit for bit."""
    coded = encode(values)
    assert coded is None or decode(*coded).tobytes() == values.tobytes()
    return coded is not None


@pytest.mark.parametrize("kinds", [1, 2, 3, 300])
@pytest.mark.parametrize("density", [0, 0.002, 0.08, 0.5, 1])
@pytest.mark.parametrize("size", [0, 1, 2, 511, 9000])
def test_sparse_arrays_come_back(size: int, density: float, kinds: int) -> None:
    coded = [comes_back(sparse(size, density, kinds, dtype)) for dtype in (np.float16, np.float32, np.float64)]
    assert all(coded) or size < 9000 or density > 0.08


@pytest.mark.parametrize("zeros", [0, 1, ZEROS - 1, ZEROS, ZEROS + 1, 2 * ZEROS - 1, 2 * ZEROS, 5000])
def test_zeros_of_any_number_in_a_row(zeros: int) -> None:
    values = np.zeros(2 * zeros + 2, np.float32)
    values[[zeros, -1]] = -0.0, np.nan  # neither is 0, and both are what they were
    assert comes_back(values) == (zeros > 0)


def test_an_array_of_too_many_kinds_has_no_codes() -> None:
    for count in (MOST_NUMBERS, MOST_NUMBERS + 1):
        assert comes_back(np.arange(8 * MOST_NUMBERS, dtype=np.float32) % (count + 1)) == (count == MOST_NUMBERS)


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


def test_the_format_is_what_the_documentation_says(model: Model, tmp_path: Path) -> None:
    """Against a reader that knows nothing but docs/compression.md."""
    model.layers[1].blobs[0] = StoredBlob((300, 900), sparse(270_000, 0.08, 32).reshape(300, 900))
    write_model(tmp_path / "x.dcmodel", model)
    with zipfile.ZipFile(tmp_path / "x.dcmodel") as archive:
        packed = sum(info.compress_size for info in archive.infolist() if info.filename.startswith("ip/0"))
    numbers = np.count_nonzero(np.asarray(model.layers[1].blobs[0].data))
    assert 8 * packed / numbers < 10.6, "5 bits for one of 32 values, and the entropy of the gaps, 5.03 bits"
    with np.load(tmp_path / "x.dcmodel") as file:
        net = pb.NetParameter.FromString(file["net"].tobytes())
        for layer, stored in zip(net.layer, model.layers, strict=True):
            for index, (shape, blob) in enumerate(zip(layer.blobs, stored.blobs, strict=True)):
                assert tuple(shape.shape.dim) == blob.shape
                if (name := f"{layer.name}/{index}") in file:
                    values = file[name]
                else:
                    book, codes, at = file[f"{name}.book"], iter(file[f"{name}.codes"]), -1
                    values = np.zeros(blob.data.size, book.dtype)
                    for zeros in file[f"{name}.gaps"].tolist():
                        at += 255 if zeros == 255 else zeros + 1
                        if zeros != 255:
                            values[at] = book[next(codes)]
                np.testing.assert_array_equal(values.reshape(blob.shape), blob.data)


def test_every_damaged_byte_is_found_or_does_no_harm(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "x.dcmodel"
    write_model(path, model)
    whole, before = path.read_bytes(), read_model(path)
    for at in range(4, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            after = read_model(path)
        except SnapshotError as error:
            assert str(path) in str(error)
        else:  # of a date that nobody reads, or of a name, whose array is then missing
            assert after.checksum() in (before.checksum(), None)
    for stop in (*range(4, 40, 3), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:stop])
        with pytest.raises(SnapshotError, match=f"{path}"):
            read_model(path)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("gaps", np.full(9, 200, np.uint8)),
        ("gaps", np.zeros(9, np.float32)),
        ("gaps", None),
        ("codes", np.zeros(9, np.uint8)),
        ("codes", np.full(540, 60, np.uint8)),
        ("codes", np.zeros(540, np.int64)),
        ("book", np.zeros(0, np.float32)),
        ("book", np.arange(64)),
        ("shape", np.array([-30, 60])),
        ("shape", np.array([30, 6])),
        ("shape", np.float32([30, 60])),
    ],
)
def test_codes_that_do_not_fit(part: str, values: np.ndarray | None, model: Model, tmp_path: Path) -> None:
    write_model(tmp_path / "x.dcmodel", model)
    with np.load(tmp_path / "x.dcmodel") as file:
        content = {**file, f"conv/0.{part}": values}
    np.savez(tmp_path / "y.npz", **{name: array for name, array in content.items() if array is not None})
    with pytest.raises(SnapshotError, match=r"y\.npz: .* damaged"):
        read_model(tmp_path / "y.npz")


def test_no_more_is_decoded_than_there_is_memory(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "x.dcmodel", model)
    monkeypatch.setattr(arrays, "obtainable_bytes", lambda _: 2000)
    with pytest.raises(SnapshotError, match=r"x\.dcmodel: its arrays take \d+ bytes, "):
        read_model(tmp_path / "x.dcmodel")
