"""Caffe's own training of LeNet on MNIST, followed for 500 iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.proto import read_solver
from fcaffe.solvers import create_solver
from tests.conftest import GOLDEN
from tests.golden_data import make_mnist_lmdbs

LENET = GOLDEN / "runs" / "lenet"


def test_lenet_follows_caffe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    make_mnist_lmdbs(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_bytes((LENET / "net.prototxt").read_bytes())
    solver = create_solver(read_solver(LENET / "solver.prototxt"), NumpyEngine())
    exact = np.load(LENET / "exact.npz")

    for node in solver.net.nodes:
        for index, blob in enumerate(node.layer.blobs):
            key = f"{node.name}/{index}"
            values = blob.data.astype(np.float64)
            assert [values.sum(), np.abs(values).sum()] == pytest.approx(exact[f"init_sum/{key}"], rel=1e-12)
            if f"init/{key}" in exact:
                assert np.array_equal(blob.data, exact[f"init/{key}"])

    losses: list[float] = []
    solver.on_gradients_ready.append(lambda: losses.append(float(solver.net.blob("loss").data)))
    solver.solve()
    solver.close()

    difference = np.abs(np.array(losses) - exact["loss"])
    assert (difference / exact["loss"])[:25].max() <= 2e-4
    assert (difference / exact["loss"])[:50].max() <= 1e-2
    assert difference[60:491:10].mean() <= 0.002
    assert difference[60:491:10].max() <= 0.01
