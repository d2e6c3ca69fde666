"""Caffe's random streams: the order of draws under every path of the block code.

Golden values are those of the fillers, Dropout and the data layers (tests/golden/fillers).
"""

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.rng import CaffeRandom, caffe_random
from fcaffe.rng.ziggurat import normal_try


def assert_same_bits(ours: np.ndarray, caffes: np.ndarray) -> None:
    np.testing.assert_array_equal(ours.reshape(caffes.shape).view(np.uint32), caffes.view(np.uint32))


def normals_one_by_one(random: CaffeRandom, n: int) -> np.ndarray:
    values: list[np.float32] = []
    while len(values) < n:
        value = normal_try(random.draw(), random.draw)
        if value is not None:
            values.append(value)
    return np.array(values) + np.float32(0)  # the mean, which makes -0 a 0


# --- the order of draws ---


def test_raw_draws_are_mt19937() -> None:
    assert CaffeRandom(5489).draw() == 3499211612  # the generator's published first output
    mixed = CaffeRandom(7)
    taken = [mixed.draw(), *mixed.draws(700).tolist(), mixed.draw()]
    assert taken == CaffeRandom(7).draws(702).tolist()
    assert CaffeRandom(2**32 + 7).draw() == taken[0]


def test_without_a_seed_every_stream_differs() -> None:
    assert not np.array_equal(CaffeRandom().draws(4), CaffeRandom(-1).draws(4))


@pytest.mark.parametrize("block", [1, 2, 3, 64, 1 << 16])
def test_normals_take_draws_in_order(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks give what a value at a time gives, whatever lies across their borders, and stop at the same draw."""
    monkeypatch.setattr(caffe_random, "_BLOCK", block)
    n = 20000 if block > 3 else 3000
    for seed in [1, 2]:
        random, reference = CaffeRandom(seed), CaffeRandom(seed)
        expected = normals_one_by_one(reference, n)
        assert_same_bits(random.normal(0, 1, n), expected)
        assert random.draw() == reference.draw()


class Played(CaffeRandom):
    """Plays the given draws instead of a generator's."""

    def __init__(self, draws: list[int]):
        self.left = np.array(draws, np.uint32)

    def draws(self, n: int) -> np.ndarray:
        taken, self.left = self.left[:n], self.left[n:]
        assert len(taken) == n
        return taken

    def draw(self) -> int:
        return int(self.draws(1)[0])


@pytest.mark.parametrize("block", [1, 4, 1 << 16])
def test_rare_normals_in_every_order(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wedges, tails and heights that are drawn again, next to one another far more often than by chance."""
    monkeypatch.setattr(caffe_random, "_BLOCK", block)
    far = 0xFFFFFF << 8
    menu = [far | 1, far | 0x0B, far | 0xFF, 2**32 - 1, 2**32 - 128, 0x40000001, 0, 0x7FFFFFFF, far | 0x2A]
    picks = np.random.RandomState(0)
    for _ in range(100):
        draws = [menu[i] for i in picks.randint(len(menu), size=400)] + CaffeRandom(1).draws(400).tolist()
        blocks, reference = Played(draws), Played(draws)
        assert_same_bits(blocks.normal(0, 1, 100), normals_one_by_one(reference, 100))
        assert len(blocks.left) == len(reference.left)


def test_uniform_takes_both_ends_and_draws_again_beyond() -> None:
    top = 2**32 - 1  # rounds to 2^32, so to the float32 after 1
    expected = [0, np.nextafter(np.float32(0.5), np.float32(1))]
    np.testing.assert_array_equal(Played([top, 0, top, top, 2**31]).uniform(0, 1, 2), expected)
    np.testing.assert_array_equal(CaffeRandom(1).uniform(3, 3, 100), np.full(100, 3, np.float32))


@pytest.mark.parametrize("p", [0.2, 0.5, 1 / 3, 1.0])
def test_bernoulli_compares_in_the_asked_precision(p: float) -> None:
    edge = int(p * (2**32 - 1))
    draws = [max(0, min(2**32 - 1, edge + i)) for i in range(-300, 301)]
    double = [u <= p * (2**32 - 1) for u in draws]
    single = [np.float32(u) <= np.float32(p) * np.float32(2**32) for u in draws]
    assert Played(draws).bernoulli(p, len(draws)).tolist() == double
    assert Played(draws).bernoulli(p, len(draws), np.float32).tolist() == single


def test_bernoulli_of_zero_draws_nothing() -> None:
    assert not Played([]).bernoulli(0, 10).any()


def test_shuffle_draws_again_beyond_the_last_place() -> None:
    # 2^32 - 1 = 3 * 1431655765 + 0: the highest number alone would be the fourth of three places.
    played = Played([2**32 - 1, 0, 2**32 - 1])
    letters = ["a", "b", "c"]
    played.shuffle(letters)
    assert letters == ["c", "b", "a"]
    assert len(played.left) == 0


# --- state ---


def test_state_goes_back_to_the_same_draw() -> None:
    random = CaffeRandom(9)
    everything = CaffeRandom(9).normal(0, 1, 5000)
    random.normal(0, 1, 1234)
    state = random.state()
    assert len(state) == 2500
    rest = random.normal(0, 1, 5000 - 1234)
    assert_same_bits(rest, everything[1234:])
    resumed = CaffeRandom(1)
    resumed.set_state(state)
    assert resumed.state() == state
    assert_same_bits(resumed.normal(0, 1, 5000 - 1234), rest)
    assert resumed.draw() == random.draw()


@pytest.mark.parametrize("state", [b"", b"\0" * 2499, b"\xff" * 2500])
def test_a_damaged_state_is_refused(state: bytes) -> None:
    random = CaffeRandom(1)
    with pytest.raises(SnapshotError, match="2500 bytes"):
        random.set_state(state)
    assert random.draw() == CaffeRandom(1).draw()
