"""Restores a run from a snapshot. Everything is read and checked before anything changes."""

from __future__ import annotations

import math

import numpy as np

from fcaffe import log
from fcaffe.errors import OtherRunError, SnapshotError
from fcaffe.model_files import Model
from fcaffe.net.weights import copy_weights
from fcaffe.rng.counter import KEYS
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot import carried
from fcaffe.solvers.snapshot.made_with import made_with, refuse_other, tell_differences
from fcaffe.solvers.snapshot.runs import newest, written
from fcaffe.solvers.snapshot.state_files import State, read_checked, read_model_of


def restore(run: Run, path: str) -> None:
    """Resume a run from the state at `path`. Raises SnapshotError, and changes nothing, if that is not possible.

    A state that Caffe wrote has no positions of readers and random streams: reading starts at the first record, as in
    Caffe. All workers call this, and get the weights and histories of worker 0.
    """
    state, model, model_path = _read(run, path)
    iteration = run.workers.broadcast_object(state.iteration)
    if iteration != state.iteration:
        raise SnapshotError(
            f"{path} is of iteration {state.iteration} here and of {iteration} for worker 0: all workers must see the "
            "same files"
        )
    log.restoring_history(run.param.type)
    copy_weights(run.net, model, model_path)
    run.iteration = state.iteration
    run.current_step = state.current_step
    run.identity.resume(written(path, state))
    run.smoothed.clear()
    parameters = run.net.parameters
    stored = iter(state.history)  # all blobs of a history, then those of the next one
    for flat in run.history:
        for parameter, own in parameters.with_slices():
            values = next(stored).data
            assert values is not None
            blob = parameter.blob
            values = run.context.part_of(values.reshape(run.context.whole_shape(blob)), blob.placement)
            blob.logical(flat[own])[...] = run.engine.from_numpy(values.astype(np.float32, copy=False))
    for array in (run.data, *run.history):
        run.workers.broadcast(array[: parameters.exchanged])
    if state.resume is not None:
        if state.resume.HasField("made_with"):
            tell_differences(state.resume.made_with, made_with(run), path)
        if state.resume.noise != run.context.noise:
            log.warning(f"{path} was made with --rng {state.resume.noise}, and this run has {run.context.noise}")
        elif (
            run.context.noise == "counter" and state.resume.noise_keys != KEYS and any(x.noise for x in run.net.layers)
        ):
            log.warning(
                f"{path} was written by a version that draws Dropout's masks and other noise otherwise. This run goes "
                "on, but not as that one would have"
            )
        carried.put_back(run, state.resume, state.carried, path)


def restore_newest(run: Run) -> str | None:
    """Resume from the newest whole snapshot under the solver's prefix. Returns its path, or None.

    Worker 0 chooses it for all, since on another host a file may appear later. Raises OtherRunError for a snapshot of
    another net, since a new run under the same prefix would overwrite its files.
    """
    path, problem = run.workers.broadcast_object(_newest_whole(run) if run.workers.rank == 0 else None)
    if problem is not None:
        raise OtherRunError(problem)
    if path is None:
        log.info(f"No whole snapshot {run.param.snapshot_prefix}_iter_*.solverstate[.h5]: starting from iteration 0")
        return None
    log.resuming(path)
    restore(run, path)
    return str(path)


def _newest_whole(run: Run) -> tuple[str | None, str | None]:
    """The path of the newest whole snapshot, or the error for a state of another net."""
    try:
        return newest(run.param.snapshot_prefix, lambda path: _read(run, path)), None
    except OtherRunError as problem:
        return None, f"{problem}; or give this run another snapshot_prefix"


def _read(run: Run, path: str) -> tuple[State, Model, str]:
    """Read state and model, and check them against the solver and its net."""
    owned = run.net.parameters.owned
    state = read_checked(path)
    if state.resume is not None and state.resume.HasField("made_with"):
        refuse_other(state.resume.made_with, made_with(run), path)
    if len(state.history) != len(owned) * run.rule.histories:
        raise SnapshotError(
            f"{path}: not a state of this {run.param.type} solver: it has {len(state.history)} history blobs, "
            f"this net needs {len(owned) * run.rule.histories}; give the .solverstate that belongs to this net"
        )
    for parameter, blob in zip(owned * run.rule.histories, state.history, strict=True):
        shape = run.context.whole_shape(parameter.blob)
        if math.prod(blob.shape) != math.prod(shape):
            raise SnapshotError(
                f"{path}: a history blob of shape {blob.shape} belongs to a parameter of layer "
                f'"{parameter.layer.name}" of shape {shape}; the net has changed'
            )
    model, model_path = read_model_of(state, path)
    stored = {layer.name for layer in model.layers}
    if missing := [parameter.layer.name for parameter in owned if parameter.layer.name not in stored]:
        raise SnapshotError(f'{model_path}: layer "{missing[0]}" is missing; the file is cut off or of another net')
    return state, model, model_path
