from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fcaffe import log
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import parse_log, read_log
from tests.conftest import GOLDEN

LOGS = GOLDEN / "logs"


def series(path: Path) -> dict[str, list[dict]]:
    return json.loads(path.read_text())


@pytest.mark.parametrize("run", ["lenet", "mixed"])
def test_the_columns_of_caffes_own_log(run: str) -> None:
    folder = GOLDEN / "runs" / run
    made, expected = read_log(folder / "train.log"), series(folder / "series.json")
    assert made.loss == {row["iter"]: row["loss"] for row in expected["train"]}
    assert made.rate == {row["iter"]: row["lr"] for row in expected["lr"]}
    for row in expected["test"]:
        outputs = made.test_nets[row["net"]].outputs.values()
        for name, values in row["outputs"].items():
            assert [o.curve[row["iter"]] for o in outputs if o.name == name] == values


def test_outputs_by_number_since_names_repeat() -> None:
    made = read_log(LOGS / "train_plain.log")
    assert made.net == "talk"
    outputs = made.test_nets[0].outputs
    assert [outputs[k].name for k in range(12)] == ["accuracy", *["by_class"] * 10, "loss"]
    assert [output.is_loss for output in outputs.values()] == [False] * 11 + [True]
    assert outputs[0].curve[0] == 0.104167 and outputs[2].curve[0] == 0.5


def test_several_test_nets_and_their_losses() -> None:
    made = read_log(LOGS / "train_two_test_nets.log")
    assert made.test_nets[0].outputs[0].curve[2] == 2.28255 and made.test_nets[1].outputs[0].curve[2] == 0.125
    assert read_log(LOGS / "train_compute_loss.log").test_nets[0].loss == {3: 2.22214, 6: 2.25831}
    assert set(read_log(LOGS / "train_compute_loss.log").loss) == {0, 2, 4, 6}


def test_a_resumed_run_overrides_what_was_beyond_its_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    for start, stop in ((0, 5), (3, 6)):
        log.solving("net", "fixed")
        for iteration in range(start, stop):
            log.iteration(iteration, 0.0, 0.0, 1, 10.0 * start + iteration)
            log.learning_rate(iteration, 0.01)
    made = parse_log(capsys.readouterr().err.splitlines())
    assert made.loss == {0: 0, 1: 1, 2: 2, 3: 33, 4: 34, 5: 35}
    assert made.net == "net"


def test_everything_that_fcaffe_writes(capsys: pytest.CaptureFixture[str]) -> None:
    log.iteration(7, 2e6, 0.1, 5, math.inf)
    log.net_outputs("Train", [("a/b", None, 0.5)], [[math.nan]])
    log.learning_rate(7, 1e-05)
    log.testing(7, 0)
    log.test_loss(1e-9)
    log.net_outputs("Test", [("top-1", None, 0)], [[1e9]])
    log.final_loss(8, -1.5)
    log.info("Iteration something else, loss = 3")
    made = parse_log(capsys.readouterr().err.splitlines())
    assert made.loss == {7: math.inf, 8: -1.5} and made.rate == {7: 1e-05}
    assert list(made.test_nets) == [0] and made.test_nets[0].loss == {7: 1e-9}
    assert made.test_nets[0].outputs[0].curve == {7: 1e9}


def test_a_file_that_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(FcaffeError, match="no line of a training"):
        read_log(GOLDEN / "runs" / "lenet" / "solver.prototxt")
    with pytest.raises(FcaffeError, match=r"cannot read .*: No such file"):
        read_log(tmp_path / "none")
