"""Saves a run as a snapshot, and restores it: everything is read and checked before anything changes."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

import numpy as np

from fcaffe import log
from fcaffe.errors import OtherRunError, SnapshotError
from fcaffe.model_files import Model, write_model
from fcaffe.net.weights import copy_weights, gathered, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import LARGEST
from fcaffe.rng.counter import KEYS
from fcaffe.solvers.evaluation import mean_statistics
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot import carried
from fcaffe.solvers.snapshot.files import CarriedArray, State, paths, read_checked, read_model_of, size_of, write_state
from fcaffe.solvers.snapshot.runs import newest, written
from fcaffe.timeline import SNAPSHOT

SLACK = 1 << 20  # bytes of a state besides its arrays


def save(run: Run, states: carried.States | None = None, prefix: str = "") -> str:
    """Write model and state, under the solver's prefix or this one. Returns the state's path, "" on workers but 0.

    All workers call this. In a test `states` are those before the test, which a resumed run repeats.
    """
    with run.timeline.span(SNAPSHOT):
        states = states or carried.states_of(run)
        with mean_statistics(run):
            resume, arrays = carried.collect(run, states)
            if run.workers.rank and run.data.size == run.net.parameters.exchanged:
                return ""
            return _write(run, prefix or run.param.snapshot_prefix, resume, arrays)


def _write(run: Run, prefix: str, resume: Any, arrays: list[CarriedArray]) -> str:
    """Worker 0 writes; if weights are split, the others send it their parts."""
    is_writer, hdf5 = run.workers.rank == 0, run.param.snapshot_format == pb.SolverParameter.HDF5
    if is_writer:
        prefix = run.identity.prefix_for(prefix, run.iteration, hdf5)
    model_path, state_path = paths(prefix, run.iteration, hdf5)
    kind = "HDF5" if hdf5 else "binary proto"
    log.snapshotting_model(model_path, kind)
    model = to_model(run.net, run.param.snapshot_diff)
    resume.made_with.CopyFrom(made_with(run))
    problem = None
    if is_writer:
        try:
            write_model(model_path, model)
            resume.made_with.weights = model.checksum() or 0
        except SnapshotError as error:  # the other workers still send their parts of the history
            problem = error
    log.snapshotting_state(state_path, kind)
    del model  # which has copies of the parts
    state = State(run.iteration, run.current_step, model_path, _history(run), resume, arrays)
    if problem:
        raise problem
    if not is_writer:
        return ""
    resume.origin.CopyFrom(run.identity.origin())
    if not hdf5 and size_of(state) > LARGEST - SLACK:
        state.carried = [array for array in arrays if (array.net, array.owner) != carried.EXCHANGE]
        log.warning(
            f"{state_path} is written without the residuals of --compress, since with them it exceeds the 2 GiB of a "
            "protobuf file: a resumed run begins without them; set snapshot_format: HDF5"
        )
    write_state(state_path, state)
    return state_path


def _history(run: Run) -> list[StoredBlob]:
    history = []
    for flat in run.history:
        host = run.engine.to_numpy(flat)
        for parameter, own in run.net.parameters.with_slices():
            blob = parameter.blob
            values = gathered(run.context, blob, blob.logical(host[own]))
            history.append(StoredBlob(run.context.whole_shape(blob), values))
    return history


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


# --- the run that wrote a state ---------------------------------------------------------------------------------------


# Types of solvers whose histories have the same meaning.
ALIKE = frozenset({"SGD", "Nesterov"})

_NAMES = {
    "solver_type": "type",
    "batch_size": "batch size",
    "random_seed": "random_seed",
    "iter_size": "iter_size",
    "workers": "workers",
    "engine": "engine",
    "compression": "--compress",
    "shards": "--reproducible",
}


def made_with(run: Run) -> Any:
    """The MadeWith message of a run, without the checksum of the weights."""
    param = run.param
    made = pb.MadeWith(
        solver_type=param.type,
        batch_size=run.share.total,
        iter_size=param.iter_size,
        random_seed=param.random_seed,
        workers=run.workers.size,
        engine=run.engine.name,
        compression=run.exchange.compression,
        shards=run.shards.size if run.shards else 0,
    )
    for node in run.net.nodes:
        if node.layer.type != "Split":  # inserted by the net
            layer = made.layer.add(name=node.name, type=node.layer.type)
            for blob in node.layer.blobs:
                layer.shape.add(dim=run.context.whole_shape(blob))
    return made


def refuse_other(made: Any, now: Any, path: str) -> None:
    """Raise OtherRunError if the run `now` cannot resume from the state that the run `made` wrote to `path`."""
    if made.solver_type != now.solver_type and not ALIKE.issuperset({made.solver_type, now.solver_type}):
        raise OtherRunError(
            f"{path} is the state of a solver of type {made.solver_type}, and this one is of type {now.solver_type}, "
            "whose history means something else: set the type back, or give the model as --weights"
        )
    theirs, ours = (
        [(layer.name, [tuple(shape.dim) for shape in layer.shape]) for layer in run.layer if layer.shape]
        for run in (made, now)
    )
    for (their_name, their_shapes), (name, shapes) in zip_longest(theirs, ours, fillvalue=("", [])):
        if (their_name, their_shapes) != (name, shapes):
            none = "no further layer with parameters"
            then = f'the layer "{their_name}" with parameters of the shapes {their_shapes}' if their_name else none
            here = f'"{name}" with {shapes}' if name else none
            raise OtherRunError(
                f"{path} is the state of another net: it has {then} where this net has {here}; give the net that it "
                "was made with, or the model as --weights"
            )


def tell_differences(made: Any, now: Any, path: str) -> None:
    """Log the differences between this run and the run that wrote the state at `path`."""
    fields = [field for field in _NAMES if getattr(made, field) != getattr(now, field)]
    if made.shards and made.shards == now.shards:  # the result does not depend on the number of workers
        fields = [field for field in fields if field != "workers"]
    then, here = ([f"{_NAMES[field]} {getattr(run, field) or 0}" for field in fields] for run in (made, now))
    theirs, ours = ({(layer.name, layer.type) for layer in run.layer} for run in (made, now))
    for side, layers in ((then, theirs - ours), (here, ours - theirs)):
        side += [f'layer "{name}" of type {kind}' for name, kind in sorted(layers)]
    if then or here:
        log.warning(
            f"{path} was made with {', '.join(then) or 'less'}; this run has {', '.join(here) or 'none of it'}. It "
            "goes on, but not as that one would have"
        )
    if made.random_seed != now.random_seed:
        log.warning("The random streams go on from the state; the other random_seed has no effect")
