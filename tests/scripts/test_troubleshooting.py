"""docs/troubleshooting.md quotes messages that fcaffe has, and its remedies are remedies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fcaffe.data import open_database
from tests.cli.conftest import Result, Run, folder, run, write_records  # noqa: F401 - fixtures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()

QUOTED = [  # fcaffe's messages among the words in quotes; the others are Caffe's, Linux's or flags
    "the first value that is not finite is in",
    "Ignoring source layer",
    "has no weights for the layer(s)",
    "does not need backward computation",
    "shape mismatch. Source param shape is",
    "out of memory: ",
    "Waiting for data",
    "but mpi4py cannot be used, or finds no MPI library",
    "pictures could be read",
    "is read without a lock, as",
    "cut short",
    "HDF5 files need h5py",
    "data wait",
]


@pytest.mark.parametrize("words", QUOTED)
def test_a_quoted_message_is_fcaffes(words: str) -> None:
    assert words in " ".join(PAGE.split()).replace("training this net takes", "training this net takes")
    sources = "".join(re.sub(r'"\s+f?"', "", path.read_text()) for path in (ROOT / "fcaffe").rglob("*.py"))
    assert words in sources


def losses(result: Result) -> list[float]:
    return [float(found) for found in re.findall(r"Iteration \d+(?: \(.*\))?, loss = (\S+)", result.err)]


def rated(rate: str, *more: str) -> str:
    text = Path("solver.prototxt").read_text().replace("base_lr: 0.01", f"base_lr: {rate}")
    Path("rated.prototxt").write_text(" ".join([text, *more]))
    return "train -solver rated.prototxt"


def test_a_loss_of_87(run: Run, folder: Path) -> None:  # noqa: F811
    assert losses(run(rated("100")))[-1] > 15
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace("data_param", "transform_param { scale: 0.00390625 } data_param"))
    assert losses(run(rated("0.1")))[-1] < 3


def test_values_that_are_not_finite(run: Run, folder: Path) -> None:  # noqa: F811
    assert "the first value that is not finite is in" in run(rated("1e38")).fatal
    assert run(rated("0.0001", "clip_gradients: 35")).code == 0


def test_labels_and_order(run: Run, folder: Path) -> None:  # noqa: F811
    write_records("sorted", [0] * 10 + [1] * 10)
    assert "Labels     2 from 0 to 1" in run("lmdb info sorted").out
    assert run("lmdb shuffle sorted mixed").code == 0
    from fcaffe.proto import caffe_pb2 as pb

    labels = [pb.Datum.FromString(value).label for _, value in open_database("mixed")]
    assert sorted(labels) == [0] * 10 + [1] * 10 and labels != sorted(labels)


def test_a_renamed_layer_starts_afresh(run: Run, folder: Path) -> None:  # noqa: F811
    first = """layer { name: "first" type: "InnerProduct" bottom: "data" top: "first" inner_product_param {
      num_output: 4 weight_filler { type: "xavier" } } }
    layer { name: "ip" type: "InnerProduct" bottom: "first" top: "ip" """
    own = 'layer {\n  name: "ip" type: "InnerProduct" bottom: "data" top: "ip"'
    text = Path("net.prototxt").read_text().replace(own, first)
    Path("net.prototxt").write_text(text)
    assert run("train -solver solver.prototxt").code == 0
    text = text.replace("num_output: 3", "num_output: 5")
    Path("net.prototxt").write_text(text)
    words = "train -solver solver.prototxt -weights small_iter_8.caffemodel"
    assert "shape mismatch. Source param shape is" in run(words).fatal
    Path("net.prototxt").write_text(text.replace('"ip"', '"other"'))
    done = run(words)
    assert done.code == 0 and "Ignoring source layer ip" in done.err and "has no weights for the layer(s)" in done.err
