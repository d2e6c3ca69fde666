"""From the second on, all passes cost the same: no step records, tries or allocates more than the others."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fcaffe as caffe
from fcaffe import log
from fcaffe.solvers import Solver

CONVOLUTIONS = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 16 dim: 64 dim: 64 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a" convolution_param { num_output: 16 kernel_size: 3 pad: 1 } }
layer { name: "norm" type: "BatchNorm" bottom: "a" top: "a" }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "a" top: "b" convolution_param { num_output: 16 kernel_size: 3 pad: 1 } }
layer { name: "sum" type: "Eltwise" bottom: "b" bottom: "a" top: "sum" }
"""


def counted_calls(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of calls of oneDNN's functions that compute, by iteration, from now on."""
    library, calls = solver.engine.library, Counter[int]()  # type: ignore[attr-defined]

    def counted(function: Callable[..., int], *arguments: Any) -> int:
        calls[solver.iteration] += 1
        return function(*arguments)

    for name in ("execute", "product"):
        monkeypatch.setattr(library, name, partial(counted, getattr(library, name)))
    return calls


@pytest.mark.usefixtures("on_each_engine")
@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
def test_no_pass_of_a_script_allocates_more_than_its_blobs(phase: int, tmp_path: Path) -> None:
    log.set_minimum(1)
    path = tmp_path / "net.prototxt"
    path.write_text(CONVOLUTIONS)
    net = caffe.Net(str(path), phase)
    blobs = sum(blob._blob.count * 4 for blob in net.blobs.values())
    net.blobs["x"].data[...] = np.random.default_rng(1).standard_normal(net.blobs["x"].data.shape)
    tracemalloc.start()
    try:
        for number in range(8):
            net.forward()
            if number == 5:
                assert net.blobs["a"].data.size
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2.5 * blobs, f"{peak} bytes for blobs of {blobs}"
