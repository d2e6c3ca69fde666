"""Writes snapshots of a run."""

from __future__ import annotations

from typing import Any

from fcaffe import log
from fcaffe.errors import SnapshotError
from fcaffe.model_files import write_model
from fcaffe.net.weights import gathered, to_model
from fcaffe.proto import StoredBlob
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.blobs import LARGEST
from fcaffe.solvers.run import Run
from fcaffe.solvers.snapshot import carried
from fcaffe.solvers.snapshot.made_with import made_with
from fcaffe.solvers.snapshot.paths import paths
from fcaffe.solvers.snapshot.state import CarriedArray, State, size_of
from fcaffe.solvers.snapshot.state_files import write_state
from fcaffe.solvers.testing import mean_statistics
from fcaffe.timeline import SNAPSHOT

SLACK = 1 << 20  # bytes of a state besides its arrays


def save(run: Run, states: carried.States | None = None, prefix: str = "") -> str:
    """Write model and state. All workers call this; worker 0 writes.

    Args:
        run: the run.
        states: what `states_of` returned; by default the present ones. In a test they are those before the test, since
            a resumed run repeats the test.
        prefix: prefix of the files' paths; by default the solver's.

    Returns:
        The path of the state on worker 0, "" on others.
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
    resume.origin.CopyFrom(run.identity.origin(run.param))
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
