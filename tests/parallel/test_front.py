"""16 bits for the front of the gradients only: see front_ranks.py for what sums and ranks have to come to."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcaffe.errors import UsageError
from tests.parallel.conftest import MPIEXEC, ROOT, needs_mpi

MPI = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")

from fcaffe.parallel.compression import make_compression  # noqa: E402

MB = 4 / (1 << 20)  # of a float
ONE_HOST = "ring", "auto", "shared", "tree", "halving", "doubling", "server", "sharded-server", "mpi"
SEVERAL_HOSTS = "auto", "hierarchical", "hierarchical:ring", "ring"


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "names", "hosts"),
    [*((ranks, ONE_HOST, "") for ranks in (1, 2, 3, 4, 5)), *((ranks, SEVERAL_HOSTS, "2") for ranks in (3, 4))],
)
def test_ranks(ranks: int, names: tuple[str, ...], hosts: str) -> None:
    """Several hosts are what MPICH takes one machine for, if told to."""
    script = Path(__file__).with_name("front_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if hosts:
        environment["MPIR_CVAR_NUM_CLIQUES"] = hosts
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", script, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


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
        for step in data.draw(st.lists(numbers, max_size=2)):
            given_in += step
            buffer[...] = step
            for slice_ in slices:
                reduction.sum(buffer[slice_])
            sent += buffer
        state = {name: array.copy() for name, array in reduction.state().items()}
        assert np.array_equal(sent + state["residual"] + state["owed"], given_in)
        reduction.close()


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
