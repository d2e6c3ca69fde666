"""Scaled rates, warm-up and layer-wise rates on several workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fcaffe.model_files import read_model
from tests.cli.conftest import NET, SOLVER
from tests.parallel.conftest import Job, needs_mpi

pytestmark = [pytest.mark.jobs, needs_mpi]

LARGE = SOLVER.replace("gamma: 0.1 stepsize: 6", "gamma: 0.5 stepsize: 3").replace("max_iter: 8", "max_iter: 7") + (
    "warmup_iter: 2 local_lr_auto: true local_gw_ratio: 0.5 weight_decay: 0.01 "
)


def weights(path: Path) -> list[np.ndarray]:
    return [blob.data for layer in read_model(str(path)).layers for blob in layer.blobs]


def finished(job: Job) -> Job:
    assert job.wait() == 0, job.text[-2000:]
    return job


def test_two_workers_with_a_batch_each_are_one_with_twice_the_batch_and_rate(
    start: Callable[..., Job], folder: Path
) -> None:
    (folder / "solver.prototxt").write_text(LARGE)
    (folder / "net8.prototxt").write_text(NET.replace("batch_size: 4", "batch_size: 8"))
    twice = LARGE.replace("base_lr: 0.01", "base_lr: 0.02 warmup_start_lr: 0.01").replace('"net.', '"net8.')
    (folder / "twice.prototxt").write_text(twice.replace('"small"', '"twice"').replace("test_iter: 2", "test_iter: 1"))
    two = finished(start("--workers", "2", "--batch", "per-worker", "--scale-lr", "linear")).text
    one = finished(start("--scale-lr=sqrt", solver="twice.prototxt")).text
    each, both = (weights(folder / f"{name}_iter_7.caffemodel") for name in ("small", "twice"))
    for ours, theirs in zip(each, both, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert "--scale-lr linear: base_lr 0.01 becomes 0.02, since the batch is 2 times the solver's" in two
    assert "--scale-lr sqrt: base_lr stays 0.02, the batch is the solver's (there is one worker)" in one
    for log in (one, two):
        assert "Iteration 0, lr = 0.01" in log and "Iteration 2, lr = 0.02" in log
        assert "Iteration 4, lr = 0.01" in log and "Iteration 6, lr = 0.005" in log


def test_resumed_bit_for_bit(start: Callable[..., Job], folder: Path) -> None:
    (folder / "solver.prototxt").write_text(LARGE)
    split = finished(start("--workers", "2", "--scale-lr", "linear"))
    assert "base_lr stays 0.01, the batch is the solver's (the workers split it; --batch per-worker" in split.text
    straight = weights(folder / "small_iter_7.caffemodel")
    (folder / "small_iter_7.caffemodel").unlink()
    finished(start("--workers", "2", "--snapshot", "small_iter_4.solverstate"))
    for ours, theirs in zip(weights(folder / "small_iter_7.caffemodel"), straight, strict=True):
        assert np.array_equal(ours, theirs)
