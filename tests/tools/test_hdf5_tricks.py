"""HDF5 files that link to others, or claim what they do not hold, wherever they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.data.hdf5 import read_rows, write_rows
from fcaffe.errors import DataError, FcaffeError, SnapshotError
from fcaffe.model_files import Model, StoredLayer, read_model, write_model
from fcaffe.onnx.convert import convert
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.snapshot.files import State, read_state, write_state

h5py = pytest.importorskip("h5py")

BLOB = StoredBlob((2, 2), np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
MODEL = Model(pb.NetParameter(name="n"), [StoredLayer(pb.LayerParameter(name="a", type="X"), [BLOB])])
STATE = State(1, 0, "x", [BLOB], pb.ResumeState(seed=1))
WRITERS: dict[str, Callable[[Any], None]] = {
    "model": lambda path: write_model(path, MODEL),
    "state": lambda path: write_state(path, STATE),
    "rows": lambda path: write_rows(str(path), {"x": np.ones(4), "y": np.ones(4)}),
}
READERS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("model", "data/a/0", read_model),
    ("model", "diff/a/0", read_model),
    ("model", "data/a/0", lambda path: convert(str(path), f"{path}.npz")),
    ("state", "history/0", read_state),
    ("state", "iter", read_state),
    ("state", "learned_net", read_state),
    ("state", "resume/state", read_state),
    ("state", "history/0", lambda path: convert(str(path), f"{path}.solverstate")),
    ("rows", "y", lambda path: read_rows(str(path), ["y"])),
]


def external(file: Any, name: str, folder: Path) -> None:
    np.full((2, 2), 42, np.float32).tofile(folder / "values.bin")
    file.create_dataset(name, (2, 2), np.float32, external=[(folder / "values.bin", 0, 16)])


def virtual(file: Any, name: str, folder: Path) -> None:
    layout = h5py.VirtualLayout((2, 2), np.float32)
    layout[...] = h5py.VirtualSource(folder / "other.h5", "values", (2, 2))
    file.create_virtual_dataset(name, layout)


def external_link(file: Any, name: str, folder: Path) -> None:
    file[name] = h5py.ExternalLink("other.h5", "/values")


def soft_link(file: Any, name: str, folder: Path) -> None:
    file["aside"] = np.full((2, 2), 42, np.float32)
    file[name] = h5py.SoftLink("/aside")


@pytest.mark.parametrize("elsewhere", [external, virtual, external_link])
def test_values_in_another_file_are_refused_by_name(elsewhere: Callable[..., None], tmp_path: Path) -> None:
    """A model could have any file of the machine read."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["values"] = np.full((2, 2), 42, np.float32)
    for kind, name, read in READERS:
        path = tmp_path / "x.h5"
        WRITERS[kind](path)
        with h5py.File(path, "a") as file:
            del file[name]
            elsewhere(file, name, tmp_path)
        with pytest.raises(
            FcaffeError, match=f'{name.split("/")[-1]}"? (has its values in another file|is no)'
        ) as raised:
            read(path)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_links_within_a_file_are_followed(tmp_path: Path) -> None:
    values: dict[tuple[str, str], Callable[[Any], Any]] = {
        ("model", "data/a/0"): lambda path: read_model(path).layers[0].blobs[0].data,
        ("state", "history/0"): lambda path: read_state(path).history[0].data,
        ("rows", "y"): lambda path: read_rows(str(path), ["y"])[0],
    }
    for (kind, name), read in values.items():
        path = tmp_path / f"{kind}.h5"
        WRITERS[kind](path)
        with h5py.File(path, "a") as file:
            del file[name]
            soft_link(file, name, tmp_path)
        np.testing.assert_array_equal(read(path), np.full((2, 2), 42))


def references(file: Any, name: str, folder: Path) -> str:
    file.create_dataset(name, (2,), h5py.ref_dtype)
    return '/?{name}"? (is no|has values of type)'


def nothing_stored(file: Any, name: str, folder: Path) -> str:
    file.create_dataset(name, (2**31, 2**30), np.float64, chunks=(64, 64), fillvalue=1)
    return r'"/{name}" (of shape \(2147483648, 1073741824\) is not in the file|is no)'


def too_short(file: Any, name: str, folder: Path) -> str:
    file.create_dataset(name, (2**40,), np.uint8, chunks=(4096,), compression="gzip")[:4096] = 1
    return r'"/{name}" (of shape \(1099511627776,\) is not in the file|is no)'


@pytest.mark.parametrize("trick", [references, nothing_stored, too_short])
def test_what_is_not_in_the_file_is_refused_by_name(trick: Callable[..., str], tmp_path: Path) -> None:
    for kind, name, read in READERS:
        path = tmp_path / "x.h5"
        WRITERS[kind](path)
        with h5py.File(path, "a") as file:
            del file[name]
            pattern = trick(file, name, tmp_path).replace("{name}", name)
        with pytest.raises(FcaffeError, match=pattern) as raised:
            read(path)
        assert type(raised.value) is (DataError if kind == "rows" else SnapshotError), (kind, name)
        assert str(path) in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [10**13, np.arange(4), "text", h5py.Empty("f4")])
@pytest.mark.parametrize("name", ["data/a:layer", "data:net", "data/a:order"])
def test_attributes_that_are_not_ours(name: str, value: Any, tmp_path: Path) -> None:
    """bytes() of a number would take so much memory."""
    if name == "data/a:order" and isinstance(value, int):
        value = 0.5
    write_model(tmp_path / "x.h5", MODEL)
    group, _, attribute = name.partition(":")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file[group].attrs[attribute] = value
    with pytest.raises(SnapshotError, match=f'x.h5: attribute "{attribute}" of "/{group}" is not what fcaffe writes'):
        read_model(tmp_path / "x.h5")
