"""`fcaffe plan` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("folder")
MODELS = Path(__file__).parents[2] / "models"
NIN = str(MODELS / "nin_imagenet" / "train_val.prototxt")
FIELDS = {"workers", "reduce", "seconds_per_iteration", "compute", "exposed_communication", "data", "update", "speedup"}
FIELDS |= {"efficiency", "images_per_second"}


def plan(run: Run, *words: str) -> list[dict]:
    result = run("plan", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_the_papers_rows(run: Run) -> None:
    words = ["--net", NIN, "--batch", "1024", "--workers", "1,32,128", "--machine", "titan", "--reduce", "tree"]
    rows = plan(run, *words, "--no-overlap")
    assert [row["workers"] for row in rows] == [1, 32, 128]
    assert all(row.keys() >= FIELDS and "hours" not in row and row["reduce"] == "tree" for row in rows)
    rows = plan(run, *words, "--no-overlap", "--epochs", "47", "--images", "1281167")
    assert [row["hours"] for row in rows] == pytest.approx([139.2, 6, 3.6], rel=0.03)
    for row in rows:
        parts = row["compute"] + row["exposed_communication"] + row["data"] + row["update"]
        assert row["seconds_per_iteration"] == pytest.approx(parts)


def test_a_solver_says_batch_passes_and_iterations(run: Run) -> None:
    Path("more.prototxt").write_text(Path("solver.prototxt").read_text() + "iter_size: 3 type: 'Adam'")
    (row,) = plan(run, "--solver", "more.prototxt", "--machine", "h200", "--workers", "2")
    assert (row["batch"], row["images_per_worker"]) == (12, 2)
    assert row["hours"] == pytest.approx(8 * row["seconds_per_iteration"] / 3600)
    assert row["memory"]["histories"] == 2 * row["memory"]["weights"]


def test_batches_of_each_worker(run: Run) -> None:
    for batch, share in (("per-worker", 4), ("per-worker:10", 10)):
        (row,) = plan(run, "--net", "net.prototxt", "--machine", "v100", "--workers", "8", "--batch", batch)
        assert (row["images_per_worker"], row["batch"]) == (share, 8 * share)


def test_a_file_describes_the_machine(run: Run) -> None:
    words = ["--net", NIN, "--workers", "64", "--reduce", "ring", "--no-overlap"]
    Path("known.json").write_text('{"device": "T4", "speed": 500}')
    (known,) = plan(run, *words, "--machine", "known.json")
    assert known["compute"] == pytest.approx(1 / 500)


def test_table(run: Run) -> None:
    words = ["--net", NIN, "--machine", "titan", "--workers", "1,128", "--batch", "1024"]
    result = run("plan", *words, "--reduce", "all")
    assert result.code == 0, result.err
    assert result.out.startswith("nin_imagenet, 1,024 images in all, on titan (K20, fp32)\n")
    for words in ("segmented-tree", "takes longer than computing"):
        assert words in result.out


def test_more_workers_than_images_are_planned_with_a_warning(run: Run) -> None:
    result = run("plan", "--net", "net.prototxt", "--machine", "h200", "--workers", "100000")
    assert result.code == 0 and "100000 workers for a batch of 4 images" in "".join(result.messages)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "plan needs a machine: --machine titan"),
        (["--machine", "titan", "--net", "net.prototxt", "--solver", "solver.prototxt"], "plan needs the prototxt"),
        (["--machine", "titam", "--net", "net.prototxt"], "there is no machine 'titam' (did you mean titan?)"),
        (
            ["--machine", "titan", "--net", "net.prototxt", "--reduce", "rng"],
            "there is no reduction 'rng' (did you mean",
        ),
        (["--machine", "titan", "--net", "net.prototxt", "--workers", "0"], "--workers takes positive numbers"),
        (["--machine", "titan", "--net", "net.prototxt", "--batch", "x"], "--batch takes a number, per-worker or"),
        (["--machine", "titan", "--net", "net.prototxt", "--epochs", "3"], "--epochs and --images belong together"),
        (["--machine", "titan", "--net", "net.prototxt", "--math", "bf16"], "device K20: no speed in bf16 is known"),
        (["--machine", "titan", "--net", "net.prototxt", "--bucket-mb", "0"], "--bucket-mb must be above 0, not 0"),
    ],
)
def test_what_is_wrong_is_named(run: Run, words: list[str], message: str) -> None:
    assert message in run("plan", *words, "--workers", "2" if "--workers" not in words else "0").fatal
