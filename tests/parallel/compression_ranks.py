"""Ranks that compress gradients and check what they get: `python -m mpi4py compression_ranks.py`.

What a rank sends does not depend on the others, so one that compresses alone (COMM_SELF) tells what it is.
"""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from fcaffe.parallel import waiting
from fcaffe.parallel.compression import make_compression
from fcaffe.parallel.compression.sixteen_bit import SixteenBit
from fcaffe.parallel.reductions.reduction import cut

COMM = MPI.COMM_WORLD
SCHEMES = ["fp16", "bf16", "onebit:chunk=100", "topk:density=0.01,warmup=2"]


def check_sums(scheme: str, count: int) -> None:
    """Three iterations of two slices: sums, bits and bytes."""
    compression, alone = make_compression(scheme, COMM), make_compression(scheme, MPI.COMM_SELF)
    gradients, own = compression.allocate(count), alone.allocate(count)
    random = np.random.default_rng(COMM.rank)
    for iteration in range(3):
        gradients[...] = own[...] = random.normal(size=count).astype(np.float32)
        for part in (slice(count // 3, count), slice(0, count // 3)):
            alone.sum(own[part])
            before = compression.bytes_sent
            compression.sum(gradients[part])
            everyones = COMM.allgather((own[part], gradients[part].tobytes()))
            expected = np.zeros_like(own[part])
            for sent, _ in everyones:
                expected += sent
            if isinstance(compression, SixteenBit):
                rounded = through_words(compression, expected)
                errors, residual = (
                    cut(values, COMM.size)[COMM.rank] for values in (expected - rounded, alone.residual[part])
                )
                residual += errors
                expected = rounded
            where = f"{scheme}, iteration {iteration}, {part} of {count}, rank {COMM.rank} of {COMM.size}"
            assert np.array_equal(gradients[part], expected), where
            assert len({bits for _, bits in everyones}) == 1, where
            assert np.array_equal(compression.residual[part], alone.residual[part]), where
            assert compression.bytes_sent - before == expected_bytes(scheme, own[part], iteration), where
    plain = 3 * 8 * count * (COMM.size - 1) / COMM.size
    assert math.isclose(compression.ratio, plain / compression.bytes_sent if compression.bytes_sent else 1)
    assert compression.bytes_sent == compression.wire.bytes_sent
    compression.close()
    alone.close()


def check_not_finite(scheme: str) -> None:
    """One rank has NaN at one index, another inf at another: all ranks get these, in one sum only."""
    compression = make_compression(scheme, COMM)
    gradients = compression.allocate(400)
    random = np.random.default_rng(COMM.rank)
    for iteration in range(3):
        gradients[...] = random.normal(size=400)
        if iteration == 1:
            gradients[{0: 30, 1: 350}.get(COMM.rank, 0)] = {0: np.nan, 1: -np.inf}.get(COMM.rank, 0.0)
        for part in (slice(130, 400), slice(0, 130)):
            compression.sum(gradients[part])
        where = f"{scheme}, iteration {iteration}, rank {COMM.rank}"
        assert np.flatnonzero(~np.isfinite(gradients)).tolist() == ([30, 350] if iteration == 1 else []), where
        assert len(set(COMM.allgather(gradients.tobytes()))) == 1, where
        assert all(np.isfinite(array).all() for array in compression.state().values()), where
    compression.close()


def through_words(compression: SixteenBit, values: np.ndarray) -> np.ndarray:
    words = np.empty(values.size, np.uint16)
    compression.encode(values, words)
    return compression.decode(words, np.empty_like(values))


def expected_bytes(scheme: str, sent: np.ndarray, iteration: int) -> int:
    n, others = sent.size, COMM.size - 1
    name = scheme.split(":")[0]
    if n == 0:
        return 0
    if name == "onebit":
        return others * (math.ceil(n / 8) + 8 * math.ceil(n / 100))
    if name == "topk":
        return others * 8 * math.ceil(n * [0.25, 0.0625, 0.01][iteration])
    own = cut(sent, COMM.size)[COMM.rank].size
    return 2 * (n - own) + 2 * others * own


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
for each in SCHEMES:
    check_not_finite(each)
    for length in (0, 1, 2, 5, 4099):
        check_sums(each, length)
