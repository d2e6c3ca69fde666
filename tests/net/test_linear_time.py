"""Building a net and its program takes time proportional to the number of layers, counted in calls of functions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.net.test_whole_passes import build

BLOCK = """
layer {{ name: "c{i}" type: "Convolution" bottom: "x{j}" top: "c{i}"
  convolution_param {{ num_output: 3 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "b{i}" type: "BatchNorm" bottom: "c{i}" top: "c{i}" }}
layer {{ name: "s{i}" type: "Scale" bottom: "c{i}" top: "c{i}" scale_param {{ bias_term: true }} }}
layer {{ name: "e{i}" type: "Eltwise" bottom: "c{i}" bottom: "x{j}" top: "x{i}" }}
layer {{ name: "r{i}" type: "ReLU" bottom: "x{i}" top: "x{i}" }}
"""


def calls(blocks: int, phase: str) -> int:
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    text = 'layer { name: "in" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 dim: 6 dim: 6 } } }'
    text += "".join(BLOCK.format(i=index + 1, j=index) for index in range(blocks))
    text += f'layer {{ name: "loss" type: "Reduction" bottom: "x{blocks}" top: "loss" loss_weight: 1 }}'
    sys.setprofile(profile)
    try:
        net = build(phase, text, whole_passes=True, inference=phase == "TEST")
        net.arena.follow(net.fused)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("phase", ["TRAIN", "TEST"])
def test_calls(phase: str) -> None:
    calls(1, phase)  # what is done once
    few, many = calls(20, phase), calls(80, phase)
    assert many <= 4.4 * few
