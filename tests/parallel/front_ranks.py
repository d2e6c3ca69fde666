"""Ranks that send the front of their gradients in 16 bits: `python -m mpi4py front_ranks.py REDUCTION...`."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from fcaffe.net.state import State
from fcaffe.parallel import waiting
from fcaffe.parallel.compression import make_compression
from fcaffe.parallel.exchange import ReducingExchange
from fcaffe.parallel.reductions import Reduction, create_reduction

COMM = MPI.COMM_WORLD
COUNT, BUCKET = 5000, 700  # floats
MB = 4 / (1 << 20)  # of a float
ODD = [np.nan, np.inf, -np.inf, 1 / 3, -1e-20, 1e30, 2.0**60 + 2.0**8]
PARTS = {
    "bf16": (1, 650, 3 * BUCKET, COUNT - 1),
    "fp16": (1.5 * BUCKET,),
}  # of the gradients, in floats; a bucket ends at 650


class Came(NamedTuple):
    """Of three iterations: gradients, what rode along, where buckets began in the last one, and what is kept."""

    sums: np.ndarray
    arrived: list[np.ndarray]
    starts: list[int]
    kept: State


def gradients(iteration: int, rank: int) -> np.ndarray:
    """A third of them zeros, half of these -0.0, alike on all ranks: their sums are -0.0 too."""
    drawn = np.random.default_rng((iteration, rank)).normal(size=COUNT).astype(np.float32)
    drawn[::6], drawn[3::6] = 0.0, -0.0
    return drawn


def riders(iteration: int, rank: int) -> np.ndarray:
    return np.random.default_rng((iteration, rank)).permutation(ODD)


def run(reduction: Reduction, overlap: bool = True, first: int = 0, last: int = 3, state: State | None = None) -> Came:
    """Iterations `first` to `last`, in buckets of layers that end anywhere, from where `state` was."""
    exchange = ReducingExchange(reduction, 4 * BUCKET, overlap)
    buffer = exchange.allocate(np, COUNT, len(ODD))
    if state:
        exchange.restore_state(state)
    sums, arrived = [], []
    for iteration in range(first, last):
        buffer[...] = gradients(iteration, COMM.rank)
        if exchange.riders:
            exchange.send_along(riders(iteration, COMM.rank))
        exchange.begin(buffer)
        for start in (4990, 2200, 1400, 650, 3, 0):
            exchange.ready(start)
        exchange.finish()
        sums.append(buffer.copy())
        if exchange.riders:
            arrived.append(exchange.arrived().copy())
    ends = COUNT - np.cumsum([0, *exchange.cut]) // 4
    kept = {name: array.copy() for name, array in exchange.state().items()}
    exchange.close()
    return Came(np.array(sums), arrived, [int(end) for end in ends[1:]], kept)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """-0.0 is not 0.0."""
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def check(name: str, scheme: str, floats: float, short: Came) -> None:
    """`short`: of all gradients in 16 bits."""
    text = f"{scheme}:first={floats * MB}"
    came = run(make_compression(text, COMM, reduce=name))
    where = f"{text} with {name} on {COMM.size} ranks"
    assert len(came.starts) > 4
    ends = [*came.starts[::-1][1:], COUNT]
    end = max([end for end in ends if end <= floats], default=ends[0])
    plain = run(create_reduction(name, COMM))
    assert same_bits(came.sums[:, end:], plain.sums[:, end:]), f"{where}: beyond the front"
    assert same_bits(came.sums[:, :end], short.sums[:, :end]), f"{where}: in front"
    if end < COUNT and COMM.size > 1:
        assert not np.array_equal(short.sums[:, end:], plain.sums[:, end:])
    minus_zeros = np.arange(COUNT) % 6 == 3
    assert np.signbit(came.sums[:, end:][:, minus_zeros[end:]]).all(), f"{where}: 0.0 in place of -0.0"
    assert {array.size for array in came.kept.values()} == {end}, f"{where}: kept beyond the front"
    assert len(set(COMM.allgather(came.sums.tobytes()))) == 1, f"{where}: not the same on all ranks"
    if COMM.size > 1:
        expected = [[riders(iteration, rank) for rank in range(COMM.size)] for iteration in range(3)]
        np.testing.assert_array_equal(np.float32(came.arrived), np.float32(expected), where)
        finite = np.isfinite(expected)
        error = np.abs(np.array(came.arrived)[finite] / np.array(expected)[finite] - 1)
        assert error.max() < 2.0**-48, where
        np.testing.assert_array_equal(short.arrived, came.arrived, where)
    begun = run(make_compression(text, COMM, reduce=name), overlap=False, last=2)
    resumed = run(make_compression(text, COMM, reduce=name), first=2, state=begun.kept)
    assert same_bits(np.concatenate([begun.sums, resumed.sums]), came.sums), f"{where}: other bits"
    padded = {kept: np.append(array, np.zeros(COUNT - end, np.float32)) for kept, array in begun.kept.items()}
    resumed = run(make_compression(text, COMM, reduce=name), first=2, state=padded)
    assert same_bits(resumed.sums, came.sums[2:]), f"{where}: other bits after a state with zeros behind"
    assert {array.size for array in resumed.kept.values()} == {end}, f"{where}: zeros kept beyond the front"


def main(*names: str) -> None:
    short = {scheme: run(make_compression(scheme, COMM)) for scheme in PARTS}
    for name in names:
        for scheme, parts in PARTS.items():
            for floats in parts if name == names[0] else parts[:1]:
                check(name, scheme, floats, short[scheme])


waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
main(*sys.argv[1:])
