"""Every reduction gives the sum, with the same bits on every rank."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.parallel.conftest import needs_mpi, run_ranks

pytestmark = needs_mpi


def run(ranks: int, check: str, **variables: str) -> list[Any]:
    """The lines of JSON that a check of reduction_ranks.py prints on this many ranks."""
    return [json.loads(line) for line in run_ranks(ranks, "reduction_ranks.py", check, **variables)[0].splitlines()]


def test_sums() -> None:
    """Of five ranks, and of groups of one to four of them."""
    run(5, "one-host")


@pytest.mark.parametrize(("ranks", "hosts"), [(6, 3), (4, 4)])
def test_several_hosts(ranks: int, hosts: int) -> None:
    """Which MPICH takes one machine for, if told to."""
    variable = {"MPIR_CVAR_NOLOCAL": "1"} if hosts == ranks else {"MPIR_CVAR_NUM_CLIQUES": str(hosts)}
    (groups,) = run(ranks, "several-hosts", **variable)
    if len(groups[0]["sizes"]) == 1:
        pytest.skip("this MPI cannot take one machine for several")
    assert sum(groups[0]["sizes"]) == ranks and len(groups[0]["sizes"]) == hosts
    for found in groups:
        hosts = len(found["sizes"])
        ring = 2 * (hosts - 1) / hosts * 4 * (1 << 20)
        for name in ("hierarchical", "auto"):
            for host in range(hosts):
                sent = sum(count for index, count in found[name] if index == host)
                assert sent == pytest.approx(ring, abs=64), f"{name} sends what a ring of hosts does"


def test_choices() -> None:
    run(3, "choices")


def test_nothing_is_left_of_reductions_that_were_closed() -> None:
    run(2, "repeated")


def test_refusals() -> None:
    run(1, "refusals")


def test_waiting_leaves_the_cores_to_others() -> None:
    for line in run(4, "patience", MPIR_CVAR_ENABLE_HEAVY_YIELD="0"):
        for name, seconds in line.items():
            assert max(seconds) < 0.1, f"{name} kept a core busy for {max(seconds)} of 0.5 s"
