"""A training that is stopped after any iteration and resumed is bit for bit the one that was not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.net.layer import Held
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.solvers.control import Action
from fcaffe.solvers.snapshot.carried import part_of_worker
from fcaffe.solvers.snapshot.files import CarriedArray, State, paths, read_state, write_state
from tests.solvers.recurrent_runs import NET, Trained, solver_of, write_records
from tests.watching import watch

MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs the extra fcaffe[mpi]"
)

END = 9
TESTED = "test_iter: 2 test_interval: 2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path)
    return tmp_path


def fields(kind: str, more: str, momentum: float = 0.9) -> str:
    return f'{NET.format(kind=kind, momentum=momentum)} snapshot_prefix: "run" random_seed: 4 {more}'


@pytest.mark.parametrize(
    ("kind", "noise", "more"),
    [
        ("LSTM", "counter", f"iter_size: 2 average_loss: 4 {TESTED}"),
        ("LSTM", "caffe", f'average_loss: 2 type: "Adam" {TESTED} snapshot_format: HDF5'),
        ("RNN", "caffe", 'iter_size: 3 average_loss: 5 type: "Nesterov"'),
        ("RNN", "counter", f'type: "AdaDelta" {TESTED}'),
    ],
)
def test_after_any_iteration(kind: str, noise: str, more: str) -> None:
    if "HDF5" in more:
        pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    text = fields(kind, more)
    straight = Trained(solver_of(f"{text} snapshot: 1", noise), END)
    for cut in range(1, END, 1 if "iter_size: 2" in more else 3):
        resumed = solver_of(text, noise)
        resumed.restore(paths("run", cut, "HDF5" in more)[1])
        Trained(resumed, END - cut).assert_is_the_end_of(straight, cut, f"resumed at {cut}")


def test_after_a_snapshot_in_the_middle_of_a_test() -> None:
    """Who resumes there makes the whole test again, so it has to begin where that one began."""
    text = fields("LSTM", TESTED)
    straight, interrupted = (solver_of(text, "caffe") for _ in range(2))
    expected = Trained(straight, END)
    asked = iter([Action.NONE] * 7 + [Action.SNAPSHOT])  # after 4 iterations, between the batches of the second test
    interrupted.requested_action = lambda: next(asked, Action.NONE)
    states: list[tuple[int, bool]] = []
    state = Path("run_iter_4.solverstate")
    watch(interrupted, test_batch_begins=lambda: states.append((interrupted.iteration, state.exists())))
    Trained(interrupted, END).assert_is_the_end_of(expected, 0)
    assert (4, False) in states and (4, True) in states, "the snapshot came in the middle of a test"
    resumed = solver_of(text, "caffe")
    resumed.restore("run_iter_4.solverstate")
    Trained(resumed, END - 4).assert_is_the_end_of(expected, 4)


def test_a_state_without_what_is_carried_begins_anew_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    text = fields("LSTM", "")
    Trained(solver_of(f"{text} snapshot: 3"), 3)
    state = read_state("run_iter_3.solverstate")
    state.carried = []
    state.resume.ClearField("made_with")  # as earlier versions wrote it
    write_state("run_iter_3.solverstate", state)
    resumed = solver_of(text)
    resumed.restore("run_iter_3.solverstate")
    assert not any(blob.data.any() for blob in resumed.net.layers[resumed.net.layer_names.index("rnn")].hidden)
    assert 'layer "rnn" of the train net: begun anew' in capfd.readouterr().err
    Trained(resumed, 1)


@pytest.mark.parametrize("ending", ["", ".h5"])
def test_arrays_come_back_from_files(ending: str) -> None:
    if ending:
        pytest.importorskip("h5py", reason="the hdf5 extra (h5py) is not installed")
    arrays = [np.arange(6, dtype=np.float32).reshape(1, 2, 3), np.array(7), np.zeros(0, np.uint8), np.ones((2, 0))]
    carried = [CarriedArray("train", "it", index, str(index), array) for index, array in enumerate(arrays)]
    write_state(f"x{ending}", State(1, 0, "x.caffemodel", [], pb.ResumeState(seed=3), carried))
    found = read_state(f"x{ending}").carried
    assert [(a.net, a.owner, a.worker, a.name) for a in found] == [("train", "it", i, str(i)) for i in range(4)]
    for array, ours in zip(arrays, found, strict=True):
        assert ours.values.dtype == array.dtype and ours.values.shape == array.shape
        assert np.array_equal(ours.values, array)


def test_the_loss_of_another_window_begins_anew() -> None:
    text = fields("RNN", "")
    Trained(solver_of(f"{text} average_loss: 4 snapshot: 3"), 3)
    resumed = solver_of(f"{text} average_loss: 2")
    resumed.restore("run_iter_3.solverstate")
    assert len(Trained(resumed, 3).losses) == 3 and resumed.smoothed.count == 3


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two workers left that compress: see recurrent_runs.py."""
    folder = tmp_path_factory.mktemp("ranks")
    write_records(folder)
    script = Path(__file__).with_name("recurrent_runs.py")
    schemes = "topk:density=0.1,warmup=5", "onebit", "bf16", "fp16"
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", script, *schemes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "out").write_text(done.stdout)
    (folder / "log").write_text(done.stderr)
    return folder


@needs_mpi
def test_on_two_workers_that_compress(compressed: Path) -> None:
    """Each with a batch, a hidden state, statistics of BatchNorm and residuals of its own."""
    went_on = (compressed / "out").read_text()
    assert [went_on.count(f"{scheme} went on") for scheme in ("topk", "onebit", "bf16", "fp16")] == [2] * 4
    assert "begun anew" not in (compressed / "log").read_text()


@needs_mpi
@pytest.mark.parametrize("scheme", ["topk:density=0.1,warmup=5", "onebit", "bf16", "fp16"])
def test_one_worker_goes_on_for_two(scheme: str, compressed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What they have not sent yet is not lost; a hidden state for 2 + 2 streams fits in no net of 2, which is told."""
    from mpi4py import MPI

    from fcaffe.parallel.compression import make_compression
    from fcaffe.parallel.exchange import ReducingExchange

    name = scheme.partition(":")[0]
    exchange = ReducingExchange(make_compression(scheme, MPI.COMM_SELF), bucket=200)
    solver = solver_of(fields("LSTM", "average_loss: 3"), exchange=exchange)
    solver.restore(str(compressed / f"{name}_iter_3.solverstate"))
    kept = [dict(np.load(compressed / f"{name}{rank}.npz")) for rank in range(2)]
    for what, array in solver.exchange.state().items():
        expected = kept[0][what] + kept[1][what] if array.ndim else kept[0][what]
        assert np.array_equal(array, expected), what
    logged = capfd.readouterr().err
    assert 'of a run of 2 worker(s), has no state that fits layer "rnn" of the train net: begun anew' in logged
    assert "workers 2" in logged and "this run has" in logged
    assert len(Trained(solver, 2).losses) == 2


@needs_mpi
def test_what_another_compression_keeps_is_left_out_and_told(
    compressed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    solver = solver_of(fields("LSTM", ""))
    solver.restore(str(compressed / "topk_iter_3.solverstate"))
    logged = capfd.readouterr().err
    assert "--compress topk" in logged and "the exchange of gradients: begun anew" in logged
    solver.close()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_streams_go_to_any_workers_that_have_as_many_in_all(counts: list[int], data: st.DataObject) -> None:
    whole = np.arange(3 * sum(counts)).reshape(1, -1, 3)
    states = [{"h": part} for part in np.split(whole, np.cumsum(counts)[:-1], axis=1)]
    others = data.draw(st.permutations(counts)) if data.draw(st.booleans()) else [sum(counts)]
    parts = [part_of_worker(Held.STREAMS, states, rank, len(others), lambda: others) for rank in range(len(others))]
    assert np.array_equal(np.concatenate([part["h"] for part in parts if part], axis=1), whole)
    assert [part["h"].shape[1] for part in parts if part] == list(others)
    assert part_of_worker(Held.STREAMS, states, 0, 1, lambda: [sum(counts) + 1]) is None


@pytest.mark.parametrize("held", [Held.OWN, Held.MEAN])
def test_what_no_other_worker_can_take(held: Held) -> None:
    states = [{"own": np.array([rank])} for rank in range(3)]
    assert [part_of_worker(held, states, rank, 3) for rank in range(3)] == states
    assert [part_of_worker(held, states, rank, 2) for rank in range(2)] == [None, None]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 5))
def test_sums_stay_what_they_are_on_any_number_of_workers(then: int, now: int) -> None:
    states = [{"residual": np.full(2, 10.0**rank), "iteration": np.array(7)} for rank in range(then)]
    parts = [part_of_worker(Held.SUM, states, rank, now) for rank in range(now)]
    assert sum(part["residual"][0] for part in parts if part) == sum(10.0**rank for rank in range(then))
    assert all(part and part["iteration"] == 7 for part in parts)
