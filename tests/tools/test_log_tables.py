"""The tables of parse_log and extract_seconds, against the values of Caffe's own runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from fcaffe.cli import main
from fcaffe.cli.logs import read_messages, tables
from fcaffe.errors import FcaffeError
from fcaffe.log.reader import Message, messages
from tests.conftest import GOLDEN


def written(log: Path, folder: Path, *flags: str) -> dict[str, list[dict[str, str]]]:
    assert main(["parse_log", str(log), str(folder), *flags]) == 0
    made = {}
    for phase in ("train", "test"):
        with open(folder / f"{log.name}.{phase}", newline="") as file:
            made[phase] = list(csv.DictReader(file))
    return made


@pytest.mark.parametrize("run", ["lenet", "mixed"])
def test_the_columns_of_caffes_own_runs(run: str, tmp_path: Path) -> None:
    folder = GOLDEN / "runs" / run
    made, expected = written(folder / "train.log", tmp_path), json.loads((folder / "series.json").read_text())
    for phase in ("train", "test"):
        assert list(made[phase][0])[:3] == ["NumIters", "Seconds", "LearningRate"]
        names = list(made[phase][0])[3:]
        told = [golden for golden in expected[phase] if golden["outputs"]]  # the final loss has none
        for row, golden in zip(made[phase], told, strict=True):
            assert float(row["NumIters"]) == golden["iter"]
            assert {name: [float(row[name])] for name in names} == golden["outputs"]
    rates = {row["iter"]: row["lr"] for row in expected["lr"]}
    for before, row in zip(made["train"], made["train"][1:], strict=False):
        assert float(row["LearningRate"]) == rates[float(before["NumIters"])]  # told before its own iteration's
    assert made["train"][0]["LearningRate"] == made["train"][1]["LearningRate"]


def test_seconds_are_from_the_beginning_of_the_training(tmp_path: Path) -> None:
    log = GOLDEN / "logs" / "train_plain.log"
    assert main(["extract_seconds", str(log), str(tmp_path / "seconds")]) == 0
    seconds = [float(line) for line in (tmp_path / "seconds").read_text().splitlines()]
    text = log.read_text().partition("] Solving")[2]
    assert len(seconds) == sum("Iteration" in line for line in text.splitlines())
    assert seconds == sorted(seconds) and 0 < seconds[0] < 1


def test_a_second_test_net_has_rows_of_its_own() -> None:
    made = tables(read_messages(str(GOLDEN / "logs" / "train_two_test_nets.log")))
    assert list(made["Test"][0]) == ["NumIters", "Seconds", "LearningRate", "loss", "accuracy", "by_class"]


def test_the_only_row_is_written_too() -> None:
    log = [Message(1, "Iteration 5, Testing net (#0)"), Message(2, "    Test net output #0: a = 0.5")]
    (row,) = tables(log)["Test"]
    assert (row["NumIters"], row["Seconds"], row["a"]) == (5, 2, 0.5)


def test_values_that_are_no_numbers() -> None:
    log = [Message(i, f"Iteration {i}, loss = nan") for i in range(2)]
    log = [line for said in log for line in (said, Message(said.seconds, "    Train net output #0: loss = -nan"))]
    assert [str(row["loss"]) for row in tables(log)["Train"]] == ["nan", "nan"]


def test_a_year_may_end_in_a_log_without_years() -> None:
    lines = [f"I{date} 10:00:00.5 1 solver.cpp:1] {said}" for date, said in (("1231", "Solving x"), ("0101", "y"))]
    assert [said.seconds for said in messages(lines)] == [0, 24 * 3600]
    with_years = [f"I{date} 10:00:00.000001 1 solver.cpp:1] x" for date in ("20240228", "20240301")]
    assert [said.seconds for said in messages(with_years)] == [0, 2 * 24 * 3600]


def test_another_delimiter_and_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = GOLDEN / "logs" / "train_plain.log"
    assert main(["parse_log", str(log), str(tmp_path), "--delimiter=;", "--verbose"]) == 0
    assert capsys.readouterr().out == "".join(
        f"Wrote {tmp_path}/train_plain.log.{part}\n" for part in ("train", "test")
    )
    assert (tmp_path / "train_plain.log.test").read_text().startswith("NumIters;Seconds;LearningRate;")
    assert main(["parse_log", str(GOLDEN / "logs" / "train_silent.log"), str(tmp_path), "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Not writing {tmp_path}/train_silent.log.train; no lines to write\n")


def test_a_file_that_is_no_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(FcaffeError, match="is not the log of a training"):
        read_messages(str(GOLDEN / "logs" / "test.log"))
    assert main(["parse_log", "none", str(tmp_path)]) == 134
    assert main(["parse_log", "none", str(tmp_path), "--delimiter=ab"]) == 134
    assert "--delimiter takes one character, not 'ab'" in capsys.readouterr().err
    assert main(["parse_log", "none"]) == 1
