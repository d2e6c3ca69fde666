"""The tables of the ziggurats, and the parts of their algorithm that few draws reach."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from fcaffe.rng import CaffeRandom
from fcaffe.rng.ziggurat import Table, exponential, exponential_table, normal_table, normal_try, unit_uniform

NORMAL_TAIL_AREA = math.sqrt(math.pi / 2) * math.erfc(3.4426198558966521 / math.sqrt(2))


def play(*draws: int) -> Callable[[], int]:
    """A generator that gives these draws and must not be asked for more."""
    return iter(draws).__next__


@pytest.mark.parametrize(
    ("table", "strips", "tail", "tail_area", "density"),
    [
        (normal_table(), 128, 3.4426198558966521, NORMAL_TAIL_AREA, lambda x: np.exp(-x * x / 2)),
        (exponential_table(), 256, 7.6971174701310497, math.exp(-7.6971174701310497), lambda x: np.exp(-x)),
    ],
)
def test_strips_have_equal_areas_under_the_curve(
    table: Table, strips: int, tail: float, tail_area: float, density: Callable[[np.ndarray], np.ndarray]
) -> None:
    assert len(table.x) == len(table.y) == strips + 1
    assert table.x[1] == tail and table.x[-1] == 0 and table.y[0] == 0 and table.y[-1] == 1
    np.testing.assert_allclose(table.y[1:], density(table.x[1:]), rtol=1e-15, atol=1e-15)
    areas = table.x[1:-1] * np.diff(table.y)[1:]
    np.testing.assert_allclose(areas, tail_area + tail * table.y[1], rtol=1e-13)
    assert table.x[0] * table.y[1] == pytest.approx(areas[0], rel=1e-13)


def test_published_values() -> None:
    """As printed in the literature (and in Boost), to the last bit."""
    assert normal_table().x[0] == 3.7130862467403632609
    assert normal_table().x[2] == 3.2230849845786185446
    assert exponential_table().x[0] == 8.6971174701310497140


def test_unit_uniform_draws_again_what_rounds_to_one() -> None:
    assert unit_uniform(play(2**32 - 1, 2**32 - 128, 2**31)) == 0.5
    assert unit_uniform(play(2**32 - 129)) == np.float32(1 - 2**-24)


def test_tail() -> None:
    first = 0xFFFFFF << 8 | 1
    zero, one = 0 << 8 | 1, int(2**24 / exponential_table().x[1]) << 8 | 1  # exponential draws of about 0 and 1
    begin = normal_table().x32[1]
    assert normal_try(first, play(zero, one)) == begin
    assert normal_try(first & ~1, play(zero, one)) == -begin
    assert normal_try(first, play(zero, zero, zero, one)) == begin  # 2 y > x^2 fails for two zeros


def test_exponential() -> None:
    end = 0xFFFFFF << 8
    again = exponential(play(end, 0 << 8 | 1))  # beyond the lowest strip: shifted, and once more
    assert again == np.float32(exponential_table().x[1])
    assert exponential(play(end | 9, 0)) <= exponential_table().x32[9]  # in the wedge, at its floor
    assert exponential(play(end | 9, 2**31, 0 << 8 | 7)) == 0  # in the wedge, above the curve: a new try
    draw = CaffeRandom(1).draw
    values = np.array([exponential(draw) for _ in range(20000)])
    assert values.min() >= 0
    assert values.mean() == pytest.approx(1, abs=0.03)
    assert values.std() == pytest.approx(1, abs=0.05)
