"""The counter stream: the documented bits, the same for every split of a batch."""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from fcaffe.engines import NumpyEngine
from fcaffe.rng import counter
from fcaffe.rng.counter import Moment

MASK64 = 2**64 - 1


def philox(key: list[int], count: list[int]) -> list[int]:
    """Philox4x64-10, straight from the paper."""
    (k0, k1), (c0, c1, c2, c3) = key, count
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & MASK64, (p0 >> 64) ^ c3 ^ k1, p0 & MASK64
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK64, (k1 + 0xBB67AE8584CAA73B) & MASK64
    return [c0, c1, c2, c3]


def word(seed: int, name: str, moment: Moment, row: int, words_per_row: int, e: int) -> int:
    """Word e of a row by the recipe in the module's text, as a kernel would compute it."""
    key = [seed % 2**64, int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")]
    blocks = math.ceil(words_per_row / 8)
    block = philox(key, [1 + row * blocks + e // 8, moment.number, moment.iteration, moment.net])
    return block[e % 8 // 2] >> 32 * (e % 2) & 0xFFFFFFFF


def test_the_bits_are_those_documented() -> None:
    seed, name, moment, first, shape = 1701, "drop6", Moment(3, 12345, 7), 3, (4, 5, 3)
    mask = counter.keep_mask(seed, name, moment, first, shape, 0.4).reshape(4, 15)
    uniform = counter.uniform(seed, name, moment, first, shape).reshape(4, 15)
    keep = 1.0 - float(np.float32(0.4))
    for s in range(4):
        for e in range(15):
            u = word(seed, name, moment, first + s, 15, e)
            assert mask[s, e] == (u <= math.floor(keep * (2**32 - 1)))
            assert uniform[s, e] == np.float32((u >> 8) * 2.0**-24)


@pytest.mark.parametrize("sample", [(), (1,), (8,), (13,), (3, 5, 7)])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_workers_together_have_the_masks_of_one(sample: tuple[int, ...], workers: int) -> None:
    batch = 16
    edges = [batch * i // workers for i in range(workers + 1)]
    draws: list[Callable[..., np.ndarray]] = [partial(counter.keep_mask, ratio=0.5), counter.uniform]
    for draw in draws:
        whole = draw(1, "drop", Moment(), 0, (batch, *sample))
        parts = [draw(1, "drop", Moment(), a, (b - a, *sample)) for a, b in pairwise(edges)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", [(1, 1), (3, 13), (40, 3, 5, 7)])
def test_pieces_are_parts_of_the_whole(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    whole = counter.keep_mask(1, "drop", Moment(), 5, shape, 0.3)
    monkeypatch.setattr(counter, "_MANY_BLOCKS", 0)
    pieces = counter.keep_mask(1, "drop", Moment(), 5, shape, 0.3, NumpyEngine().for_each)
    np.testing.assert_array_equal(pieces, whole)


def test_seed_layer_pass_and_row_all_matter() -> None:
    shape, moment = (2, 256), Moment(2, 0, 0)
    base = counter.uniform(1, "a", moment, 0, shape)
    others = [
        counter.uniform(2, "a", moment, 0, shape),
        counter.uniform(-1, "a", moment, 0, shape),
        counter.uniform(1, "b", moment, 0, shape),
        *(counter.uniform(1, "a", other, 0, shape) for other in (Moment(1, 0, 0), Moment(2, 1, 0), Moment(2, 0, 1))),
        counter.uniform(1, "a", moment, 2, shape),
        counter.uniform(1, "a", moment, 1, shape)[::-1, ::-1],
    ]
    for other in others:
        assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.2
        assert (base == other).mean() < 0.01
    np.testing.assert_array_equal(base, counter.uniform(1, "a", moment, 0, shape))


def test_ratio_zero_keeps_everything() -> None:
    assert counter.keep_mask(1, "drop", Moment(), 0, (64, 4096), 0).all()
