"""Snapshots: the model and the solver's state in Caffe's files, written whole or not at all.

What Caffe has no field for, the position in the data and the random streams, goes into a ResumeState, which Caffe
passes over; so a run that was stopped and resumed has the weights of one that was not.
"""

from __future__ import annotations

import glob
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fcaffe import log
from fcaffe.errors import SnapshotError, SolverError
from fcaffe.net import Net
from fcaffe.net.model_files import Model, read_model, write_model
from fcaffe.net.weights import copy_weights, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.state_files import HDF5_SUFFIX, State, read_state, write_state

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver


def check_writable(param: Any) -> None:
    """Refuse to start training whose snapshots could not be written."""
    if not (param.snapshot or param.snapshot_after_train):
        return
    if not param.HasField("snapshot_prefix"):
        raise SolverError("the solver has no snapshot_prefix; give one, or set snapshot_after_train: false")
    probe = Path(f"{param.snapshot_prefix}.tempfile")
    try:
        probe.touch()
        probe.unlink()
    except OSError as problem:
        raise SnapshotError(
            f"Cannot write to snapshot prefix '{param.snapshot_prefix}' ({problem.strerror}). "
            "Make sure that the directory exists and is writable."
        ) from problem


def paths(prefix: str, iteration: int, hdf5: bool = False) -> tuple[str, str]:
    """Model and state."""
    stem, suffix = f"{prefix}_iter_{iteration}", HDF5_SUFFIX if hdf5 else ""
    return f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}"


def write(solver: Solver) -> str:
    """Write model and state of the solver as it is; returns the state's path."""
    hdf5 = solver.param.snapshot_format == pb.SolverParameter.HDF5
    model_path, state_path = paths(solver.param.snapshot_prefix, solver.iteration, hdf5)
    kind = "HDF5" if hdf5 else "binary proto"
    log.snapshotting_model(model_path, kind)
    write_model(model_path, to_model(solver.net, solver.param.snapshot_diff))
    log.snapshotting_state(state_path, kind)
    write_state(state_path, _state(solver, model_path))
    return state_path


def restore(solver: Solver, path: str) -> None:
    """Put the solver where the state at `path` left off.

    Everything is read and checked before anything is changed. A state that Caffe wrote says nothing of data and
    randomness: reading then starts at the first record, as in Caffe. Raises SnapshotError.
    """
    state, model, model_path = _read(solver, path)
    log.restoring_history(solver.param.type)
    copy_weights(solver.net, model, model_path)
    solver.iteration = state.iteration
    solver.current_step = state.current_step
    parameters = solver.net.parameters
    for flat, blobs in zip(solver.history, _split(state.history, solver.histories), strict=True):
        for parameter, place, stored in zip(parameters.owned, parameters.slices(), blobs, strict=True):
            assert stored.data is not None
            values = stored.data.reshape(parameter.blob.shape).astype(np.float32, copy=False)
            parameter.blob.logical(flat[place])[...] = solver.engine.from_numpy(values)
    if state.resume is not None:
        _resume(solver, state.resume)


def restore_newest(solver: Solver) -> str | None:
    """Resume from the newest snapshot under the solver's prefix that is whole; returns its path, or None."""
    prefix = solver.param.snapshot_prefix
    for path in states(prefix):
        try:
            _read(solver, path)
        except SnapshotError as problem:
            log.warning(f"Passing over {path}: {problem}")
            continue
        log.resuming(path)
        restore(solver, path)
        return path
    log.info(f"No whole snapshot {prefix}_iter_*.solverstate[.h5]: starting from iteration 0")
    return None


class Memory:
    """The last state whose loss was finite, kept in memory."""

    def __init__(self, solver: Solver) -> None:
        self.data = solver.data.copy()
        self.history = [history.copy() for history in solver.history]
        self.state = _state(solver, "", with_history=False)

    def write(self, solver: Solver) -> str:
        """Put the solver back there and write a snapshot; returns the state's path."""
        solver.data[...] = self.data
        for history, kept in zip(solver.history, self.history, strict=True):
            history[...] = kept
        solver.iteration, solver.current_step = self.state.iteration, self.state.current_step
        _resume(solver, self.state.resume)
        return write(solver)


def states(prefix: str) -> list[str]:
    """The states under a prefix, in either format: the last iteration first, of one iteration the newer file."""
    pattern = re.compile(re.escape(os.path.basename(prefix)) + r"_iter_(\d+)\.solverstate(\.h5)?")
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}_iter_*.solverstate*"):
        if match := pattern.fullmatch(os.path.basename(path)):
            found.append((int(match[1]), os.path.getmtime(path), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _state(solver: Solver, model_path: str, with_history: bool = True) -> State:
    history = []
    if with_history:
        for flat in solver.history:
            host = solver.engine.to_numpy(flat)
            for parameter, place in zip(solver.net.parameters.owned, solver.net.parameters.slices(), strict=True):
                history.append(StoredBlob(parameter.blob.shape, parameter.blob.logical(host[place])))
    context = solver.context
    resume = pb.ResumeState(seed=context.seed, noise=context.noise, random=context.random.state())
    for net, layer in _readers(solver):
        position, random = layer.reader_state()
        resume.reader.add(net=net, layer=layer.name, position=position, random=random)
    return State(solver.iteration, solver.current_step, model_path, history, resume)


def _resume(solver: Solver, resume: Any) -> None:
    solver.context.seed = resume.seed
    solver.context.random.set_state(resume.random)
    kept = {(reader.net, reader.layer): reader for reader in resume.reader}
    for net, layer in _readers(solver):
        reader = kept.get((net, layer.name))
        if reader is not None:
            layer.set_reader_state(reader.position, reader.random)


def _readers(solver: Solver) -> list[tuple[str, Any]]:
    """Every layer that reads records, with a name for its net."""
    nets: list[tuple[str, Net]] = [("train", solver.net)]
    nets += [(f"test {index}", net) for index, net in enumerate(solver.test_nets)]
    return [(name, layer) for name, net in nets for layer in net.layers if hasattr(layer, "reader_state")]


def _read(solver: Solver, path: str) -> tuple[State, Model, str]:
    """State and model, checked against the solver's net."""
    state = read_state(path)
    owned = solver.net.parameters.owned
    if len(state.history) != len(owned) * solver.histories:
        raise SnapshotError(
            f"{path}: not a state of this {solver.param.type} solver: it has {len(state.history)} history blobs, "
            f"this net needs {len(owned) * solver.histories}; give the .solverstate that belongs to this net"
        )
    for parameter, blob in zip(owned * solver.histories, state.history, strict=True):
        if math.prod(blob.shape) != parameter.blob.count:
            raise SnapshotError(
                f"{path}: a history blob of shape {blob.shape} belongs to a parameter of layer "
                f'"{parameter.layer.name}" of shape {parameter.blob.shape}; the net has changed'
            )
    model_path = state.learned_net
    beside = os.path.join(os.path.dirname(path), os.path.basename(model_path))
    if not os.path.exists(model_path) and os.path.exists(beside):
        model_path = beside  # the snapshots were moved together
    model = read_model(model_path)
    stored = {layer.name: layer for layer in model.layers}
    for parameter in owned:
        name = parameter.layer.name
        if name not in stored:
            raise SnapshotError(f'{model_path}: layer "{name}" is missing; the file is cut off or of another net')
        blobs = stored[name].blobs
        shapes = [blob.shape for blob in blobs if blob.data is not None]
        if len(blobs) <= parameter.index or math.prod(blobs[parameter.index].shape) != parameter.blob.count:
            wanted = [blob.shape for blob in parameter.layer.blobs]
            raise SnapshotError(f'{model_path}: layer "{name}" has the shapes {shapes}, the net needs {wanted}')
    return state, model, model_path


def _split(items: list[Any], parts: int) -> list[list[Any]]:
    size = len(items) // parts
    return [items[k * size : (k + 1) * size] for k in range(parts)]
