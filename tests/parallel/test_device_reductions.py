"""Reductions of buffers on GPUs: on a stand-in for CuPy everywhere, and on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from fcaffe.parallel.devices import find_devices
from tests.parallel.conftest import needs_mpi, run_ranks

pytestmark = needs_mpi
devices = find_devices()
needs_gpu = pytest.mark.skipif(
    not devices.count or importlib.util.find_spec("cupy") is None, reason=f"there is {devices}, or no CuPy"
)
FLOAT, ADD = 7, 0  # as the stand-in numbers them


def run(ranks: int, *check: str, **variables: str) -> str:
    """What a check of device_ranks.py prints on this many ranks."""
    return run_ranks(ranks, "device_ranks.py", *check, **variables)[0]


def calls(ranks: int, name: str, count: int, hosts: int = 1) -> list[list[object]]:
    """Of one sum, at the last rank: events are numbered as they occur, streams as they were made."""
    return json.loads(run(ranks, "calls", name, str(count), MPIR_CVAR_NUM_CLIQUES=str(hosts)))


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_staged_and_direct(ranks: int) -> None:
    staged = "tree,ring,halving,server,mpi,staged:shared,staged:hierarchical:ring,staged"
    run(ranks, "sums", f"{staged},direct:tree,direct:ring,direct:halving,direct:server,direct:mpi")


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (3, 1), (4, 2), (6, 2), (4, 4)])
def test_nccl(ranks: int, hosts: int) -> None:
    run(ranks, "sums", "nccl,hierarchical,hierarchical:tree,auto", MPIR_CVAR_NUM_CLIQUES=str(hosts))


def test_calls_of_nccl() -> None:
    training, own = 0, 1
    ready, began, done, ended = range(4)
    assert calls(2, "nccl", 1000) == [
        ["record", ready, training],
        ["wait", own, ready],
        ["record", began, own],
        ["allReduce", 1000, FLOAT, ADD, own],
        ["record", done, own],
        ["wait", training, done],
        ["record", ended, own],
    ]


def test_calls_of_staging() -> None:
    """Copies of all pieces are put on a stream at once; each is summed when it is there, and goes back on another."""
    training, down, back = 0, 1, 2
    ready, began, returned, first, second, done, ended = range(7)
    piece = 4 << 20
    assert calls(2, "staged:ring", (1 << 20) + 5) == [
        ["record", ready, training],
        ["wait", down, ready],
        ["record", began, down],
        ["wait", down, returned],
        ["to host", piece, down],
        ["record", first, down],
        ["to host", 20, down],
        ["record", second, down],
        ["synchronize", first],
        ["to device", piece, back],
        ["synchronize", second],
        ["to device", 20, back],
        ["record", returned, back],
        ["record", done, back],
        ["wait", training, done],
        ["record", ended, back],
    ]


def test_calls_of_hierarchical() -> None:
    """1001 floats on two hosts of two ranks: the last rank of each also has the one that is left over."""
    training, own, down, back = 0, 1, 2, 3
    ready, began, reduced, between, returned, copied, summed, between_ended, done, ended = range(10)
    found = calls(4, "hierarchical:ring", 1001, hosts=2)
    if ["to host", 501 * 4, down] not in found:
        pytest.skip("this MPI cannot take one machine for several")
    assert found == [
        ["record", ready, training],
        ["wait", own, ready],
        ["record", began, own],
        ["groupStart"],
        ["reduceScatter", 500, FLOAT, ADD, own],
        ["reduce", 1, FLOAT, ADD, 1, own],
        ["groupEnd"],
        ["record", reduced, own],
        ["wait", down, reduced],
        ["record", between, down],
        ["wait", down, returned],
        ["to host", 501 * 4, down],
        ["record", copied, down],
        ["synchronize", copied],
        ["to device", 501 * 4, back],
        ["record", returned, back],
        ["record", summed, back],
        ["wait", own, summed],
        ["record", between_ended, back],
        ["groupStart"],
        ["allGather", 500, FLOAT, own],
        ["broadcast", 1, FLOAT, 1, own],
        ["groupEnd"],
        ["record", done, own],
        ["wait", training, done],
        ["record", ended, own],
    ]


def test_sums_run_beside_the_training() -> None:
    run(2, "start-and-finish")


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (3, 1), (4, 2)])
def test_gradients_leave_while_backward_runs(ranks: int, hosts: int) -> None:
    names = "nccl,hierarchical:ring,staged:ring,staged,direct:ring"
    run(ranks, "exchange", names, MPIR_CVAR_NUM_CLIQUES=str(hosts))


@pytest.mark.parametrize("ranks", [1, 3])
def test_compression(ranks: int) -> None:
    run(ranks, "compress")


@pytest.mark.parametrize("ranks", [1, 3])
def test_workers(ranks: int) -> None:
    run(ranks, "workers")


def test_bench() -> None:
    run(2, "bench")


def test_what_has_failed_on_a_device_is_told_by_who_waits() -> None:
    run(1, "failing")


def test_choices() -> None:
    run(4, "choices")


def test_errors() -> None:
    run(1, "errors")


def test_hosts_of_different_sizes() -> None:
    run(3, "unequal-hosts", MPIR_CVAR_NUM_CLIQUES="2")


def test_training_on_cpus_needs_no_cupy() -> None:
    code = "import sys, fcaffe.cli, fcaffe.parallel.bench; sys.exit('cupy' in sys.modules)"
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
