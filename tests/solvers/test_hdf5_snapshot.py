"""Snapshots in HDF5: Caffe's files read and written dataset by dataset, resuming, and what may go wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.model_files import read_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.snapshot.files import read_state
from fcaffe.solvers.snapshot.saving import restore_newest
from tests.solvers.training import INTEROP, assert_near, losses_of, weights_of

h5py = pytest.importorskip("h5py")

HDF5 = pb.SolverParameter.HDF5


def hdf5_items(path: Path | str) -> dict[str, Any]:
    """Every group (None) and dataset (its values) of an HDF5 file, by path."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()] if isinstance(item, h5py.Dataset) else None}))
    return found


def test_hdf5_files_are_caffes(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    solver = interop(snapshot_prefix="ours", snapshot_format=HDF5, snapshot_diff=True)
    solver.step(8)
    solver.snapshot()
    assert not list(Path().glob("ours*.caffemodel")), "one format only"
    for kind in ("caffemodel", "solverstate"):
        ours, theirs = hdf5_items(f"ours_iter_8.{kind}.h5"), hdf5_items(INTEROP / f"modelh_iter_8.{kind}.h5")
        extra = {name for name in set(ours) - set(theirs) if not name.startswith("resume")}
        assert not extra and set(theirs) <= set(ours)
        for name, golden in theirs.items():
            if name == "learned_net":
                assert ours[name] == b"ours_iter_8.caffemodel.h5"
            elif golden is not None:
                assert (ours[name].shape, ours[name].dtype) == (golden.shape, golden.dtype), name
                assert_near(ours[name], golden)
    logged = capfd.readouterr().err
    assert re.search(
        r"solver.cpp:474\] Snapshotting to HDF5 file ours_iter_8.caffemodel.h5\n"
        r".*sgd_solver.cpp:296\] Snapshotting solver state to HDF5 file ours_iter_8.solverstate.h5\n",
        logged,
    )


def test_strings_are_as_c_programs_read_them(interop: Any) -> None:
    interop(snapshot_prefix="ours", snapshot_format=HDF5).snapshot()
    for path in ("ours_iter_0.solverstate.h5", INTEROP / "modelh_iter_8.solverstate.h5"):
        with h5py.File(path) as file:
            dataset = file["learned_net"]
            kind = dataset.id.get_type()
            assert (dataset.shape, kind.get_strpad()) == ((), h5py.h5t.STR_NULLTERM)
            assert kind.get_size() == len(dataset[()]) + 1


def test_an_hdf5_state_of_caffes_resumes(interop: Any) -> None:
    for kind in ("caffemodel", "solverstate"):
        shutil.copy(INTEROP / f"modelh_iter_8.{kind}.h5", ".")
    resumed, binary = interop(snapshot_prefix="a"), interop(snapshot_prefix="b")
    resumed.restore("modelh_iter_8.solverstate.h5")
    for name in ("model_iter_8.caffemodel", "model_iter_8.solverstate"):
        shutil.copy(INTEROP / name, ".")
    binary.restore("model_iter_8.solverstate")
    assert (resumed.iteration, resumed.current_step) == (8, 2)
    assert losses_of(resumed, 3) == losses_of(binary, 3)
    for name, values in weights_of(resumed).items():
        assert np.array_equal(values, weights_of(binary)[name]), name


def test_auto_looks_at_both_formats(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    interop(snapshot_prefix="ours", snapshot=2).step(4)
    solver = interop(snapshot_prefix="ours", snapshot=4, snapshot_format=HDF5)
    solver.step(8)
    os.utime("ours_iter_4.solverstate", ns=(1, 1))
    fresh = interop(snapshot_prefix="ours")
    assert restore_newest(fresh) == "ours_iter_8.solverstate.h5"
    Path("ours_iter_8.solverstate.h5").write_bytes(Path("ours_iter_8.solverstate.h5").read_bytes()[:2000])
    assert restore_newest(fresh) == "ours_iter_4.solverstate.h5", "the newer of two"
    Path("ours_iter_4.caffemodel.h5").write_bytes(b"")
    assert restore_newest(fresh) == "ours_iter_4.solverstate"
    logged = capfd.readouterr().err
    assert "Passing over ours_iter_8.solverstate.h5: cannot read" in logged
    assert re.search(r"Passing over ours_iter_4\.solverstate\.h5: .*ours_iter_4\.caffemodel\.h5 is empty", logged)


WRONG = [
    ("modelh_iter_8.caffemodel.h5", "this is a model, not a solver state; give it as --weights"),
    ("part0.h5", "there is no state in it"),
    ("none.solverstate.h5", "does not exist"),
]


@pytest.mark.parametrize(("name", "message"), WRONG)
def test_other_files_are_no_states(name: str, message: str) -> None:
    with pytest.raises(SnapshotError, match=f"{name}:? {message}"):
        read_state(INTEROP / name)


def test_a_state_is_no_model() -> None:
    with pytest.raises(SnapshotError, match=r"\.h5: this is a solver state, not a model; give it as --snapshot"):
        read_model(INTEROP / "modelh_iter_8.solverstate.h5")


FULL_DISK = """
import os, resource, sys
import numpy as np
from fcaffe.data.hdf5 import write_rows
from fcaffe.errors import FcaffeError
from fcaffe.model_files import Model, StoredLayer, write_model
from fcaffe.proto import StoredBlob, caffe_pb2 as pb
from fcaffe.solvers.snapshot.files import State, write_state
blobs = [StoredBlob((500,), np.ones(500, np.float32)) for _ in range(40)]
model = Model(pb.NetParameter(), [StoredLayer(pb.LayerParameter(name=f"a{i}"), [b]) for i, b in enumerate(blobs)])
writes = {
    lambda path: write_model(path, model): ("x.h5", "x.caffemodel"),
    lambda path: write_state(path, State(1, 0, "m", blobs)): ("x.h5", "x.solverstate"),
    lambda path: write_rows(path, {"data": np.ones((500, 40)), "label": np.ones(500)}): ("x.h5",),
}
for write, path in ((write, path) for write, paths in writes.items() for path in paths):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    write(path)
    size = os.path.getsize(path)
    open(path, "w").write("as it was")
    for limit in {0, 1, 100, 800, 2048, 4096, 9000, *range(1000, size, size // 13), size - 1}:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            write(path)
            print("written", limit)
        except FcaffeError as error:
            assert str(error).startswith(f"cannot write {path}: File too large; "), error
            assert "ulimit -f" in str(error) and "\\n" not in str(error)
        assert os.listdir() == [path] and open(path).read() == "as it was"
    os.remove(path)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """Whichever write fails: HDF5 itself would crash at the end of a file that it could not write."""
    said = subprocess.run([sys.executable, "-c", FULL_DISK], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
