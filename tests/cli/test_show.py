"""`fcaffe summary` and `fcaffe solver`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Run = Callable[..., Result]

pytestmark = pytest.mark.usefixtures("folder")


def test_summary_as_a_table(run: Run) -> None:
    code, out, err = run("summary net.prototxt")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "small (TRAIN)"
    assert lines[3].split() == ["ip", "InnerProduct", "4", "x", "3", "51", "192", "48"]
    assert lines[-3:] == [
        "Parameters      51",
        "Multiply-adds   192 (one batch forward)",
        "Memory          324 bytes (Caffe's 'Memory required for data')",
    ]


def test_summary_of_the_other_phase(run: Run) -> None:
    out = run("summary net.prototxt -phase TEST").out
    assert out.startswith("small (TEST)") and "accuracy" in out and "2 of 4 x 3" in out
    assert run("summary net.prototxt --phase test").fatal.startswith('phase must be "TRAIN" or "TEST"')


def test_summary_as_json(run: Run) -> None:
    made = json.loads(run("--json summary net.prototxt --phase=TEST").out)
    assert made["phase"] == "TEST" and made["total_params"] == 51 and made["params"] == {"ip": [[3, 16], [3]]}


def test_summary_says_what_it_assumes(run: Run) -> None:
    net = Path("net.prototxt")
    net.write_text(net.read_text().replace('"lmdb"', '"none"'))
    assert "none does not exist and there is no crop_size" in run("summary net.prototxt").fatal
    result = run("summary net.prototxt -input-shape 1,4,4 --json")
    assert json.loads(result.out)["total_params"] == 51
    expected = 'layer "data": none does not exist; records of 1 x 4 x 4 are assumed (--input-shape)'
    assert result.messages == [expected]
    assert run("summary net.prototxt -input-shape 4,4").fatal.startswith("--input-shape takes three positive numbers")


def test_solver_in_human_form(run: Run) -> None:
    code, out, err = run("solver solver.prototxt")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["lr_policy"] == ["step"] and lines["iter_size"] == ["1", "(default)"] and lines["momentum"] == ["0.9"]
    assert lines["Learning"] == ["rate", "(step),", "up", "to", "iteration", "8:"]
    assert lines["0"][0] == "0.01" and lines["6"][0] == "0.001"
    assert len(lines["0"][1]) == 10 * len(lines["6"][1])


def test_solver_as_json(run: Run) -> None:
    fields = json.loads(run("solver solver.prototxt --json").out)
    assert fields["base_lr"] == 0.01 and fields["test_iter"] == [2] and fields["snapshot_prefix"] == "small"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("summary none", "none does not exist"),
        ("summary lmdb", "lmdb is a folder; a file is wanted"),
        ("solver none", "none does not exist"),
    ],
)
def test_what_is_missing_is_named(run: Run, words: str, message: str) -> None:
    assert run(words).fatal.startswith(message)


def test_only_one_file(run: Run) -> None:
    code, _, err = run("summary net.prototxt other.prototxt")
    assert code == 1 and err.startswith("ERROR: ") and "other.prototxt" in err
