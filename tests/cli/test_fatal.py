"""Whatever is wrong: one fatal line that says what, where and what to do; exit code 134; no traceback."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.solvers import Solver
from tests.cli.conftest import NET, SOLVER, Run, write_records

TRAIN = "train -solver solver.prototxt"

pytestmark = pytest.mark.usefixtures("folder")


def net(old: str, new: str) -> None:
    assert old in NET
    Path("net.prototxt").write_text(NET.replace(old, new))


def solver(old: str, new: str) -> None:
    assert old in SOLVER
    Path("solver.prototxt").write_text(SOLVER.replace(old, new))


HDF5 = 'type: "HDF5Data" hdf5_data_param { source: "list" batch_size: 2 }'


@pytest.mark.parametrize(
    ("change", "old", "new", "message"),
    [
        (solver, "net.prototxt", "none.prototxt", "none.prototxt does not exist"),
        (solver, 'net: "net.prototxt"', "", ".*training net by exactly one of net, net_param"),
        (net, '"lmdb"', '"none"', r'layer "data" \(Data\): .*"none" does not exist \(looked for /.*/none\)'),
        (net, '"lmdb"', '"lmdb/data.mdb"', r'layer "data" \(Data\): .*"lmdb/data\.mdb" is a file.*give "lmdb"'),
        (net, "InnerProduct", "InnerProdukt", 'layer "ip": unknown layer type "InnerProdukt".*InnerProduct[?]'),
        (net, 'bottom: "data"', 'bottom: "dta"', ".*'dta' .layer 'ip', .*'data'"),
        (net, '"lmdb"', '"labelled"', r'layer "(loss|accuracy)" \(\w+\): label 7 .*0 to 2'),
        (net, 'type: "Data"', HDF5, ".*list:1: this line has a NUL"),
    ],
)
def test_wrong_nets_and_solvers(change: Callable[[str, str], None], old: str, new: str, message: str, run: Run) -> None:
    write_records("labelled", [0, 1, 2, 7])
    Path("list").write_bytes(b"a.h5\0.png\n")
    change(old, new)
    fatal = run(TRAIN).fatal
    assert re.match(message, fatal), fatal


def test_missing_solver(run: Run) -> None:
    assert run("train").fatal == "Need a solver definition to train. Give it as --solver FILE"
    assert run("train -solver none.prototxt").fatal.startswith("none.prototxt does not exist (looked for /")


def test_prefix_that_cannot_be_written(run: Run) -> None:
    solver('"small"', '"none/small"')
    result = run(TRAIN)
    assert result.fatal.startswith("Cannot write to snapshot prefix 'none/small'")
    assert not any(line.startswith("Creating training net") for line in result.messages), "before training starts"


def test_full_disk_leaves_the_old_snapshot(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    sync = os.fsync

    def full(file: int) -> None:
        written.append(file)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run(TRAIN).fatal.startswith("cannot write small_iter_8.caffemodel: No space left on device; make room")
    assert sorted(str(path) for path in Path().glob("*iter*")) == [
        "small_iter_4.caffemodel",
        "small_iter_4.solverstate",
    ]
    assert not list(Path().glob(".*tmp"))


def test_full_disk_for_the_log_does_not_end_a_training(run: Run) -> None:
    result = run(f"{TRAIN} --log /dev/full")
    assert result.code == 0
    assert sum(line.startswith("No more lines go to /dev/full: No space left") for line in result.messages) == 1


def test_loss_that_is_no_number(run: Run) -> None:
    solver("base_lr: 0.01", "base_lr: 1e38")
    for flags in ("", "--on-nan stop"):
        fatal = run(f"{TRAIN} {flags}").fatal
        what = r"(loss = -?(nan|inf)|a weight is not finite)"
        assert re.match(rf"iteration 1: {what}; the first value that is not finite is in ", fatal)
        assert re.search(r'(blob|parameter \d+ of layer) "\w+"', fatal)
        assert not list(Path().glob("*.solverstate"))
    assert run(f"{TRAIN} --on-nan continue").code == 0
    assert "'snapshot' is not one of 'stop', 'continue'" in run(f"{TRAIN} --on-nan snapshot").err


def test_faults_of_our_own_are_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(solver: Solver) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(Solver, "apply_update", fail)
    fatal = run(TRAIN).fatal
    assert fatal.startswith("ZeroDivisionError: by zero (this is a fault in fcaffe or in a layer of yours;")
    assert "Traceback (most recent call last)" in run(f"{TRAIN} --traceback").err
    monkeypatch.setenv("FCAFFE_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in run(TRAIN).err
