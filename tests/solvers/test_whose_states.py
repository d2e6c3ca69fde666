"""Which run a state is of: the newest state, pruning, and what a training does beside other runs' files."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fcaffe.errors import OtherRunError, SnapshotError
from fcaffe.model_files import Model, StoredLayer, write_model
from fcaffe.output_files import temporary_name
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.proto.text import parse_text
from fcaffe.solvers.snapshot import runs
from fcaffe.solvers.snapshot.files import State, paths, read_state, temporary_prefix, write_state
from fcaffe.solvers.snapshot.runs import Identity, newest, states, written

SOLVER = 'net_param {{ layer {{ name: "{net}" type: "Silence" }} }} base_lr: {rate} snapshot: {every} max_iter: {last}'
COMMAND = "fcaffe train --solver s"


def solver_param(net: str = "net", rate: float = 1, every: int = 10, last: int = 40) -> Any:
    return parse_text(SOLVER.format(net=net, rate=rate, every=every, last=last), pb.SolverParameter)


def save(run: Identity | None, iteration: int, prefix: str = "run") -> str:
    """Write a state without histories, and a model without blobs; without a run they are as Caffe's."""
    if run is not None:
        prefix = run.prefix_for(prefix, iteration, hdf5=False)
    model, path = paths(prefix, iteration)
    resume = pb.ResumeState(origin=run.origin()) if run is not None else None
    write_state(path, State(iteration, 0, model, [], resume))
    write_model(model, Model(pb.NetParameter(), [StoredLayer(pb.LayerParameter(name="a"))]))
    return path


def resumed(path: str, prefix: str = "run") -> Identity:
    run = Identity(prefix)
    run.resume(written(path, read_state(path)))
    return run


@dataclass(eq=False)
class Node:
    """A state of the model: its run's process, what it follows, and when it was written."""

    path: str
    iteration: int
    process: int
    before: Node | None
    number: int


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("seed", range(60))
def test_newest_of_random_histories(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin and go on from any state, clocks jump, and files are damaged. The model follows which state came after
    which, and knows no times."""
    draw, numbers = random.Random(seed), itertools.count()
    monkeypatch.setattr("time.time_ns", lambda: draw.randrange(1, 2_000_000_000_000_000_000))
    known: dict[str, Node] = {}
    damaged = set[str]()
    for process in range(draw.randrange(1, 7)):
        earlier = draw.choice([None, *known.values()])
        run = resumed(earlier.path) if earlier else Identity("run")
        last, iteration = earlier, earlier.iteration if earlier else 0
        for _ in range(draw.randrange(1, 4)):
            iteration += draw.randrange(1, 4)
            path = save(run, iteration, draw.choice(["run", temporary_prefix("run")]))
            known[path] = last = Node(path, iteration, process, last, next(numbers))
            damaged.discard(path)
    for path in list(known):
        os.utime(path, ns=(draw.randrange(1 << 60),) * 2)
        if draw.random() < 0.3:
            damaged.add(path)
            if draw.random() < 0.5:  # of the others the model is damaged
                Path(path).write_bytes(Path(path).read_bytes()[: draw.randrange(30)])
                del known[path]

    def check(path: str) -> None:
        if path in damaged:
            raise SnapshotError("it is damaged")

    left, expected = set(known.values()), None
    while left and expected is None:
        latest = max(left, key=lambda node: node.number)
        line, at = set(), latest
        while at is not None:
            line.add(at)
            at = at.before
        run_of_latest = [node for node in left if node in line or node.process == latest.process]
        whole = [node for node in run_of_latest if node.path not in damaged]
        expected = max(whole, key=lambda node: node.iteration).path if whole else None
        left -= set(run_of_latest)
    assert newest("run", check) == expected


def test_copies_clocks_and_states_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    older = [save(None, 90), save(None, 70), save(None, 80)]
    for age, path in enumerate(older):
        os.utime(path, ns=(age + 1,) * 2)
    assert [one.path for one in states("run")] == [older[0], older[2], older[1]]  # by iteration
    first = Identity("run")
    save(first, 40)
    shutil.copy("run_iter_40.solverstate", "kept")
    second = Identity("run")
    save(second, 30)
    shutil.copy("kept", "run_iter_40.solverstate")  # now the file of the latest time
    assert newest("run", lambda path: None) == "run_iter_30.solverstate"
    monkeypatch.setattr("time.time_ns", lambda: 5)
    on = resumed("run_iter_30.solverstate")
    assert newest("run", lambda path: None) == "run_iter_30.solverstate"
    save(on, 35)
    assert newest("run", lambda path: None) == "run_iter_35.solverstate"
    assert [one.path for one in states("run") if one.generations][-1] == "run_iter_40.solverstate"


def test_a_restart_knows_the_states_of_its_job() -> None:
    save(Identity("run"), 50)
    job = 12345
    ranks = Identity("run", job)
    assert newest("run", lambda path: None, of=job) is None
    path = save(ranks, 10)
    again = Identity("run", job)
    again.resume(written(path, read_state(path)))
    later = save(again, 20)
    assert newest("run", lambda path: None, of=job) == later
    assert [one.iteration for one in again.generations] == [-1, 10] and again.generations[0].id == job
    other = Identity("run", 777)
    other.resume(written(later, read_state(later)))
    assert [one.id for one in other.generations][-1] == 777


# --- a training beside other runs' files ------------------------------------------------------------------------------


def begin(run: Identity, **changes: Any) -> None:
    run.begin(solver_param(**changes), COMMAND)


@pytest.mark.parametrize("of_caffe", [False, True])
def test_an_unfinished_run_is_spared(of_caffe: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """A training from the start that would replace its files is refused; other ones warn, and take other names."""
    earlier = None if of_caffe else Identity("run")
    for iteration in (10, 20, 25):
        save(earlier, iteration)
    before = Path("run_iter_25.solverstate").read_bytes()
    with pytest.raises(OtherRunError) as refused:
        begin(Identity("run"))
    for words in ("run_iter_20.caffemodel and run_iter_20.solverstate", "--snapshot run_iter_25.solverstate", COMMAND):
        assert words in str(refused.value)
    assert "remove run_iter_*" in str(refused.value) and "another snapshot_prefix" in str(refused.value)
    run = Identity("run")
    begin(run, every=0)
    (line,) = re.findall(r"^W.*$", capfd.readouterr().err, re.MULTILINE)
    assert "run_iter_25.solverstate and 2 more" in line and f"{COMMAND} --snapshot run_iter_25.solverstate" in line
    path = save(run, 25)  # as on Ctrl-C
    assert path != "run_iter_25.solverstate" and Path("run_iter_25.solverstate").read_bytes() == before
    assert newest("run", lambda path: None) == path
    assert save(run, 26) == "run_iter_26.solverstate" and save(run, 26) == "run_iter_26.solverstate"
    again = resumed(path)
    begin(again)
    assert not capfd.readouterr().err.count("another run, of")
    assert save(again, 30) == "run_iter_30.solverstate"


def test_a_run_without_a_whole_state_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    """So a job that starts with --snapshot auto never needs a hand."""
    earlier = Identity("run")
    for iteration in (10, 20):
        save(earlier, iteration)
        Path(f"run_iter_{iteration}.caffemodel").write_bytes(b"cut off")
    run = Identity("run")
    begin(run)
    assert save(run, 10) == "run_iter_10.solverstate"
    assert not re.findall(r"^W.*$", capfd.readouterr().err, re.MULTILINE)


def test_a_finished_run_is_replaced_as_in_caffe(capfd: pytest.CaptureFixture[str]) -> None:
    finished = Identity("run")
    for iteration in (10, 20, 30, 40):
        save(finished, iteration)
    run = Identity("run")
    begin(run, net="other", rate=2)
    (line,) = re.findall(r"^W.*$", capfd.readouterr().err, re.MULTILINE)
    assert "came to iteration 40" in line
    assert save(run, 10) == "run_iter_10.solverstate"
    assert newest("run", lambda path: None) == "run_iter_10.solverstate"


def test_going_back_replaces_what_came_after_as_in_caffe(capfd: pytest.CaptureFixture[str]) -> None:
    first = Identity("run")
    for iteration in (10, 20, 30):
        save(first, iteration)
    back = resumed("run_iter_10.solverstate")
    begin(back)
    assert save(back, 20) == "run_iter_20.solverstate"
    assert newest("run", lambda path: None) == "run_iter_20.solverstate"
    assert not re.findall(r"^W.*$", capfd.readouterr().err, re.MULTILINE)


def test_temporary_snapshots_are_removed_by_their_run_alone() -> None:
    """Also the model of a worker that was killed before it wrote the state, and a killed worker's unfinished file."""
    temporary = temporary_prefix("run")
    other = Identity("run")
    of_others = [save(other, 3000, temporary), save(None, 4000, temporary), save(other, 5)]
    lone, unfinished = Path("run_temporary_iter_9.caffemodel"), temporary_name("run_temporary_iter_4.caffemodel")
    lone.touch()
    Path(re.sub(r"-\d+-\d+\.tmp$", f"-{2**22 + 1}-1.tmp", unfinished)).touch()
    run = Identity("run")
    begin(run, every=0, last=5000)
    own = []
    for iteration in (1, 2, 3, 3000):
        own.append(save(run, iteration, temporary))
        run.remove_temporary(but=2)
    assert not lone.exists() and not list(Path().glob(".*"))
    assert {one.path for one in states("run")} == {*of_others, *own[-2:]} and own[-1] != of_others[0]
    run = resumed(own[-1])
    own += [save(run, 3001, temporary), save(run, 3002)]
    run.remove_temporary(but=2)
    assert {one.path for one in states("run")} == {*of_others, *own[3:]}
    run.remove_temporary()
    assert {one.path for one in states("run")} == {*of_others, own[-1]}
    assert len(list(Path().glob("*.caffemodel"))) == 4


def test_states_are_told_apart_and_models_are_not(interop: Any) -> None:
    files = []
    for _ in range(2):
        solver = interop(snapshot_prefix="ours", random_seed=1)
        solver.step(1)
        files.append((Path("ours_iter_1.caffemodel").read_bytes(), states("ours")) if solver.snapshot() else None)
    (one, (a,)), (two, (b,)) = files
    assert one == two and a.generations != b.generations and a.time < b.time


def test_a_full_disk_at_a_temporary_snapshot_ends_nothing(
    interop: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    solver = interop(snapshot_prefix="ours")
    for writer in ("write_model", "write_state"):
        with monkeypatch.context() as patch:

            def full(path: str, _: Any, writer: str = writer) -> None:
                raise SnapshotError(f"cannot write {path}: No space left on device ({writer})")

            patch.setattr(f"fcaffe.solvers.snapshot.saving.{writer}", full)
            solver.save_temporarily()
        assert "no temporary snapshot of iteration 0: cannot write ours_temporary" in capfd.readouterr().err
    solver.step(1)
    solver.save_temporarily()
    assert sorted(path.name for path in Path().glob("ours*")) == [
        "ours_temporary_iter_1.caffemodel",
        "ours_temporary_iter_1.solverstate",
    ]


def test_one_scan_of_many_states_reads_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Identity("run")
    for iteration in range(1, 6):
        save(run, iteration)
    read = []
    monkeypatch.setattr(runs, "read_state", lambda path: read.append(path) or read_state(path))
    for _ in range(3):
        assert len(states("run")) == 5
    assert len(read) <= 5
