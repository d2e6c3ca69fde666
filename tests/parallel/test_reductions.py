"""Every reduction gives the sum, the same bits on every rank, with the messages that its formula says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs the extra fcaffe[mpi]"
)


def run(ranks: int, check: str, **variables: str) -> list[dict]:
    """The lines of JSON that a check of reduction_ranks.py prints on this many ranks."""
    script = Path(__file__).with_name("reduction_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", script, check]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 8, 16])
def test_sums(ranks: int) -> None:
    run(ranks, "one-host")


@pytest.mark.parametrize(("ranks", "hosts"), [(4, 2), (5, 2), (6, 3), (4, 4)])
def test_several_hosts(ranks: int, hosts: int) -> None:
    """Which MPICH takes one machine for, if told to."""
    variable = {"MPIR_CVAR_NOLOCAL": "1"} if hosts == ranks else {"MPIR_CVAR_NUM_CLIQUES": str(hosts)}
    (found,) = run(ranks, "several-hosts", **variable)
    if len(found["sizes"]) == 1:
        pytest.skip("this MPI cannot take one machine for several")
    assert sum(found["sizes"]) == ranks and len(found["sizes"]) == hosts
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
    for line in run(4, "patience"):
        for name, seconds in line.items():
            assert max(seconds) < 0.1, f"{name} kept a core busy for {max(seconds)} of 0.5 s"
