"""`fcaffe train --plan`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fcaffe.cli.bench_step import SHARING
from fcaffe.cli.training_plan import GAIN, AfterFirst, _picked, _picked_bits, compared, roundest
from fcaffe.net.model_files import read_model
from fcaffe.plan.devices import Link
from fcaffe.plan.machine import FCAFFE, TITAN
from fcaffe.plan.plan import Plan
from fcaffe.plan.question import Question
from fcaffe.timeline import FORWARD, KINDS, OTHER, Timeline
from tests.cli.conftest import Result
from tests.plan.conftest import work_of

pytestmark = pytest.mark.usefixtures("folder")
Run = Callable[..., Result]
LAYERS = {"ip": [[0.001, 0.002]], "loss": [[0.0005, 0.0005]]}
MACHINE = {"device": "Xeon-8380", "exchange": "fcaffe", "cores": 2}
AHEAD = "Restarting data prefetching"  # told by a thread that reads ahead, as far as it comes


def write_machine(net: str, path: str = "machine.json") -> None:
    measured = [{"net": net, "ranks": 1, "batches": [4], "layers": LAYERS, "update": 0.0005, "rest": 0.001}]
    Path(path).write_text(json.dumps({**MACHINE, "measured": measured}))


def weights() -> list[np.ndarray]:
    return [blob.data for layer in read_model(Path("small_iter_8.caffemodel")).layers for blob in layer.blobs]


def test_no_calibration_and_one_of_another_net(run: Run) -> None:
    for words in ("--plan -solver solver.prototxt", "-solver solver.prototxt --plan other.json"):
        assert "measure this machine and the net with: fcaffe plan --calibrate" in run(f"train {words}").fatal
    write_machine("another net")
    assert (
        "the net small was not measured there; do so with: fcaffe plan --calibrate"
        in run("train --plan -solver solver.prototxt").fatal
    )


def test_expected_and_come_and_not_another_bit(run: Run) -> None:
    write_machine("small")
    without = run("train -solver solver.prototxt")
    before = weights()
    result = run("train --plan -solver solver.prototxt")
    lines = result.messages
    (said,) = (line for line in lines if line.startswith("Plan by"))
    assert said == (
        "Plan by machine.json, for 1 worker: an iteration of 5.50 ms: compute 5.00 ms, exposed sums 0.00 ms, "
        "data 0.00 ms, update 0.50 ms"
    )
    assert lines.index(said) < lines.index("Starting Optimization")
    table = lines[lines.index("Milliseconds of each of 7 iterations after the first:") + 2 :][:5]
    assert [line[:16].strip() for line in table] == ["compute", "exposed sums", "data", "update", "iteration"]
    planned, came = zip(*((float(word) for word in line[16:].split()[:2]) for line in table), strict=True)
    assert planned == (5.0, 0.0, 0.0, 0.5, 5.5)
    assert came[-1] == pytest.approx(sum(came[:-1]), abs=0.03)
    counts = [sum(not line.startswith(AHEAD) for line in messages) for messages in (without.messages, lines)]
    assert counts[1] - counts[0] == 8
    assert before and all(np.array_equal(one, other) for one, other in zip(before, weights(), strict=True))


def test_what_the_first_iteration_takes_does_not_count() -> None:
    timeline = Timeline()
    after_first = AfterFirst(timeline)
    for forward, passes in ((100.0, 101.0), (2.0, 2.25), (4.0, 4.25)):  # a second of the first is in no span
        after_first.iteration_begins()
        timeline.seconds[FORWARD] += forward
        timeline.origin -= passes
    timeline.seconds[OTHER] = 1.5  # whose span has been open all the time
    seconds = after_first.seconds()
    assert after_first.begun == 3 and seconds[FORWARD] == 6.0
    assert sum(seconds.values()) == pytest.approx(6.5, abs=0.1)
    assert sum(AfterFirst(timeline).seconds().values()) == 0


def test_terms_are_means_of_the_workers_without_tests() -> None:
    slow, fast = ({kind: factor for kind in KINDS} for factor in (3.0, 1.0))
    lines = list(compared({"compute": 1.0, "exposed sums": 0.0, "data": 0.0, "update": 0.0}, [slow, fast], 2))
    numbers = {line[:16].strip(): line[16:].split() for line in lines[2:]}
    assert numbers["compute"] == ["1000.00", "3000.00", "0.33"]  # forward, backward and what is neither
    assert numbers["iteration"][1] == "7000.00"
    assert list(compared({}, [], 0)) == []


@pytest.mark.parametrize("latency", [1e-6, 1e-4, 3e-2])
@pytest.mark.parametrize("workers", [2, 6, 16])
def test_what_is_picked_is_no_slower_than_any_that_was_open(latency: float, workers: int) -> None:
    machine = replace(TITAN, between=Link("between (measured)", latency, 1e8, ""), exchange=FCAFFE, cores=4)
    question = Question(work_of("nin_cifar10/train_val.prototxt"), machine, 256)
    own = Plan(question).row(workers, "auto")
    row, sharing = _picked(question, own, SHARING)
    assert row.seconds <= own.seconds
    others = [Plan(replace(question, bucket=size)).row(workers, "ring") for size in (None, 1 << 19, 4 << 20)]
    assert (1 - GAIN) * row.seconds <= min(other.seconds for other in others)
    if sharing != SHARING:
        bucket = None if sharing.bucket_mb is None else sharing.bucket_mb * (1 << 20)
        assert Plan(replace(question, bucket=bucket)).row(workers, sharing.reduce).seconds == row.seconds
    given = replace(SHARING, reduce="tree", bucket_mb=2.0)
    tree = Plan(replace(question, bucket=2 << 20)).row(workers, "tree")
    assert _picked(replace(question, bucket=2 << 20), tree, given) == (tree, given)


@pytest.mark.parametrize("bandwidth", [1e7, 1e8, 1e9, 1e11])
@pytest.mark.parametrize("workers", [2, 6, 16])
@pytest.mark.parametrize("bucket_mb", [None, 0.25])
def test_as_few_buckets_in_16_bits_as_come_close_to_the_best(
    bandwidth: float, workers: int, bucket_mb: float | None
) -> None:
    link = Link("between (measured)", 1e-5, bandwidth, "")
    machine = replace(TITAN, between=link, exchange=FCAFFE, cores=4, add_bandwidth=1e10)
    question = Question(work_of("nin_cifar10/train_val.prototxt"), machine, 256)
    sharing = replace(SHARING, reduce="ring", bucket_mb=bucket_mb, compress="fp16:first=auto")
    question = replace(question, bucket=None if bucket_mb is None else bucket_mb * (1 << 20))

    def seconds(megabytes: float) -> float:
        return Plan(replace(question, first=megabytes * (1 << 20))).row(workers, "ring").seconds

    row, picked = _picked_bits(question, Plan(question).row(workers, "ring"), sharing)
    ends = np.cumsum([0, *(part.bytes for part in reversed(question.cut(workers)))]) / (1 << 20)
    close = min(map(seconds, ends)) / (1 - GAIN)
    assert row.seconds == seconds(picked.first or 0.0) <= close
    taken = max(end for end in ends if end <= (picked.first or 0.0))
    assert all(seconds(end) > close for end in ends if end < taken)
    assert replace(picked, compress="") == replace(sharing, compress="")
    assert picked.compress == "" or picked.compress.startswith("fp16:first=")
    assert (picked.compress == "") == (seconds(0) <= close)
    assert bandwidth != 1e11 or picked.compress == "", "all hides"
    assert bandwidth != 1e7 or picked.first > 0, "nothing does"


@given(st.floats(1e-3, 100), st.floats(1e-6, 100))
@example(0.09754180908203125, 0.515625)  # LeNet's buckets
@settings(deadline=None)
def test_a_number_with_few_decimals(least: float, more: float) -> None:
    def decimals(number: float) -> int:
        return -int(Decimal(repr(number)).normalize().as_tuple().exponent)

    number, below = roundest(least, least + more), least + more
    assert least <= number < below and decimals(number) <= max(decimals(least), 0)
    coarser = 10 ** max(decimals(number) - 1, 0)
    assert decimals(number) <= 0 or not least <= math.ceil(least * coarser) / coarser < below


@pytest.mark.parametrize(
    ("compress", "first"),
    [("", 0), ("onebit", 0), ("bf16", float("inf")), ("fp16:first=0.5", 0.5), ("bf16:first=auto", None)],
)
def test_how_much_goes_in_16_bits(compress: str, first: float | None) -> None:
    assert replace(SHARING, compress=compress).first == first
