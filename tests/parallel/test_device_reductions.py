"""Reductions of buffers on GPUs: on a stand-in for CuPy everywhere, and on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from fcaffe.cli.engine import find_devices
from tests.parallel.conftest import needs_mpi, run_ranks

pytestmark = needs_mpi
devices = find_devices()
needs_gpu = pytest.mark.skipif(
    not devices.count or importlib.util.find_spec("cupy") is None, reason=f"there is {devices}, or no CuPy"
)


def run(ranks: int, *check: str, **variables: str) -> str:
    """What a check of device_ranks.py prints on this many ranks."""
    return run_ranks(ranks, "device_ranks.py", *check, **variables)[0]


@pytest.mark.parametrize("ranks", [1, 4])
def test_staged(ranks: int) -> None:
    run(ranks, "sums", "tree,ring,halving,server,mpi,staged:shared,staged:hierarchical:ring,staged")


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (3, 1), (4, 2)])
def test_nccl(ranks: int, hosts: int) -> None:
    run(ranks, "sums", "nccl,hierarchical,hierarchical:tree,auto", MPIR_CVAR_NUM_CLIQUES=str(hosts))


@pytest.mark.parametrize(("ranks", "hosts"), [(3, 1), (4, 2)])
def test_gradients_leave_while_backward_runs(ranks: int, hosts: int) -> None:
    names = "nccl,hierarchical:ring,staged:ring,staged"
    run(ranks, "exchange", names, MPIR_CVAR_NUM_CLIQUES=str(hosts))


def test_compression() -> None:
    run(3, "compress")


def test_workers() -> None:
    run(3, "workers")


def test_choices() -> None:
    run(4, "choices")


def test_errors() -> None:
    run(1, "errors")


def test_training_on_cpus_needs_no_cupy() -> None:
    code = "import sys, fcaffe.cli, fcaffe.tools.bench_reduce; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


@pytest.mark.gpu
@needs_gpu
def test_one_rank_on_a_gpu() -> None:
    run(1, "sums", "nccl,hierarchical,staged:ring,null", GPU="1")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_several_ranks_on_one_gpu(ranks: int) -> None:
    run(ranks, "sums", "staged:tree,staged:ring,staged:halving,staged:server,staged:shared", GPU="1")
