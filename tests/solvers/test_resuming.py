"""A training that is stopped after any iteration and resumed is bit for bit the one that was not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fcaffe.solvers import snapshot
from fcaffe.solvers.actions import Action
from fcaffe.solvers.state_files import read_state, write_state
from tests.solvers.recurrent_runs import NET, Trained, solver_of, write_records

MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs the extra fcaffe[mpi]"
)

END = 9
TESTED = "test_iter: 2 test_interval: 2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_records()
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
        resumed.restore(snapshot.paths("run", cut, "HDF5" in more)[1])
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
    interrupted.on_test_batch.append(lambda: states.append((interrupted.iteration, state.exists())))
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
    assert 'no state that fits for layer "rnn" of the train net' in capfd.readouterr().err
    Trained(resumed, 1)


def test_the_loss_of_another_window_begins_anew() -> None:
    text = fields("RNN", "")
    Trained(solver_of(f"{text} average_loss: 4 snapshot: 3"), 3)
    resumed = solver_of(f"{text} average_loss: 2")
    resumed.restore("run_iter_3.solverstate")
    assert len(Trained(resumed, 3).losses) == 3 and resumed.smoothed.count == 3


@needs_mpi
@pytest.mark.parametrize("scheme", ["topk:density=0.1,warmup=5", "onebit", "bf16"])
def test_on_two_workers_that_compress(scheme: str) -> None:
    """Each with a batch, a hidden state, statistics of BatchNorm and residuals of its own."""
    script = Path(__file__).with_name("recurrent_runs.py")
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", script, scheme]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("went on") == 2 and "begin(s) anew" not in done.stderr
