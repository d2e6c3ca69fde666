"""16 bits for the front of the gradients only: see front_ranks.py for what sums and ranks have to come to."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.errors import UsageError
from tests.parallel.conftest import needs_mpi, run_ranks

MPI = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")

from fcaffe.parallel.compression import make_compression  # noqa: E402

MB = 4 / (1 << 20)  # of a float
ONE_HOST = "ring", "auto", "shared", "tree", "halving", "doubling", "server", "sharded-server", "mpi"
SEVERAL_HOSTS = "auto", "hierarchical", "hierarchical:ring", "ring"


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "names", "hosts"),
    [*((ranks, ONE_HOST, "") for ranks in (1, 2, 3, 5)), *((ranks, SEVERAL_HOSTS, "2") for ranks in (3, 4))],
)
def test_ranks(ranks: int, names: tuple[str, ...], hosts: str) -> None:
    """Several hosts are what MPICH takes one machine for, if told to."""
    run_ranks(ranks, "front_ranks.py", *names, **({"MPIR_CVAR_NUM_CLIQUES": hosts} if hosts else {}))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_when_the_front_becomes_another(data: Any) -> None:
    """Of whole numbers all additions are exact, so what was sent and what is kept are what came in, to the last bit."""
    cuts = sorted({0, *data.draw(st.lists(st.integers(1, 39), max_size=5)), 40})
    slices = [slice(*ends) for ends in itertools.pairwise(cuts)][::-1]
    numbers = st.lists(st.integers(-4000, 4000), min_size=40, max_size=40)
    given_in, sent, state = np.zeros(40), np.zeros(40), None
    for first in data.draw(st.lists(st.sampled_from([1, 7, 20, 39, np.inf]), min_size=1, max_size=4)):
        scheme = data.draw(st.sampled_from(["bf16", "fp16"]))
        reduction = make_compression(f"{scheme}:first={first * MB}", MPI.COMM_SELF)
        buffer = reduction.allocate(40)
        if state:
            reduction.restore_state(state)
        steps = data.draw(st.lists(numbers, max_size=2))
        for step in steps:
            given_in += step
            buffer[...] = step
            for slice_ in slices:
                reduction.sum(buffer[slice_])
            sent += buffer
        state = {name: array.copy() for name, array in reduction.state().items()}
        kept = state["residual"] + state["owed"]
        assert np.array_equal(sent + np.pad(kept, (0, 40 - kept.size)), given_in)
        if steps:
            assert kept.size == max([cuts[1], *(end for end in cuts if end <= first)]), "it ends with the front"
        reduction.close()


@pytest.mark.parametrize(("then", "now"), [(2, 6), (6, 2), (np.inf, 2), (2, np.inf)])
def test_a_state_of_another_front_is_folded_in_at_the_first_sum(then: float, now: float) -> None:
    """Slices of two; of 257, which takes 9 bits, bf16 sends 256 and keeps 1."""
    states, slices = [], [slice(start, start + 2) for start in (6, 4, 2, 0)]
    state = None
    for first in (then, now):
        reduction = make_compression(f"bf16:first={first * MB}", MPI.COMM_SELF)
        buffer = reduction.allocate(8)
        if state:
            reduction.restore_state(state)
            assert all(np.array_equal(array, state[name]) for name, array in reduction.state().items())
        buffer[...] = 257
        for slice_ in slices:
            reduction.sum(buffer[slice_])
        state = {name: array.copy() for name, array in reduction.state().items()}
        states.append(state)
        last = buffer.copy()
        reduction.close()
    then, now = int(min(then, 8)), int(min(now, 8))
    assert [state["residual"].size for state in states] == [then, now]
    assert states[0]["residual"].tolist() == [1] * then
    sums = [258 if index < then else 256 if index < now else 257 for index in range(8)]
    assert last.tolist() == sums
    assert states[1]["residual"].tolist() == [0 if index < then else 1 for index in range(now)]


def test_beyond_the_front_no_page_is_touched() -> None:
    """As a Linux process gets memory when it writes it, so the residual costs no more than the front's."""
    reduction = make_compression("bf16:first=0.1", MPI.COMM_SELF)
    count = 1 << 24
    buffer = reduction.allocate(count)
    buffer[...] = 1
    before = resident()
    for start in range(count - (1 << 20), -1, -(1 << 20)):
        reduction.sum(buffer[start : start + (1 << 20)])
    state = reduction.state()
    assert state["residual"].size == state["owed"].size == 1 << 20
    assert resident() - before < 32 << 20, "bytes: of 64 MB of gradients 4 are in front"
    reduction.close()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("text", "reduce", "message"),
    [
        ("bf16:first=0", "auto", "bf16: first is how many MB of gradients, .* more than 0, not 0; with 0.1 it is the"),
        ("fp16:first=-1", "auto", "fp16: first is how many MB .* not -1"),
        ("bf16:first=nan", "auto", "more than 0, not nan"),
        ("bf16:first=all", "auto", "--compress bf16:first=all: first must be a number, not 'all'"),
        ("bf16:first", "auto", "'first' is no option=value that bf16 knows; it takes first=VALUE"),
        (
            "bf16:first=auto",
            "auto",
            "add --plan FILE, which `fcaffe plan --calibrate` writes between the hosts, or give MB",
        ),
        ("onebit:first=1", "auto", "'first=1' is no option=value that onebit knows; it takes chunk=VALUE"),
        ("bf16:first=inf", "ring", "--compress bf16:first=inf has messages of its own: leave out --reduce ring"),
        ("bf16:first=1", "rong", "there is no reduction 'rong' .did you mean 'ring'"),
        ("bf16:first=1", "nccl", "reduction nccl sums buffers of GPUs"),
    ],
)
def test_refused(text: str, reduce: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_compression(text, MPI.COMM_SELF, reduce=reduce)


def test_refused_on_gpus() -> None:
    """Any module but NumPy stands for CuPy here: it is not touched."""
    with pytest.raises(UsageError, match="bf16:first=1: on GPUs all gradients are compressed or none; leave out first"):
        make_compression("bf16:first=1", MPI.COMM_SELF, os)


def test_what_the_log_says() -> None:
    reduction = make_compression("bf16:first=2", MPI.COMM_SELF, reduce="null")
    assert reduction.compression == reduction.name == "bf16:first=2"
    assert reduction.summary().startswith("bf16: 0.000 MB sent by rank 0")
    reduction.close()
