"""Building a net and its program takes time proportional to the number of layers.

The time is counted in calls of functions, and in large allocations: a copy of a list of all later layers for each
layer would take the square.
"""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest

from fcaffe import log
from fcaffe.net.run.layout import uses
from tests.net.test_whole_passes import build

BLOCK = """
layer {{ name: "c{i}" type: "Convolution" bottom: "x{j}" top: "c{i}"
  convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "b{i}" type: "BatchNorm" bottom: "c{i}" top: "c{i}" }}
layer {{ name: "s{i}" type: "Scale" bottom: "c{i}" top: "c{i}" scale_param {{ bias_term: true }} }}
layer {{ name: "e{i}" type: "Eltwise" bottom: "c{i}" bottom: "x{j}" top: "x{i}" }}
layer {{ name: "r{i}" type: "ReLU" bottom: "x{i}" top: "x{i}" }}
"""

LARGE = 2048  # bytes: a list of 256 layers


def work(blocks: int, phase: str) -> tuple[int, int]:
    """The calls, and the stretches between two calls in which more is allocated than a layer needs."""
    calls = large = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls, large
        present, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        large += peak - present >= LARGE
        calls += event == "call"

    text = 'layer { name: "in" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }'
    text += "".join(BLOCK.format(i=index + 1, j=index) for index in range(blocks))
    text += f'layer {{ name: "loss" type: "Reduction" bottom: "x{blocks}" top: "loss" loss_weight: 1 }}'
    tracemalloc.start()
    sys.setprofile(profile)
    try:
        with log.quiet(3):
            net = build(phase, text, whole_passes=True, inference=phase == "TEST")
            uses(net.fused, {})
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    return calls, large


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_time(phase: str) -> None:
    work(1, phase)  # what is done once
    (few, few_large), (many, many_large) = work(20, phase), work(80, phase)
    assert many <= 4.4 * few
    assert many_large <= few_large + 50  # of 300 more layers, of which 144 have more than 256 behind them
