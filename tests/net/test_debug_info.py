"""The lines of debug_info for nets without layers, parameters or gradients of some kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from fcaffe.net import Net

DATA = """force_backward: true
layer { name: "in" type: "Input" top: "a" top: "b" input_param { shape { dim: 1 dim: 4 } shape { dim: 1 dim: 4 } } }"""
PARTS = (
    'layer { name: "ip" type: "InnerProduct" bottom: "a" top: "c" '
    'inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }',
    'layer { name: "relu" type: "ReLU" bottom: "b" top: "b" }',
    'layer { name: "loss" type: "EuclideanLoss" bottom: "a" bottom: "b" top: "loss" }',
)


@pytest.mark.parametrize("parts", [c for n in range(4) for c in itertools.combinations(PARTS, n)])
def test_each_pass_is_logged(
    parts: tuple[str, ...], net_from: Callable[..., Net], capfd: pytest.CaptureFixture[str]
) -> None:
    net = net_from(DATA + "\n".join(parts))
    net.debug_info = True
    capfd.readouterr()
    net.forward()
    net.backward()
    said = capfd.readouterr().err
    norms = [line for line in said.splitlines() if "All net params (data, diff)" in line]
    assert len(norms) == 1 and ("L1 norm = (0, 0); L2 norm = (0, 0)" in norms[0]) is not any("ip" in p for p in parts)
