"""Whatever is wrong: one fatal line that says what, where and what to do; exit code 134; no traceback."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from fcaffe.solvers import Solver
from tests.cli.conftest import NET, SOLVER, Result, write_records

Run = Callable[..., Result]

TRAIN = "train -solver solver.prototxt"

pytestmark = pytest.mark.usefixtures("folder")


def net(old: str, new: str) -> None:
    assert old in NET
    Path("net.prototxt").write_text(NET.replace(old, new))


def solver(old: str, new: str) -> None:
    assert old in SOLVER
    Path("solver.prototxt").write_text(SOLVER.replace(old, new))


def test_missing_solver(run: Run) -> None:
    assert run("train").fatal == "Need a solver definition to train. Give it as --solver FILE"
    assert run("train -solver none.prototxt").fatal.startswith("none.prototxt does not exist (looked for /")


def test_missing_net(run: Run) -> None:
    solver("net.prototxt", "none.prototxt")
    assert run(TRAIN).fatal.startswith("none.prototxt does not exist")


def test_no_net_in_the_solver(run: Run) -> None:
    solver('net: "net.prototxt"', "")
    assert "training net by exactly one of net, net_param" in run(TRAIN).fatal


def test_missing_database(run: Run) -> None:
    net('"lmdb"', '"none"')
    assert re.match(r'layer "data" \(Data\): .*"none" does not exist \(looked for /.*/none\)', run(TRAIN).fatal)


def test_file_of_the_database_for_its_folder(run: Run) -> None:
    net('"lmdb"', '"lmdb/data.mdb"')
    assert re.match(r'layer "data" \(Data\): .*"lmdb/data\.mdb" is a file.*give "lmdb"', run(TRAIN).fatal)


def test_misspelt_field(run: Run) -> None:
    net("num_output", "num_ouput")
    fatal = run(TRAIN).fatal
    assert fatal.startswith("net.prototxt:9:25: ") and '"num_ouput"' in fatal.replace("'", '"')
    assert "InnerProductParameter" in fatal and "num_output" in fatal
    solver("base_lr", "base_rate")
    assert run(TRAIN).fatal.startswith("solver.prototxt:2:")


def test_unknown_layer_type(run: Run) -> None:
    net("InnerProduct", "InnerProdukt")
    fatal = run(TRAIN).fatal
    assert fatal.startswith('layer "ip": unknown layer type "InnerProdukt"') and "InnerProduct?" in fatal


def test_missing_bottom(run: Run) -> None:
    net('bottom: "data"', 'bottom: "dta"')
    fatal = run(TRAIN).fatal
    assert "ip" in fatal and "dta" in fatal and "data" in fatal


def test_two_layers_with_one_top(run: Run) -> None:
    Path("net.prototxt").write_text(NET + 'layer { name: "again" type: "Sigmoid" bottom: "data" top: "ip" }')
    fatal = run(TRAIN).fatal
    assert fatal.startswith("Top blob 'ip' produced by multiple sources: layers 'ip' and 'again'")


def test_eltwise_of_different_shapes(run: Run) -> None:
    added = 'layer { name: "sum" type: "Eltwise" bottom: "ip" bottom: "data" top: "sum" }'
    Path("net.prototxt").write_text(NET + added)
    fatal = run(TRAIN).fatal
    assert fatal.startswith('layer "sum" (Eltwise)') and "(4, 3)" in fatal and "(4, 1, 4, 4)" in fatal


def test_label_that_is_no_class(run: Run) -> None:
    write_records("labelled", [0, 1, 2, 7])
    net('"lmdb"', '"labelled"')
    fatal = run(TRAIN).fatal
    assert re.match(r'layer "(loss|accuracy)" \(\w+\): label 7 ', fatal) and "0 to 2" in fatal


def test_weights_of_another_shape(run: Run) -> None:
    assert run(TRAIN).code == 0
    net("num_output: 3", "num_output: 5")
    fatal = run(f"{TRAIN} -weights small_iter_8.caffemodel").fatal
    assert fatal.startswith('small_iter_8.caffemodel: param 0 of layer "ip": shape mismatch')
    assert "3 16 (48)" in fatal and "5 16 (80)" in fatal and "rename the layer" in fatal
    fatal = run(f"{TRAIN} -snapshot small_iter_8.solverstate").fatal
    assert '"ip"' in fatal and "(5, 16)" in fatal


def test_truncated_model(run: Run) -> None:
    assert run(TRAIN).code == 0
    model = Path("small_iter_8.caffemodel")
    model.write_bytes(model.read_bytes()[:-10])
    for words in (f"{TRAIN} -weights {model}", f"{TRAIN} -snapshot small_iter_8.solverstate"):
        assert run(words).fatal.startswith("small_iter_8.caffemodel is damaged or cut off after ")


def test_model_given_as_snapshot(run: Run) -> None:
    assert run(TRAIN).code == 0
    fatal = run(f"{TRAIN} -snapshot small_iter_8.caffemodel").fatal
    assert fatal.startswith("small_iter_8.caffemodel is a model (.caffemodel), not a solver state")
    assert "--weights" in fatal
    assert run(f"{TRAIN} -snapshot none").fatal.startswith("none does not exist")


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


def test_batch_of_nothing(run: Run) -> None:
    net("batch_size: 4", "batch_size: 0")
    fatal = run(TRAIN).fatal
    assert fatal.startswith('layer "data" (Data)') and "batch_size" in fatal


def test_empty_database(run: Run) -> None:
    environment = lmdb.open("empty")
    environment.close()
    net('"lmdb"', '"empty"')
    assert re.match(r'layer "data" \(Data\): .*"empty" holds no records', run(TRAIN).fatal)


def test_loss_that_is_no_number(run: Run) -> None:
    solver("base_lr: 0.01", "base_lr: 1e38")
    for flags, kept in (("", False), ("--on-nan stop", False), ("--on-nan snapshot", True)):
        fatal = run(f"{TRAIN} {flags}").fatal
        what = r"(loss = -?(nan|inf)|a weight is not finite)"
        assert re.match(rf"iteration 1: {what}; the first value that is not finite is in ", fatal)
        assert re.search(r'(blob|parameter \d+ of layer) "\w+"', fatal)
        assert list(Path().glob("*.solverstate")) != [] if kept else list(Path().glob("*.solverstate")) == []
    assert run(f"{TRAIN} --on-nan continue").code == 0


def test_faults_of_our_own_are_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(solver: Solver) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(Solver, "start_update", fail)
    fatal = run(TRAIN).fatal
    assert fatal.startswith("ZeroDivisionError: by zero (this is a fault in fcaffe or in a layer of yours;")
    assert "Traceback (most recent call last)" in run(f"{TRAIN} --traceback").err
    monkeypatch.setenv("FCAFFE_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in run(TRAIN).err


def test_unknown_solver_and_policy(run: Run) -> None:
    solver("momentum", 'type: "SGDM" momentum')
    assert run(TRAIN).fatal.startswith("unknown solver type 'SGDM'")
    solver('"step"', '"steps"')
    assert run(TRAIN).fatal.startswith("unknown lr_policy 'steps'")
