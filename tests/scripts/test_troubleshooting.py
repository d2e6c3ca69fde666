"""docs/troubleshooting.md quotes messages that fcaffe has, and its remedies are remedies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Run, folder, run  # noqa: F401 - fixtures

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
