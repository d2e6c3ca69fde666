"""`fcaffe test` and `fcaffe time`; test_golden_logs.py compares their lines with Caffe's."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("folder")


def test_time_of_either_phase(run: Run) -> None:
    assert "accuracy\tforward" in run("time -phase TEST -model net.prototxt -iterations 1").err
    assert 'level: 3\n  stage: "x"\n' in run("time -model net.prototxt -iterations 1 -level 3 -stage x").err
    assert run("time -model net.prototxt -phase NO").fatal.startswith('phase must be "TRAIN" or "TEST"')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("test", "Need a model definition to score."),
        ("test -model net.prototxt", "Need model weights to score."),
        ("test -model net.prototxt -weights a -gpu x", "--gpu x: "),
        ("test -model net.prototxt -weights a -iterations 0", "--iterations must be 1 or more"),
        ("time", "Need a model definition to time."),
        ("time -model net.prototxt -iterations -1", "--iterations must be 1 or more"),
    ],
)
def test_what_is_missing_is_named(run: Run, words: str, message: str) -> None:
    assert run(words).fatal.startswith(message)


@pytest.mark.parametrize(
    "words",
    [
        "train -solver solver.prototxt -weights net.prototxt,missing",
        "train -solver solver.prototxt -snapshot missing",
        "train -solver solver.prototxt -weights missing --workers 2",
        "test -model net.prototxt -weights missing",
        "time -model net.prototxt -weights missing",
        "extract_features missing net.prototxt ip features 1 lmdb",
        "detect-objects --model net.prototxt --weights missing x.png",
    ],
)
def test_missing_weights_are_noticed_before_a_net_is_built(words: str, run: Run) -> None:
    done = run(words)
    assert done.fatal.startswith("missing does not exist (looked for ")
    assert "Creating layer" not in done.err and "rank" not in done.err


def test_every_layer_beside_the_peaks(run: Run) -> None:
    result = run("time -model net.prototxt -iterations 2 -profile")
    assert result.code == 0
    _, head, *layers, _, peaks, whole = result.out.splitlines()
    assert head.split()[:2] == ["layer", "type"] and any(line.startswith("ip ") for line in layers)
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in layers]
    assert sum(shares) == pytest.approx(100, abs=1) and shares == sorted(shares, reverse=True)
    assert all(re.search(r" (100|\d?\d)%$| cached$", line) for line in layers)
    assert re.match(r"This machine: \d+ GFLOP/s in matrix products, \d+ GB/s in copies", peaks)
    assert re.match(r"A pass forward and backward: [\d.]+ ms, \d+ GFLOP/s", whole)
