"""Snapshots: the model and the solver's state in Caffe's files, written whole or not at all.

What Caffe has no field for goes into a ResumeState, which Caffe passes over: positions in the data, random streams, and
whatever else a run carries from one iteration to the next; so one that was stopped and resumed has the weights of one
that was not. A ResumeState also says what the state was made with, so that a run which cannot go on from it is refused.
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
from fcaffe.errors import OtherRunError, SnapshotError, SolverError
from fcaffe.net.model_files import Model, Places, read_model, write_model
from fcaffe.net.weights import copy_weights, places_in, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import LARGEST
from fcaffe.proto.leftovers import remove_leftovers
from fcaffe.solvers import carried
from fcaffe.solvers.carried import Point
from fcaffe.solvers.made_with import made_with, refuse_other, tell_differences
from fcaffe.solvers.smoothing import SmoothedLoss
from fcaffe.solvers.state_files import HDF5_SUFFIX, State, read_state, size_of, write_state

if TYPE_CHECKING:
    from fcaffe.solvers.solver import Solver

SLACK = 1 << 20  # bytes of a state that are no array


def check_writable(param: Any) -> None:
    """Refuse to start training whose snapshots could not be written; remove what killed runs left of theirs."""
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
    remove_leftovers(f"{param.snapshot_prefix}_iter_")


def paths(prefix: str, iteration: int, hdf5: bool = False) -> tuple[str, str]:
    """Model and state."""
    stem, suffix = f"{prefix}_iter_{iteration}", HDF5_SUFFIX if hdf5 else ""
    return f"{stem}.caffemodel{suffix}", f"{stem}.solverstate{suffix}"


def write(solver: Solver, point: Point) -> str:
    """Write model and state of the solver as it is, at this point; returns the state's path.

    All workers call this. Worker 0 writes, the others give it what they carry, and get "".
    """
    resume, arrays = carried.collect(solver, point)
    if solver.workers.rank:
        return ""
    hdf5 = solver.param.snapshot_format == pb.SolverParameter.HDF5
    model_path, state_path = paths(solver.param.snapshot_prefix, solver.iteration, hdf5)
    kind = "HDF5" if hdf5 else "binary proto"
    log.snapshotting_model(model_path, kind)
    model = to_model(solver.net, solver.param.snapshot_diff)
    write_model(model_path, model)
    log.snapshotting_state(state_path, kind)
    resume.made_with.CopyFrom(made_with(solver))
    resume.made_with.weights = model.checksum() or 0
    state = State(solver.iteration, solver.current_step, model_path, _history(solver), resume, arrays)
    if not hdf5 and size_of(state) > LARGEST - SLACK:
        state.carried = [array for array in arrays if (array.net, array.owner) != carried.EXCHANGE]
        log.warning(
            f"{state_path} is written without what --compress has not sent yet, since with it protobuf could not hold "
            "the file: a run that goes on from it begins without; snapshot_format: HDF5 has room for it"
        )
    write_state(state_path, state)
    return state_path


def restore(solver: Solver, path: str) -> None:
    """Put the solver where the state at `path` left off.

    Everything is read and checked before anything is changed. A state that Caffe wrote says nothing of data and
    randomness: reading then starts at the first record, as in Caffe. All workers call this; weights and history are
    worker 0's. Raises SnapshotError.
    """
    state, model, model_path = _read(solver, path)
    iteration = solver.workers.broadcast_object(state.iteration)
    if iteration != state.iteration:
        raise SnapshotError(
            f"{path} is of iteration {state.iteration} here and of {iteration} for worker 0: all workers must see the "
            "same files"
        )
    log.restoring_history(solver.param.type)
    copy_weights(solver.net, model, model_path)
    solver.iteration = state.iteration
    solver.current_step = state.current_step
    solver.smoothed = SmoothedLoss(solver.param.average_loss)
    parameters = solver.net.parameters
    for flat, blobs in zip(solver.history, _split(state.history, solver.histories), strict=True):
        for parameter, place, stored in zip(parameters.owned, parameters.slices(), blobs, strict=True):
            assert stored.data is not None
            values = stored.data.reshape(parameter.blob.shape).astype(np.float32, copy=False)
            parameter.blob.logical(flat[place])[...] = solver.engine.from_numpy(values)
    for array in (solver.data, *solver.history):
        solver.workers.broadcast(array)
    if state.resume is not None:
        if state.resume.HasField("made_with"):
            tell_differences(state.resume.made_with, made_with(solver), path)
        if state.resume.noise != solver.context.noise:
            log.warning(f"{path} was made with --rng {state.resume.noise}, and this run has {solver.context.noise}")
        carried.put_back(solver, state.resume, state.carried, path)
    solver.engine.refresh_parameters()


def restore_newest(solver: Solver) -> str | None:
    """Resume from the newest snapshot under the solver's prefix that is whole; returns its path, or None.

    Worker 0 picks it for all: on another host a file may be there later, or not be readable. One of another run is no
    damage, to be passed over, but an OtherRunError: to start anew under the same prefix would write over its files.
    """
    path, problem = solver.workers.broadcast_object(_newest_whole(solver) if solver.workers.rank == 0 else None)
    if problem is not None:
        raise OtherRunError(problem)
    if path is None:
        log.info(f"No whole snapshot {solver.param.snapshot_prefix}_iter_*.solverstate[.h5]: starting from iteration 0")
        return None
    log.resuming(path)
    solver.restore(path)
    return str(path)


def _newest_whole(solver: Solver) -> tuple[str | None, str | None]:
    """The path, or what is wrong if a state of another run is in the way."""
    for path in states(solver.param.snapshot_prefix):
        try:
            _read(solver, path)
            return path, None
        except OtherRunError as problem:
            return None, f"{problem}; or give this run another snapshot_prefix"
        except SnapshotError as problem:
            log.warning(f"Passing over {path}: {problem}")
    return None, None


class Memory:
    """The last state whose loss was finite, kept in memory."""

    def __init__(self, solver: Solver) -> None:
        self.data = solver.data.copy()
        self.history = [history.copy() for history in solver.history]
        self.iteration, self.current_step = solver.iteration, solver.current_step
        self.point = Point.of(solver).copy()

    def put_back(self, solver: Solver) -> None:
        """Bring the solver back to this state. All workers call this."""
        solver.data[...] = self.data
        for history, kept in zip(solver.history, self.history, strict=True):
            history[...] = kept
        solver.iteration, solver.current_step = self.iteration, self.current_step
        self.point.put_back(solver)


def states(prefix: str) -> list[str]:
    """The states under a prefix, in either format: the last iteration first, of one iteration the newer file."""
    pattern = re.compile(re.escape(os.path.basename(prefix)) + r"_iter_(\d+)\.solverstate(\.h5)?")
    found = []
    for path in glob.glob(f"{glob.escape(prefix)}_iter_*.solverstate*"):
        if match := pattern.fullmatch(os.path.basename(path)):
            found.append((int(match[1]), os.path.getmtime(path), path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _history(solver: Solver) -> list[StoredBlob]:
    history = []
    for flat in solver.history:
        host = solver.engine.to_numpy(flat)
        for parameter, place in zip(solver.net.parameters.owned, solver.net.parameters.slices(), strict=True):
            history.append(StoredBlob(parameter.blob.shape, parameter.blob.logical(host[place])))
    return history


def _read(solver: Solver, path: str) -> tuple[State, Model, str]:
    """State and model, checked against the solver and its net."""
    owned = solver.net.parameters.owned
    state = read_state(path, [parameter.blob.count for parameter in owned * solver.histories])
    for name, number in (("iteration", state.iteration), ("current_step", state.current_step)):
        if number < 0:
            raise SnapshotError(f"{path}: its {name} is {number}; the file is damaged, take an earlier one")
    if not isinstance(state.learned_net, str) or not state.learned_net:
        raise SnapshotError(f"{path} does not name its model (learned_net); the file is damaged, take an earlier one")
    made = state.resume.made_with if state.resume is not None and state.resume.HasField("made_with") else None
    if made:
        refuse_other(made, made_with(solver), path)
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
    model, model_path = _model_of(state, path, made.weights if made else 0, places_in(solver.net))
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


def _model_of(state: State, path: str, checksum: int, wanted: Places) -> tuple[Model, str]:
    """The model that was written with a state, and where it is: where it was, or beside the state if the two were
    moved. A checksum of 0 fits all. Blobs that are not `wanted` are left unread."""
    beside = os.path.join(os.path.dirname(path), os.path.basename(state.learned_net))
    places = [place for place in dict.fromkeys((state.learned_net, beside)) if os.path.exists(place)]
    for place in places or [state.learned_net]:
        model = read_model(place, wanted)
        if checksum in (0, model.checksum()):
            return model, place
    raise SnapshotError(
        f"{' and '.join(places)}: not the model that was written with {path}, since other values are in it; put that "
        f"model in its place, or train from this one by --weights {places[0]}"
    )


def _split(items: list[Any], parts: int) -> list[list[Any]]:
    size = len(items) // parts
    return [items[k * size : (k + 1) * size] for k in range(parts)]
