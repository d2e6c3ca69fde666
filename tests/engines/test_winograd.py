"""3x3 convolutions by Winograd's transforms against plain ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine, cpu_engine, find_onednn
from fcaffe.engines.convolution import Folded
from fcaffe.engines.windows import Windows
from tests.cases import case

pytest.importorskip("numba", reason="--math winograd needs Numba")
if not find_onednn():
    pytest.skip("--math winograd needs onednn-cpu-gomp", allow_module_level=True)

from fcaffe.engines.winograd import transforms
from fcaffe.engines.winograd.engine import LEAST_TILES, suits

TOLERANCE = 3e-5  # of the largest value
PLAIN = NumpyEngine()


@pytest.fixture(scope="module")
def engine() -> Any:
    return cpu_engine("winograd")


def drawn(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal values in channels-last order."""
    if len(shape) < 4:
        return random.standard_normal(shape, np.float32)
    return np.moveaxis(random.standard_normal((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)


class Case(NamedTuple):
    x: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    dy: np.ndarray
    windows: Windows
    relu: bool


def results(engine: Any, case: Case) -> list[np.ndarray]:
    """The convolution, that with folded weights and a sum, and the gradients of x and of the weights."""
    forward, folded, dx, dweights = (np.empty_like(like) for like in (case.dy, case.dy, case.x, case.weights))
    dweights[...] = 1
    args = case.windows, 1
    engine.convolution_forward(case.x, case.weights, case.bias, forward, *args, case.relu)
    with engine.fixed_weights():
        made = Folded(lambda: [case.weights], lambda: (case.weights, case.bias))
        assert engine.folded_convolution(case.x, made, folded, *args, case.relu, case.dy)
    engine.convolution_backward_data(case.dy, case.weights, dx, *args)
    engine.convolution_backward_weights(case.x, case.dy, dweights, *args, True)
    return [forward, folded, dx, dweights]


def a_case(random: np.random.Generator) -> Case:
    channels, outputs = random.integers(transforms.CHANNELS, 80, 2)
    pad, size = ([int(number) for number in random.integers(*ends, 2)] for ends in ((0, 3), (3, 22)))
    windows = Windows((3, 3), (1, 1), (pad[0], pad[1]), (1, 1))
    rows, columns = windows.convolved((size[0], size[1]))
    batch = 1 + LEAST_TILES // (-(-rows // 4) * -(-columns // 4))
    dy = drawn(random, batch, outputs, rows, columns)
    weights, bias = drawn(random, outputs, channels, 3, 3), drawn(random, outputs)
    return Case(drawn(random, batch, channels, *size), weights, bias, dy, windows, bool(random.integers(2)))


def test_any_shape(engine: Any) -> None:
    random = np.random.default_rng(1)
    for number in range(20):
        drawn_case = a_case(random)
        assert suits(drawn_case.x, drawn_case.weights, drawn_case.dy, drawn_case.windows, 1)
        with case(number, drawn_case.x.shape, drawn_case.dy.shape, drawn_case.windows):
            for ours, plain in zip(results(engine, drawn_case), results(PLAIN, drawn_case), strict=True):
                np.testing.assert_allclose(ours, plain, rtol=0, atol=TOLERANCE * np.abs(plain).max())


def test_the_bits_do_not_depend_on_the_number_of_threads(all_threads: None, engine: Any) -> None:
    drawn_case = a_case(np.random.default_rng(2))
    several, engine._count = engine._count, 1
    by_one = results(engine, drawn_case)
    engine._count = several
    for one, other in zip(by_one, results(engine, drawn_case), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(engine: Any, value: float) -> None:
    drawn_case = a_case(np.random.default_rng(3))
    drawn_case.x[0, 0, 1, 1] = value
    with np.errstate(invalid="ignore"):
        for ours, plain in zip(results(engine, drawn_case), results(PLAIN, drawn_case), strict=True):
            assert not np.isfinite(ours[~np.isfinite(plain)]).any()


def test_the_transforms_are_those_of_the_matrices() -> None:
    matrices = {
        "input_axis": transforms.B_T,
        "kernel_axis": transforms.G,
        "output_axis": transforms.A_T,
        "gradient_axis": transforms.A_T.T,
        "kernel_gradient_axis": transforms.G.T,
    }
    for name, matrix in matrices.items():
        source = drawn(np.random.default_rng(4), matrix.shape[1], transforms.CHANNELS)
        target = np.zeros((len(matrix), transforms.CHANNELS), np.float32)
        getattr(transforms, name)(source.ravel(), 0, transforms.CHANNELS, target.ravel(), 0, transforms.CHANNELS)
        np.testing.assert_allclose(target, matrix @ source, rtol=0, atol=1e-5, err_msg=name)


def test_the_matrices_give_a_convolution() -> None:
    random = np.random.default_rng(5)
    d, g = random.standard_normal((6, 6)), random.standard_normal((3, 3))
    middle = (transforms.G @ g @ transforms.G.T) * (transforms.B_T @ d @ transforms.B_T.T)
    expected = [[(d[i : i + 3, j : j + 3] * g).sum() for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(transforms.A_T @ middle @ transforms.A_T.T, expected, atol=1e-5)
