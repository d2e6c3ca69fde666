"""On what a primitive is tried before it stands in for others: numbers that show whether it writes the same bits.

Of random numbers of one size another order of sums shows in every second output. What is not finite, zero or too small
for all digits shows what else there is: whether ReLU lets NaN through, or whether padding is multiplied too. Such
numbers spoil whole sums, so they are strewn thinly, and in a second attempt.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fcaffe.engines.channels import channels_last

Array = Any

DRAWN = 99_991  # random numbers, which are repeated: a prime, so that no two rows of an array begin with the same
SPECIAL = np.array([np.nan, np.inf, -0.0, -np.inf, 1e-40, 0.0, -1e-40, 3e38], np.float32)


def drawn(shape: tuple[int, ...], number: int = 0, special: bool = False) -> Array:
    """Random numbers of this shape in C order, others for each `number`: weights, whose outputs come first, or numbers
    of channels. `special` ones are every tenth number, or one for every tenth output."""
    made = np.resize(np.roll(_pool(), -number * DRAWN // 10)[: max(1, math.prod(shape))], shape)
    if special:
        _strew(made, number, 10 * math.prod(shape[1:]) + 1)
    return made


def drawn_last(shape: tuple[int, ...], number: int = 0, special: bool = False) -> Array:
    """Random numbers of this shape with the channels last in memory, of which one at every tenth place is special."""
    made = np.resize(np.roll(_pool(), -number * DRAWN // 10), (shape[0], *shape[2:], shape[1]))
    if special:
        _strew(made, number, 10 * shape[1] + 1)
    return np.moveaxis(made, -1, 1)


def empty_last(shape: tuple[int, ...]) -> Array:
    """Of this shape, with the channels last."""
    return np.moveaxis(np.empty((shape[0], *shape[2:], shape[1]), np.float32), -1, 1)


def few_places(x: Array, apart: tuple[int, ...]) -> Array:
    """Every so many-th place of each spatial axis, with the channels last."""
    wanted = slice(None), slice(None), *(slice(None, None, step) for step in apart)
    few = x[wanted]
    made = empty_last(few.shape)
    made[...] = few
    return made


def same_bits(a: Array, b: Array) -> bool:
    """Whether the arrays have the same bits, but that any NaN is like another: which of two becomes the sum goes by the
    order of the operands, which NumPy's compiler chooses."""
    a, b = channels_last(a), channels_last(b)
    same = a.view(np.uint32) == b.view(np.uint32)
    return bool(same.all()) or bool(np.all(same | (np.isnan(a) & np.isnan(b))))


@functools.cache
def _pool() -> Array:
    """Random numbers between 0.5 and 2, or the same below zero."""
    random = np.random.default_rng(1)
    return random.uniform(0.5, 2, DRAWN).astype(np.float32) * random.choice(np.array([-1, 1], np.float32), DRAWN)


def _strew(array: Array, start: int, apart: int) -> None:
    """Put special numbers so far apart into memory in C order."""
    places = array.reshape(-1)[start::apart]
    places[...] = np.resize(np.roll(SPECIAL, start), places.size)
