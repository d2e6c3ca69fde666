"""What a run does with a state that it cannot continue, or that was made otherwise, and with files that were cut."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fcaffe.errors import OtherRunError, SnapshotError
from fcaffe.model_files import read_model, write_model
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.binary import read_binary
from fcaffe.solvers import Solver
from fcaffe.solvers.snapshot.files import State, read_state, write_state
from fcaffe.solvers.snapshot.saving import restore_newest
from tests.solvers.training import weights_of

NET = """
net_param {{
  layer {{ name: "data" type: "DummyData" top: "data" top: "label"
          dummy_data_param {{ shape {{ dim: {batch} dim: 3 }} shape {{ dim: {batch} }}
            data_filler {{ type: "gaussian" }} data_filler {{ type: "constant" }} }} }}
  layer {{ name: "{first}" type: "InnerProduct" bottom: "data" top: "a"
          inner_product_param {{ num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "act" type: "{activation}" bottom: "a" top: "a" }}
  layer {{ name: "{second}" type: "InnerProduct" bottom: "a" top: "b"
          inner_product_param {{ num_output: 3 weight_filler {{ type: "xavier" }} }} }}
  layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "b" bottom: "label" top: "loss" }}
}}
base_lr: 0.1 lr_policy: "fixed" snapshot_prefix: "run" snapshot_after_train: false max_iter: 4 random_seed: 1
"""
AS_IT_IS = {"batch": 4, "first": "ip1", "second": "ip2", "outputs": 3, "activation": "ReLU"}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver_from: Callable[..., Solver]) -> Callable[..., Solver]:
    """made(batch=8, iter_size=2, ...): a solver of a net with other words, or with other fields."""
    monkeypatch.chdir(tmp_path)

    def make(**changes: Any) -> Solver:
        words = {name: changes.pop(name) for name in list(changes) if name in AS_IT_IS}
        weights = "".join(f' weights: "{path}"' for path in changes.pop("weights", []))
        return solver_from(NET.format(**{**AS_IT_IS, **words}) + weights, **changes)

    return make


def trained(solver: Solver, iterations: int = 3) -> str:
    """The state after some iterations."""
    solver.step(iterations)
    return solver.snapshot()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "Adam"}, "solver of type SGD, and this one is of type Adam"),
        ({"type": "AdaGrad"}, "solver of type SGD, and this one is of type AdaGrad"),
        ({"first": "other"}, 'has the layer "ip1".*where this net has "other"'),
        ({"first": "ip2", "second": "ip1"}, 'has the layer "ip1".*where this net has "ip2"'),
        ({"outputs": 5}, r'"ip1" with parameters of the shapes \[\(3, 3\), \(3,\)\].*\[\(5, 3\), \(5,\)\]'),
        ({"activation": "PReLU"}, 'has the layer "ip2".*where this net has "act"'),
    ],
)
def test_a_state_of_another_run_is_refused(made: Callable[..., Solver], changes: Any, message: str) -> None:
    state = trained(made())
    solver = made(**changes)
    before = weights_of(solver)
    for restore in (lambda: solver.restore(state), lambda: restore_newest(solver)):
        with pytest.raises(OtherRunError, match=message):
            restore()
    assert solver.iteration == 0 and not any(history.any() for history in solver.history)
    assert all(np.array_equal(values, before[name]) for name, values in weights_of(solver).items())


def test_what_differs_is_told(made: Callable[..., Solver], capfd: pytest.CaptureFixture[str]) -> None:
    state = trained(made())
    solver = made(activation="TanH")
    capfd.readouterr()
    solver.restore(state)
    (line,) = re.findall(r"^W.*was made with.*$", capfd.readouterr().err, re.MULTILINE)
    then, now = (f'layer "act" of type {kind}' for kind in ("ReLU", "TanH"))
    assert line.endswith(
        f"{state} was made with {then}; this run has {now}. It goes on, but not as that one would have"
    )
    assert solver.iteration == 3


@pytest.mark.parametrize("activation", ["Dropout", "ReLU"])
def test_a_state_with_noise_of_other_keys_says_so(
    made: Callable[..., Solver], activation: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = trained(made(activation=activation, noise="counter"))
    for older in (False, True):
        if older:
            state = read_state(path)
            state.resume.ClearField("noise_keys")
            write_state(path, state)
        capfd.readouterr()
        made(activation=activation, noise="counter").restore(path)
        lines = re.findall(r"^W.*other noise otherwise.*$", capfd.readouterr().err, re.MULTILINE)
        assert len(lines) == (older and activation == "Dropout")


@pytest.mark.parametrize("field", [f.name for f in pb.MadeWith.DESCRIPTOR.fields if not f.message_type] + ["noise"])
def test_every_setting_of_a_run_is_compared(
    made: Callable[..., Solver], field: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A state that is the same but for one setting is refused, or a line has that setting's two values."""
    if field in ("weights", "grown_batch"):  # the model's checksum, which finds the model; a former setting
        return
    path = trained(made())
    state = read_state(path)
    where = state.resume if field == "noise" else state.resume.made_with
    value = getattr(where, field)
    setattr(where, field, f"{value}x" if isinstance(value, str) else value + 3)
    other = getattr(where, field)
    write_state(path, state)
    capfd.readouterr()
    try:
        made().restore(path)
    except OtherRunError as error:
        told = str(error)
    else:
        (told, *_) = (line for line in capfd.readouterr().err.splitlines() if "was made with" in line)
    assert re.search(rf" {other}\b.*\b(has|of type) .*", told) and (value in (0, "") or str(value) in told)


def test_the_same_run_is_told_nothing(made: Callable[..., Solver], capfd: pytest.CaptureFixture[str]) -> None:
    state = trained(made())
    solver = made()
    capfd.readouterr()
    solver.restore(state)
    assert not re.findall(r"^W.*$", capfd.readouterr().err, re.MULTILINE)


# --- files that were cut, mixed up, or are no states ------------------------------------------------------------------


def test_a_model_that_is_not_the_states_is_refused(made: Callable[..., Solver]) -> None:
    state = trained(made())
    Path("kept").mkdir()
    for path in Path().glob("run_iter_3.*"):
        shutil.copy(path, "kept")
    solver = made(random_seed=9)
    assert trained(solver, 0) and trained(solver) == state  # another run, of the same prefix
    shutil.copy("kept/run_iter_3.solverstate", state)
    fresh = made()
    with pytest.raises(SnapshotError, match=r"run_iter_3\.caffemodel: not the model that was written with .*--weights"):
        fresh.restore(state)
    assert fresh.iteration == 0
    fresh.restore("kept/run_iter_3.solverstate")  # whose own model lies beside it
    assert fresh.iteration == 3


DAMAGE: dict[str, Callable[[State], Any]] = {
    "iteration below 0": lambda state: setattr(state, "iteration", -1),
    "step below 0": lambda state: setattr(state, "current_step", -1),
    "no model": lambda state: setattr(state, "learned_net", ""),
    "a missing model": lambda state: setattr(state, "learned_net", "none.caffemodel"),
    "a history less": lambda state: state.history.pop(),
    "a history of another shape": lambda state: state.history.append(state.history.pop(0)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_state_is_refused_and_auto_takes_an_earlier_one(made: Callable[..., Solver], what: str) -> None:
    solver = made()
    trained(solver, 2)
    path = trained(solver, 1)
    state = read_state(path)
    DAMAGE[what](state)
    write_state(path, state)
    fresh = made()
    with pytest.raises(SnapshotError, match=r"run_iter_3\.solverstate|none\.caffemodel"):
        fresh.restore(path)
    assert fresh.iteration == 0
    assert restore_newest(fresh) == "run_iter_2.solverstate" and fresh.iteration == 2


def test_a_model_of_the_same_values_serves_in_any_format(made: Callable[..., Solver]) -> None:
    solver = made()
    state = trained(solver)
    write_model("run.npz", read_model("run_iter_3.caffemodel"))
    Path("run.npz").rename("run_iter_3.caffemodel")
    fresh = made()
    fresh.restore(state)
    assert all(np.array_equal(values, weights_of(solver)[name]) for name, values in weights_of(fresh).items())


# --- what Caffe wrote -------------------------------------------------------------------------------------------------


def test_files_of_caffes_say_nothing_and_are_taken(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    solver = interop(snapshot_prefix="ours", random_seed=77, iter_size=2)
    capfd.readouterr()
    solver.restore("model_iter_4.solverstate")
    assert "was made with" not in capfd.readouterr().err
    assert solver.iteration == 4


def test_what_caffe_reads_of_our_files_is_as_before(made: Callable[..., Solver]) -> None:
    """The marks and what else is ours are fields that Caffe does not know."""
    state = trained(made())
    for path, kind, field in (
        (state, pb.SolverState, "resume"),
        ("run_iter_3.caffemodel", pb.NetParameter, "written"),
    ):
        message = read_binary(path, kind)
        assert message.written == pb.WHOLE and message.HasField(field)
        assert all(
            described.number < 100000 or described.name in ("resume", "written")
            for described, _ in message.ListFields()
        )


def test_a_state_of_caffes_that_lacks_its_last_field_is_told(interop: Any, capfd: pytest.CaptureFixture[str]) -> None:
    state = read_binary("model_iter_4.solverstate", pb.SolverState)
    assert state.HasField("current_step")
    state.ClearField("current_step")
    Path("model_iter_4.solverstate").write_bytes(state.SerializeToString())
    solver = interop()
    solver.restore("model_iter_4.solverstate")
    assert solver.current_step == 0
    assert "model_iter_4.solverstate has no current_step" in capfd.readouterr().err


# --- finetuning, and where the end is ---------------------------------------------------------------------------------


def test_layers_without_weights_are_named_in_one_line(
    made: Callable[..., Solver], capfd: pytest.CaptureFixture[str]
) -> None:
    trained(made())
    shutil.copy("run_iter_3.caffemodel", "a.caffemodel")
    model = read_model("a.caffemodel")
    model.layers = [layer for layer in model.layers if layer.name == "ip2"]
    write_model("b.caffemodel", model)
    capfd.readouterr()
    for changes, names in (
        ({"weights": ["a.caffemodel"]}, None),
        ({"weights": ["b.caffemodel"]}, "b.caffemodel has no weights for the layer(s) ip1: "),
        ({"weights": ["b.caffemodel, a.caffemodel"]}, None),
        (
            {"weights": ["b.caffemodel", "b.caffemodel"], "first": "new"},
            "caffemodel has no weights for the layer(s) new: ",
        ),
        (
            {"weights": ["b.caffemodel"], "first": "x", "second": "y"},
            "b.caffemodel has no weights for the layer(s) x, y: they keep their initial ones",
        ),
    ):
        made(**changes)
        told = [line for line in capfd.readouterr().err.splitlines() if "has no weights" in line]
        assert len(told) == (names is not None), told
        assert names is None or names in told[0]


def test_a_state_beyond_the_end_trains_nothing_and_says_so(
    made: Callable[..., Solver], capfd: pytest.CaptureFixture[str]
) -> None:
    solver = made()
    state = trained(solver, 6)
    after = made(snapshot_after_train=True)
    after.solve(state)
    assert after.iteration == 6
    assert all(np.array_equal(values, weights_of(solver)[name]) for name, values in weights_of(after).items())
    assert "Nothing to train: this is iteration 6, and max_iter is 4" in capfd.readouterr().err
