"""Paths of snapshots: new ones, existing ones, and whether they are writable."""

from __future__ import annotations

import contextlib
import glob
import os
import re
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


def states(prefix: str) -> list[str]:
    """The states under a prefix and its temporary ones, latest iteration first; of one the newer file first."""
    found = []
    for each in (prefix, temporary_prefix(prefix)):
        for path in _files(each, r"solverstate"):
            with contextlib.suppress(OSError):  # removed meanwhile, or a broken link
                found.append((_iteration(path), os.path.getmtime(path), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def temporary_prefix(prefix: str) -> str:
    """The prefix of the snapshots that --snapshot-every writes, which stay until the training has ended well."""
    return f"{prefix}_temporary"


def remove_temporary(prefix: str, but: int = 0) -> None:
    """Remove the temporary states and models under a prefix, but for those of so many latest states.

    A worker that was killed between the two files of a snapshot has left a model without a state, and one that was
    killed in a file an unfinished one.
    """
    remove_leftovers(f"{temporary_prefix(prefix)}_iter_", tell=False)
    files = sorted(_files(temporary_prefix(prefix), "solverstate|caffemodel"), reverse=True)  # a state before its model
    latest = sorted({_iteration(path) for path in files if ".solverstate" in os.path.basename(path)}, reverse=True)
    for path in files:
        if _iteration(path) not in latest[:but]:
            with contextlib.suppress(OSError):  # another worker was faster
                os.unlink(path)


def _files(prefix: str, kinds: str) -> list[str]:
    """The files of snapshots under a prefix, of these kinds."""
    pattern = re.compile(re.escape(os.path.basename(prefix)) + rf"_iter_\d+\.({kinds})(\.h5)?")
    paths = glob.glob(f"{glob.escape(prefix)}_iter_*")
    return [path for path in paths if pattern.fullmatch(os.path.basename(path))]


def _iteration(path: str) -> int:
    return int(os.path.basename(path).rpartition("_iter_")[2].partition(".")[0])
