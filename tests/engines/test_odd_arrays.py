"""Operators on arrays of any number of axes, of no values, and in any order in memory, as by NumPy's plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, find_onednn
from fcaffe.engines.onednn.engine import OneDnnEngine
from fcaffe.engines.windows import Windows
from tests.cases import case
from tests.engines.test_operators import drawn

PLAIN = NumpyEngine()
LARGE = 16384  # values, more than are left to NumPy
SHAPES = [(), (1,), (LARGE,), (4, 4096), (2, 3, 4096), (2, 16, 32, 17), (2, 8, 8, 16, 9), (2, 4, 4, 8, 8, 9)]
SHAPES += [(2,) * 12 + (4,), (2,) * 13 + (2,), (128, 128, *(1,) * 30), (2, 3, 0, 5), (0, 3, 4, 5), (1, 1, 1, 1)]


def orders(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The values in arrays that lie in memory in different ways."""
    yield "C order", x
    if x.ndim > 1:
        yield "transposed", np.asfortranarray(x)
    if x.ndim > 2:
        yield "channels last", np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    if x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), np.float32)
        wide[..., ::2] = x
        yield "strided", wide[..., ::2]
        flat = np.zeros(x.size + 1, np.float32)[1:].reshape(x.shape)
        flat[...] = x
        yield "unaligned", flat


def windows(axes: int) -> Windows:
    return Windows((2,) * axes, (1,) * axes, (0,) * axes, (1,) * axes)


def convolution(e: Any, x: np.ndarray, y: np.ndarray) -> None:
    weights = drawn(x.shape[1], x.shape[1], *(1,) * (x.ndim - 2))
    point = Windows(*[(1,) * (x.ndim - 2)] * 2, (0,) * (x.ndim - 2), (1,) * (x.ndim - 2))
    e.convolution_forward(x, weights, None, y, point, 1)
    e.convolution_backward_data(y, weights, x, point, 1)


def pooling(e: Any, x: np.ndarray, y: np.ndarray) -> None:
    part = y[(slice(None), slice(None), *(slice(1, None),) * (y.ndim - 2))]
    e.average_pool_forward(x, part, windows(x.ndim - 2))
    e.max_pool_forward(x, part, None, windows(x.ndim - 2))


OPERATORS: dict[str, tuple[int, int, Callable[[Any, np.ndarray, np.ndarray], None]]] = {  # with the numbers of axes
    "relu": (0, 32, lambda e, x, y: e.relu_forward(x, y, 0.5)),
    "relu_backward": (0, 32, lambda e, x, y: e.relu_backward(x, x, y, 0)),
    "sum": (0, 32, lambda e, x, y: e.weighted_sum([x, x, x], [1.0, 1.0, 1.0], y)),
    "product": (0, 32, lambda e, x, y: e.multiply(x, x, y)),
    "copy": (0, 32, lambda e, x, y: e.copy(x, y)),
    "channels": (2, 32, lambda e, x, y: e.scale_channels(x, y, *drawn(2, x.shape[1]))),
    "softmax": (2, 32, lambda e, x, y: e.softmax_forward(x, y, 1)),
    "convolution": (3, 6, convolution),
    "pooling": (3, 6, pooling),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_any_array(operator: str) -> None:
    path = find_onednn()
    if not path:
        pytest.skip("needs onednn-cpu-gomp")
    least, most, call = OPERATORS[operator]
    engine = OneDnnEngine(path)
    for shape in SHAPES:
        if not least <= len(shape) <= most or (0 in shape[2:] and most == 6):
            continue
        for (of_x, x), (of_y, y) in zip(orders(drawn(*shape)), [*orders(drawn(*shape))][::-1], strict=True):
            with case(shape, of_x, of_y), np.errstate(all="ignore"):
                right_x, right = x.copy(), y.copy()
                call(PLAIN, right_x, right)
                call(engine, x, y)
                close = 1e-5 * max(1, np.abs(right).max(initial=0))
                np.testing.assert_allclose(y, right, rtol=0, atol=close)
                np.testing.assert_allclose(x, right_x, rtol=0, atol=1e-5 * max(1, np.abs(right_x).max(initial=0)))
