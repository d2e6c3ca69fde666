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
        from fcaffe.hdf5.reading import h5py

        h5py()  # raises if it is missing
    probe = Path(f"{param.snapshot_prefix}.tempfile")
    try:
        probe.touch()
        probe.unlink()
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


def states(prefix: str) -> list[str]:
    """The states under a prefix, latest iteration first; for the same iteration the newer file first."""
    pattern = re.compile(re.escape(os.path.basename(prefix)) + r"_iter_(\d+)\.solverstate(\.h5)?")
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}_iter_*.solverstate*"):
        if match := pattern.fullmatch(os.path.basename(path)):
            with contextlib.suppress(OSError):  # removed meanwhile, or a broken link
                found.append((int(match[1]), os.path.getmtime(path), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def temporary_prefix(prefix: str) -> str:
    """The prefix of snapshots that a job writes for itself, in case that it has to start again."""
    return f"{prefix}_temporary"


def remove_states(prefix: str, but: int = 0) -> None:
    """Remove the states and models under a prefix, but for the latest states and their models.

    A worker that was killed between the two files of a snapshot has left a model without a state.
    """
    kept = states(prefix)[:but]
    pattern = re.compile(re.escape(os.path.basename(prefix)) + r"_iter_\d+\.(solverstate|caffemodel)(\.h5)?")
    for path in sorted(glob.glob(f"{glob.escape(prefix)}_iter_*"), reverse=True):  # a state before its model
        if pattern.fullmatch(os.path.basename(path)) and path.replace(".caffemodel", ".solverstate") not in kept:
            with contextlib.suppress(OSError):  # another worker or the launcher was faster
                os.unlink(path)
