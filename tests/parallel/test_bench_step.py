"""`fcaffe bench step`: whole training iterations, started alone and by mpiexec."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

import pytest

from tests.parallel.conftest import FCAFFE, ROOT, needs_mpi

pytestmark = pytest.mark.jobs

LENET = "models/lenet/train_val.prototxt"


def bench(*flags: str, by: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*by, *FCAFFE, "bench", "step", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def short(*flags: str) -> list[str]:
    return [*flags, "--rounds", "1", "--iterations", "1"]


@needs_mpi
def test_variants_in_json() -> None:
    flags = [
        "--reduce",
        "auto,tree",
        "--compress",
        "fp16",
        "--compress",
        "bf16",
        "--bucket-mb",
        "0.5,8",
        "--no-overlap",
    ]
    done = bench(*short("--net", LENET, "--workers", "2", "--batch-size", "10", "--json", *flags))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["source"] == "synthetic data in memory" and told["hosts"] == 1
    buckets, overlap = ("0.5 MB", "8 MB"), ("", ", no overlap")
    names = ("auto", "tree", "fp16", "bf16")
    expected = [f"{name}, {bucket}{more}" for name in names for bucket in buckets for more in overlap]
    results = told["results"]
    assert [result["name"] for result in results] == expected
    for result in results:
        assert (result["workers"], result["batch"], result["gradient_bytes"]) == (2, 10, 4 * 431080)
        assert result["ms"] > 0 and result["images_per_second"] == pytest.approx(10 / result["ms"] * 1000)
        assert {"forward", "backward", "update", "data wait", "exposed reduce"} <= set(result["split_ms"])
        assert len(result["bucket_bytes"]) == (1 if " 8 MB" in result["name"] else 4)
        assert "no overlap" not in result["name"] or result["hidden_ms"] < 0.5 * result["sums_ms"]


def test_one_worker_and_its_table() -> None:
    done = bench(*short("--solver", "models/cifar10_quick/solver.prototxt", "--workers", "1", "--batch-size", "2"))
    assert done.returncode == 0, done.stderr
    title, columns, row, *_ = done.stdout.splitlines()
    assert title == "Milliseconds an iteration: 2 samples of synthetic data in memory, 1 workers"
    assert columns.split()[:3] == ["variant", "ms", "images/s"] and row.split()[0] == "auto"
    assert 'Layer "cifar": synthetic batches of 2 x 3 x 32 x 32 in memory' in done.stderr
    assert len(row.split()) == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give --net FILE or --solver FILE"),
        (["--net", LENET, "--solver", LENET], "give --net FILE or --solver FILE"),
        (["--net", LENET, "--workers", "1,2"], "one number of --workers"),
        (["--net", LENET, "--bucket-mb", "x"], "--bucket-mb takes numbers with commas between them, not 'x'"),
        (["--net", LENET, "--workers", "1", "--batch-size", "-2"], "must be positive, not -2"),
        (["--net", LENET, "--workers", "1", "--rounds", "0"], "--rounds must be 1 or more"),
        (["--net", LENET, "--workers", "1", "--data", "real"], "mnist_train_lmdb"),
        (["--net", "models/lenet/deploy.prototxt", "--workers", "1", "--batch-size", "2"], "no layer reads batches"),
    ],
)
def test_mistakes(flags: list[str], message: str) -> None:
    done = bench(*flags)
    assert done.returncode == 134
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
