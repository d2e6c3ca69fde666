"""Caffe's random streams: golden values of BVLC Caffe, and the order of draws under every path of the block code."""

import math
from pathlib import Path

import numpy as np
import pytest

from fcaffe.errors import SnapshotError
from fcaffe.rng import CaffeRandom, caffe_random
from fcaffe.rng.ziggurat import normal_try

GOLDEN = Path(__file__).parents[1] / "golden" / "fillers"
SEEDS = [1, 42, 1701]
IMAGE = 12  # height and width in crop_lmdb


def golden(name: str, seed: int) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}_seed{seed}.npz") as arrays:
        return dict(arrays)


def assert_same_bits(ours: np.ndarray, caffes: np.ndarray) -> None:
    np.testing.assert_array_equal(ours.reshape(caffes.shape).view(np.uint32), caffes.view(np.uint32))


def data_layer(random: CaffeRandom, augments: bool = True) -> CaffeRandom:
    """What building a Data layer draws: returns its transformer's generator."""
    transformer = random
    if augments:
        random.draw()
        transformer = CaffeRandom(random.draw())
    random.draw()  # the reader's
    return transformer


def decisions(transformer: CaffeRandom, images: int, mirror: bool, crop: int, train: bool = True) -> np.ndarray:
    """[mirrored, row offset, column offset] of each image."""
    room = IMAGE - crop if crop else 0
    out = []
    for _ in range(images):
        mirrored = transformer.draw() % 2 if mirror else 0
        offsets = [transformer.draw() % (room + 1) for _ in range(2)] if crop and train else [room // 2] * 2
        out.append([mirrored, *offsets])
    return np.array(out)


def normals_one_by_one(random: CaffeRandom, n: int) -> np.ndarray:
    values: list[np.float32] = []
    while len(values) < n:
        value = normal_try(random.draw(), random.draw)
        if value is not None:
            values.append(value)
    return np.array(values) + np.float32(0)  # the mean, which makes -0 a 0


# --- golden streams ---


@pytest.mark.parametrize("seed", SEEDS)
def test_dropout(seed: int) -> None:
    caffe = golden("dropout", seed)
    random = CaffeRandom(seed)
    for k in range(3):
        noise = random.normal(0, 1, 12)
        assert_same_bits(noise, caffe[f"pass{k}/noise"])
        for name, ratio in [("half", 0.5), ("fifth", 0.2), ("most", 0.85), ("chain", 0.5)]:
            top = caffe[f"pass{k}/{name}"]
            kept = random.bernoulli(1.0 - float(np.float32(ratio)), top.size)
            scale = np.float32(1) / (np.float32(1) - np.float32(ratio))
            bottom = noise if name == "chain" else np.ones(top.size, np.float32)
            assert_same_bits(bottom * kept * scale, top)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("net", "mirror", "crop", "train"),
    [("both", True, 8, True), ("crop", False, 7, True), ("mirror", True, 0, True), ("test", True, 8, False)],
)
def test_crops_and_mirrors(net: str, mirror: bool, crop: int, train: bool, seed: int) -> None:
    caffe = golden("crops", seed)
    random = CaffeRandom(seed)
    transformer = data_layer(random)
    assert_same_bits(random.normal(0, 1, 18), caffe[f"{net}/conv_weights"])
    expected = caffe[f"{net}/decisions"].reshape(-1, 3)
    np.testing.assert_array_equal(decisions(transformer, len(expected), mirror, crop, train), expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_image_list_shuffle(seed: int) -> None:
    caffe = golden("shuffle", seed)
    random = CaffeRandom(seed)
    own = CaffeRandom(random.draw())
    data_layer(random, augments=False)
    assert_same_bits(random.normal(0, 1, 18), caffe["shuffle/conv_weights"])
    labels = list(range(int(caffe["images"])))
    seen: list[int] = []
    while len(seen) < caffe["shuffle/labels"].size:
        own.shuffle(labels)
        seen += labels
    np.testing.assert_array_equal(seen[: caffe["shuffle/labels"].size], caffe["shuffle/labels"].ravel())


@pytest.mark.parametrize("seed", SEEDS)
def test_image_list_skip(seed: int) -> None:
    caffe = golden("shuffle", seed)
    random = CaffeRandom(seed)
    skip = random.draw() % 11
    data_layer(random, augments=False)
    assert_same_bits(random.normal(0, 1, 18), caffe["skip/conv_weights"])
    expected = (skip + np.arange(caffe["skip/labels"].size)) % caffe["images"]
    np.testing.assert_array_equal(expected, caffe["skip/labels"].ravel())


@pytest.mark.parametrize("seed", SEEDS)
def test_one_stream_runs_through_a_solver(seed: int) -> None:
    """Train net, test net, then in turns Dropout in training and DummyData in testing."""
    caffe = golden("solver", seed)
    random = CaffeRandom(seed)
    transformers = []
    for net in ["train", "test"]:
        transformers.append(data_layer(random))
        assert_same_bits(random.normal(0, 0.1, 27), caffe[f"{net}_init/conv/0"])
        assert_same_bits(random.uniform(-1, 1, 3), caffe[f"{net}_init/conv/1"])
        bound = math.sqrt(np.float32(3 / 108))
        assert_same_bits(random.uniform(-bound, bound, 16 * 108), caffe[f"{net}_init/ip/0"])
    noise = []
    for iteration in range(4):
        if iteration in (0, 2):
            noise += [random.uniform(0, 1, 5) for _ in range(2)]
        drop, conv = caffe[f"iter{iteration}/drop"], caffe[f"iter{iteration}/conv"]
        kept = random.bernoulli(1.0 - float(np.float32(0.4)), conv.size).reshape(conv.shape)
        np.testing.assert_array_equal(drop != 0, kept & (conv != 0))
        np.testing.assert_array_equal(decisions(transformers[0], 4, True, 8), caffe[f"iter{iteration}/decisions"])
    assert_same_bits(np.array(noise), caffe["test_noise"])


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
