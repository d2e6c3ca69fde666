"""With --math bf16, convolutions whose windows have one value are products of matrices where they have few places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fcaffe.engines.onednn import convolution
from fcaffe.engines.windows import Windows
from tests.engines.test_bfloat16 import DIGITS, exact, narrow, rounded, soft

__all__ = ["exact", "soft"]  # fixtures

SEEDS = range(40)


def images(random: Any, n: int, channels: int, size: tuple[int, ...]) -> np.ndarray:
    return np.moveaxis(random.standard_normal((n, *size, channels), np.float32), -1, 1)


@pytest.fixture
def products(soft: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the results of the engine's products."""
    made, product = [], soft.product

    def noted(a: Any, b: Any, *others: Any, **settings: Any) -> None:
        made.append((a.shape[0], b.shape[1]))
        product(a, b, *others, **settings)

    monkeypatch.setattr(soft, "product", noted)
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_those_of_convolutions(
    soft: Any, exact: Any, products: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = np.random.default_rng(seed)
    few = random.random() < 0.8
    monkeypatch.setattr(convolution, "MOST_POSITIONS", 4096 if few else 0)
    axes, group, pad = int(random.integers(1, 4)), int(random.choice([1, 1, 1, 2])), int(random.choice([0, 0, 0, 1]))
    n, c, m = (int(number) for number in (random.integers(1, 5), *(group * random.integers(48, 130, 2))))
    size = tuple(int(length) for length in random.integers(1, 7, axes))
    stride = tuple(int(step) for step in random.integers(1, 3, axes)) if random.random() < 0.5 else (1,) * axes
    windows = Windows((1,) * axes, stride, (pad,) * axes, (1,) * axes)
    x, weights = images(random, n, c, size), random.standard_normal((m, c // group, *windows.kernel), np.float32)
    dy = images(random, n, m, windows.convolved(size))
    x, weights, dy = (rounded(soft, values) for values in (x, weights, dy))
    bias = random.standard_normal(m).astype(np.float32) if random.random() < 0.5 else None
    relu, narrow_blobs = bool(random.random() < 0.5), bool(random.random() < 0.7)

    y, found = np.empty_like(dy), narrow(soft, dy) if narrow_blobs else np.empty_like(dy)
    exact.convolution_forward(x, weights, bias, y, windows, group, relu)
    x_, dy_ = (narrow(soft, values) for values in (x, dy)) if narrow_blobs else (x, dy)
    soft.convolution_forward(x_, weights, bias, found, windows, group, relu)
    limit = DIGITS if narrow_blobs else 1e-5
    np.testing.assert_allclose(soft.to_numpy(found), y, rtol=limit, atol=limit * (np.abs(y).max() + 1e-6))

    once, twice = np.full((2, *weights.shape), np.nan, np.float32)
    wanted = np.empty_like(weights)
    exact.convolution_backward_weights(x, dy, wanted, windows, group, False)
    soft.convolution_backward_weights(x_, dy_, once, windows, group, False)
    twice[...] = once
    soft.convolution_backward_weights(x_, dy_, twice, windows, group, True)
    for values, times in ((once, 1), (twice, 2)):
        np.testing.assert_allclose(values, times * wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())

    is_product = few and group == 1 and pad == 0 and min(c, m) >= 64
    places = dy.size // m
    assert products == is_product * ([(places, m)] * windows.is_pointwise() + [(m, c)] * 2)


def test_the_same_bits_each_time_and_in_other_memory(soft: Any, products: Any) -> None:
    """Blobs of a net lie in other memory in each run, and some in C order."""
    random, windows = np.random.default_rng(1), Windows((1, 1), (1, 1), (0, 0), (1, 1))
    x, weights, dy = (
        images(random, 4, 96, (9, 11)),
        random.standard_normal((80, 96, 1, 1), np.float32),
        images(random, 4, 80, (9, 11)),
    )
    results = []
    for order in "channels last", "C order", "channels last":
        x_, dy_, y = (narrow(soft, np.ascontiguousarray(z) if order == "C order" else z.copy("K")) for z in (x, dy, dy))
        dweights = np.empty_like(weights)
        soft.convolution_forward(x_, weights, None, y, windows, 1)
        soft.convolution_backward_weights(x_, dy_, dweights, windows, 1, False)
        results.append((soft.to_numpy(y).copy(), dweights))
    for y, dweights in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(dweights, results[0][1])
    assert len(products) == 6


def test_weights_are_rounded_once_while_they_are_fixed(soft: Any, products: Any) -> None:
    random, windows = np.random.default_rng(1), Windows((1, 1), (1, 1), (0, 0), (1, 1))
    x, weights = narrow(soft, images(random, 4, 96, (9, 11))), random.standard_normal((80, 96, 1, 1), np.float32)
    y, later = (narrow(soft, images(random, 4, 80, (9, 11))) for _ in range(2))
    with soft.fixed_weights():
        soft.convolution_forward(x, weights, None, y, windows, 1)
        weights *= 2
        soft.convolution_forward(x, weights, None, later, windows, 1)
        np.testing.assert_array_equal(soft.to_numpy(y), soft.to_numpy(later))
    soft.convolution_forward(x, weights, None, later, windows, 1)
    np.testing.assert_array_equal(2 * soft.to_numpy(y), soft.to_numpy(later))
    assert len(products) == 3
