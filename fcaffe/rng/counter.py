"""A counter-based random stream: numbers depend on the pass, the layer and the row, not on the worker.

A worker with rows 64 to 127 of a batch gets the numbers that one worker with the whole batch has for them, without
drawing the others. `Moment` says which pass it is.

The bits are those of Philox4x64-10 (Salmon, Moraes, Dror and Shaw, 2011), which maps a key of two 64-bit words and a
counter of four to a block of four:

    key     = (seed mod 2^64,  BLAKE2b with 8 bytes of the layer's key in UTF-8, read as little-endian)
    counter = (1 + row * B + b,  number,  iteration,  net)      b = 0 .. B - 1: the row's blocks

A block is eight 32-bit words: its four 64-bit words in order, the lower half of each first. A row begins with a new
block, so the rest of its last block is unused. Element e of a row (in C order) is computed from

    keep_mask   word e = u        u <= floor(p (2^32 - 1)), p = 1 - ratio in double, ratio float32
    uniform     word e = u        (u >> 8) 2^-24 in float32

All functions take the index of their first row in the batch of all workers, and a shape whose first axis is the rows.
Several arrays of a layer need different names. Otherwise they get the same numbers.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fcaffe.engines.channels import ForEach, one_by_one

Shape = tuple[int, ...]

_BLOCK_WORDS = 8
_MANY_BLOCKS, _PIECES = 1 << 17, 32  # many blocks are drawn in so many pieces, each of which takes 10 us to begin
_LAST_WORD = 2**64 - 1
KEYS = 2  # the version of the counters, which snapshots name; 1 had (1 + sample * B + b, 0, iteration, 0)

SCRIPT, TRAINING, TEST = 1, 2, 3  # nets; test net #k is TEST + k


class Moment(NamedTuple):
    """Where a run stands: which forward pass this is, of all that it makes.

    Attributes:
        net: SCRIPT, TRAINING or TEST + k. Passes that nobody has numbered count as a script's.
        iteration: The iteration of the training, which a test does not change.
        number: The pass of the iteration (iter_size), the batch of the test, or the pass of the script.
    """

    net: int = SCRIPT
    iteration: int = 0
    number: int = 0


def keep_mask(
    seed: int,
    layer_name: str,
    moment: Moment,
    first_row: int,
    shape: Shape,
    ratio: float,
    for_each: ForEach = one_by_one,
) -> npt.NDArray[np.bool_]:
    """Dropout's mask: True, with probability 1 - ratio, where a value is retained.

    `for_each` is Engine.for_each, which draws large masks on all cores.
    """
    return _words(seed, layer_name, moment, first_row, shape, for_each) <= keep_limit(ratio)


def keep_limit(ratio: float) -> np.uint32:
    """The largest word for which a value is retained."""
    keep = 1.0 - float(np.float32(ratio))
    return np.uint32(keep * (2**32 - 1))


def uniform(seed: int, layer_name: str, moment: Moment, first_row: int, shape: Shape) -> npt.NDArray[np.float32]:
    """float32 numbers from [0, 1)."""
    return (_words(seed, layer_name, moment, first_row, shape) >> 8).astype(np.float32) * np.float32(2.0**-24)


@functools.lru_cache
def philox_key(seed: int, layer_name: str) -> tuple[np.uint64, np.uint64]:
    """The key of a layer's numbers."""
    name = hashlib.blake2b(layer_name.encode(), digest_size=8).digest()
    return np.uint64(seed % 2**64), np.uint64(int.from_bytes(name, "little"))


def _words(
    seed: int, layer_name: str, moment: Moment, first_row: int, shape: Shape, for_each: ForEach = one_by_one
) -> npt.NDArray[np.uint32]:
    """The words of each element, in this shape. An array without axes is one row."""
    rows, words_per_row = prod(shape[:1]), prod(shape[1:])
    blocks = -(-words_per_row // _BLOCK_WORDS)
    raw = np.empty((rows * blocks, _BLOCK_WORDS // 2), np.uint64)

    def draw(first: int, end: int) -> None:
        # NumPy increments the counter before each block, hence the 1 in its first word.
        counter = np.array([first_row * blocks + first, moment.number, moment.iteration, moment.net], np.uint64)
        generator = np.random.Philox(key=np.array(philox_key(seed, layer_name)), counter=counter)
        # The raw words. `generator.random_raw` gives the same ones, but does not release the interpreter's lock.
        drawn = np.random.Generator(generator).integers(0, _LAST_WORD, raw[first:end].shape, np.uint64, endpoint=True)
        raw[first:end] = drawn

    pieces = _PIECES if len(raw) >= _MANY_BLOCKS else 1
    for_each(draw, list(itertools.pairwise(len(raw) * piece // pieces for piece in range(pieces + 1))))
    words = raw.astype("<u8", copy=False).view("<u4").reshape(rows, blocks * _BLOCK_WORDS)[:, :words_per_row]
    return words.reshape(shape)
