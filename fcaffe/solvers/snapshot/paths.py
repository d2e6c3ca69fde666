"""Paths of new snapshots, and whether they can be written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fcaffe.errors import SnapshotError, SolverError
from fcaffe.output_files import remove_leftovers
from fcaffe.proto import caffe_pb2 as pb

HDF5_SUFFIX = ".h5"


def check_writable(param: Any) -> None:
    """Raise FcaffeError if snapshots cannot be written, and remove unfinished files of killed runs."""
    if not (param.snapshot or param.snapshot_after_train):
        return
    if not param.HasField("snapshot_prefix"):
        raise SolverError("the solver has no snapshot_prefix; give one, or set snapshot_after_train: false")
    if param.snapshot_format == pb.SolverParameter.HDF5:
        from fcaffe.hdf5 import h5py

        h5py()  # raises if it is missing
    probe = Path(f"{param.snapshot_prefix}.tempfile")
    try:
        probe.touch()
        probe.unlink(missing_ok=True)  # another training with this prefix may have done it
    except OSError as problem:
        raise SnapshotError(
            f"Cannot write to snapshot prefix '{param.snapshot_prefix}' ({problem.strerror}). "
            "Make sure that the directory exists and is writable."
        ) from problem
    remove_leftovers(f"{param.snapshot_prefix}_iter_")


def check_layer_names(param: Any, layers: Sequence[Any]) -> None:
    """Raise SnapshotError if the solver's snapshots are HDF5, which cannot hold layers of all names."""
    if param.snapshot_format == pb.SolverParameter.HDF5 and (param.snapshot or param.snapshot_after_train):
        from fcaffe.model_files.hdf5 import check_names

        check_names(layers)


def paths(prefix: str, iteration: int, hdf5: bool = False) -> tuple[str, str]:
    """The paths of the model and the state."""
    stem, suffix = f"{prefix}_iter_{iteration}", HDF5_SUFFIX if hdf5 else ""
    return f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}"


def best_path(param: Any) -> str:
    """The path of the weights of the best test of a run with these solver parameters."""
    suffix = HDF5_SUFFIX if param.snapshot_format == pb.SolverParameter.HDF5 else ""
    return f"{param.snapshot_prefix}_best.caffemodel{suffix}"


def temporary_prefix(prefix: str) -> str:
    """The prefix of the snapshots that --snapshot-every writes, which stay until the training has ended well."""
    return f"{prefix}_temporary"
