"""`fcaffe compress`: what it writes, what it prints, and that every command reads it as any model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fcaffe.model_files import read_model
from fcaffe.pycaffe.net import Net
from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("trained")


@pytest.fixture
def trained(folder: Path, run: Run) -> None:
    assert run("train --solver solver.prototxt").code == 0


def weights(path: str) -> np.ndarray:
    (layer,) = [layer for layer in read_model(path).layers if layer.name == "ip"]
    return np.array(layer.blobs[0].data)


def scores(run: Run, path: str) -> list[str]:
    made = run(f"test --model net.prototxt --weights {path} --iterations 2")
    assert made.code == 0, made.err
    return [message for message in made.messages if message.startswith("accuracy = ")]


def test_without_a_solver(run: Run) -> None:
    made = run("compress small_iter_8.caffemodel x.dcmodel --density ip=0.5 --bits 3")
    assert made.code == 0, made.err
    before, after = weights("small_iter_8.caffemodel"), weights("x.dcmodel")
    assert np.count_nonzero(after) == 24 and len(np.unique(after)) <= 9
    assert np.corrcoef(before[after != 0], after[after != 0])[0, 1] > 0.95
    assert re.search(rf"^x\.dcmodel: {Path('x.dcmodel').stat().st_size} bytes, \d\.\d times fewer", made.out, re.M)


def test_with_a_solver_it_is_trained_and_tested(run: Run) -> None:
    made = run("compress small_iter_8.caffemodel x.dcmodel --solver solver.prototxt --density 0.4 --bits 2")
    assert made.code == 0, made.err
    assert np.count_nonzero(weights("x.dcmodel")) == round(0.4 * 48) and len(np.unique(weights("x.dcmodel"))) == 5
    scores_of = [line.split(" = ")[1].split(",")[0] for line in made.messages if ": accuracy = " in line]
    steps = [line.partition(": accuracy")[0] for line in made.messages if ": accuracy = " in line]
    assert steps == [
        "as it was", "pruned, step 1 of 2", "after 1 iterations", "pruned, step 2 of 2", "after 1 iterations",
        "with shared weights", "after 1 iterations",
    ]  # fmt: skip
    first, last = float(scores_of[0]), float(scores_of[-1])
    for path, accuracy in (("small_iter_8.caffemodel", first), ("x.dcmodel", last)):
        assert float(scores(run, path)[-1].split()[2]) == pytest.approx(accuracy, abs=1e-4)
    assert sorted(Path().glob("small_iter_*")) == sorted(
        Path(f"small_iter_{n}.{kind}") for n in (4, 8) for kind in ("caffemodel", "solverstate")
    ), "no snapshots of these trainings"


def test_every_command_reads_it(run: Run) -> None:
    assert run("compress small_iter_8.caffemodel x.dcmodel --density 0.5").code == 0
    assert run("convert x.dcmodel back.caffemodel").code == 0
    assert run("convert back.caffemodel again.dcmodel").code == 0
    np.testing.assert_array_equal(weights("back.caffemodel"), weights("x.dcmodel"))
    assert Path("again.dcmodel").read_bytes() == Path("x.dcmodel").read_bytes()
    assert scores(run, "x.dcmodel") == scores(run, "back.caffemodel")
    assert run("train --solver solver.prototxt --weights x.dcmodel").code == 0
    assert run("time --model net.prototxt --iterations 1 --weights x.dcmodel").code == 0
    Path("cut.dcmodel").write_bytes(Path("x.dcmodel").read_bytes()[:-9])
    assert "cannot read cut.dcmodel (" in run("time --model net.prototxt --iterations 1 --weights cut.dcmodel").fatal
    net = Net("net.prototxt", 1, weights="x.dcmodel")
    np.testing.assert_array_equal(net.params["ip"][0].data, weights("x.dcmodel"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("x.caffemodel", "compress writes a .dcmodel, not x.caffemodel"),
        ("x.dcmodel --density 2", "--density takes a share from 0 to 1, for all layers or as LAYER=NUMBER"),
        ("x.dcmodel --density ip=", "for one, not 'ip='"),
        ("x.dcmodel --bits 13", "--bits takes a whole number from 1 to 12"),
        ("x.dcmodel --bits fc=3", "no inner product with weights of its own called fc"),
    ],
)
def test_what_is_refused(words: str, message: str, run: Run) -> None:
    assert message in run(f"compress small_iter_8.caffemodel {words}").fatal
    assert not Path("x.dcmodel").exists()


def test_a_solver_without_a_test_net_is_refused(run: Run) -> None:
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    made = run("compress small_iter_8.caffemodel x.dcmodel --solver solver.prototxt")
    assert "the solver has no test net" in made.fatal
