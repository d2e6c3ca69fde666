"""One rank of the checks that every reduction must pass: `python -m mpi4py reduction_ranks.py CHECK`."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import zlib
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.parallel import waiting
from fcaffe.parallel.reductions import Reduction, create_reduction, host_memory, reduction_names, register
from fcaffe.parallel.reductions.auto import Auto, pick
from fcaffe.parallel.reductions.hierarchical import BLOCK
from fcaffe.parallel.reductions.host_memory import Hosts
from fcaffe.parallel.reductions.reduction import reduction_class
from fcaffe.tree_order import nodes_of_workers
from tests.parallel.refusals import refused

SUMS = [name for name in reduction_names() if name != "null" and not reduction_class(name).on_device]
# Near the number of ranks, and near the limit of blocks; the last has several segments and blocks for each rank.
LENGTHS = [0, 1, 3, 7, 13, 10007, BLOCK, BLOCK + 1, 10 * BLOCK + 77]


@functools.cache
def gradients(rank: int, length: int) -> np.ndarray:
    return np.random.default_rng((rank, length)).standard_normal(length, np.float32)


@functools.cache
def exact_sum(ranks: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """In float64, and how far float32 may be from it."""
    everybody = np.array([gradients(rank, length) for rank in range(ranks)], np.float64)
    return everybody.sum(axis=0), ranks * 2**-24 * np.abs(everybody).sum(axis=0)


def check_sums(comm: MPI.Intracomm, names: list[str]) -> None:
    for name in names:
        reduction = create_reduction(name, comm)
        checksums: dict[str, int] = {}
        own = reduction.allocate(max(LENGTHS) + 5)
        assert own.dtype == np.float32 and not own.any()
        for length in LENGTHS:
            what = f"{name}, {comm.size} ranks, {length} floats"
            mine = gradients(comm.rank, length)
            foreign = mine.copy()
            reduction.sum(foreign)
            own[:] = -1
            bucket = own[3 : 3 + length]
            bucket[:] = mine
            reduction.sum(bucket)
            results = {"foreign": foreign, "own": bucket.copy()}
            assert np.all(own[:3] == -1) and np.all(own[3 + length :] == -1), f"{what}: wrote beyond the buffer"
            checksums |= check_sum(comm, results, what)
        check_same_bits(comm, checksums)
        reduction.close()


def check_sum(comm: MPI.Intracomm, results: dict[str, np.ndarray], what: str) -> dict[str, int]:
    """At rank 0 the sum to float32's rounding. Checksums of the bits, by words for them."""
    if comm.rank == 0:
        for kind, result in results.items():
            exact, bound = exact_sum(comm.size, result.size)
            assert np.all(np.abs(result - exact) <= bound), f"{what}, {kind}: not the sum"
    return {f"{what}, {kind}": zlib.crc32(result) for kind, result in results.items()}


def check_same_bits(comm: MPI.Intracomm, checksums: dict[str, int]) -> None:
    everybodys = comm.gather(checksums)
    for what, checksum in checksums.items() if everybodys else ():
        assert all(each[what] == checksum for each in everybodys), f"{what}: the ranks have different bits"


def groups(sizes: list[int]) -> MPI.Intracomm:
    """Of this rank, with ranks in reverse order."""
    world = MPI.COMM_WORLD
    assert sum(sizes) == world.size
    ends = np.cumsum(sizes)
    return world.Split(int(np.searchsorted(ends, world.rank, "right")), -world.rank)


def one_host() -> None:
    check_sums(MPI.COMM_WORLD, SUMS)
    for sizes in ([4, 1], [3, 2]):
        check_sums(groups(sizes), SUMS)


def several_hosts() -> None:
    """Ranks that MPI takes to be on several hosts; prints what each group of them sent."""
    world = MPI.COMM_WORLD
    found = []
    for comm in (world, world.Split(int(world.rank < 4), world.rank)):
        hosts = Hosts(comm)
        check_sums(comm, [*(name for name in SUMS if name != "shared"), "hierarchical:tree"])
        if hosts.count > 1:
            with refused(FcaffeError, "use hierarchical"):
                create_reduction("shared", comm)
        traffic = []
        for name in ("hierarchical", "auto"):
            reduction = create_reduction(name, comm)
            reduction.sum(np.zeros(1 << 20, np.float32))
            traffic.append(comm.gather((hosts.index, reduction.bytes_sent)))
        found += world.gather({"sizes": hosts.sizes, "hierarchical": traffic[0], "auto": traffic[1]}) or []
    if world.rank == 0:
        print(json.dumps([each for each in found if each["auto"]]))


def choices() -> None:
    """What `auto` picks, and that it goes on where there is no room for shared memory."""
    assert pick([1], 4)[0] == "null"
    assert pick([4], 4)[0] == pick([16], 1 << 30)[0] == "shared"
    assert pick([2, 2], 4 << 20)[0] == pick([2, 1], 4)[0] == "hierarchical"
    assert pick([1] * 8, 4 << 20)[0] == "ring"
    assert pick([1] * 128, 4 << 20)[0] == pick([1] * 8, 400_000)[0] == "halving"
    assert pick([1] * 8, 4000)[0] == "doubling"
    comm = MPI.COMM_WORLD
    reduction = create_reduction("auto", comm)
    assert isinstance(reduction, Auto) and reduction.pick(4) == ("shared", f"all {comm.size} ranks are on one host")
    host_memory.FOLDER = "/"
    host_memory.os.statvfs = lambda _: SimpleNamespace(f_bavail=comm.rank, f_frsize=1)  # type: ignore[assignment]
    with refused(FcaffeError, "--shm-size"):
        create_reduction("shared", comm).allocate(100_000)
    buffer = reduction.allocate(100_000)
    buffer[:] = gradients(comm.rank, buffer.size)
    reduction.sum(buffer)
    check_same_bits(comm, check_sum(comm, {"sum": buffer}, "auto without shared memory"))
    assert reduction.messages == 2 * (comm.size - 1) and reduction.pick(buffer.nbytes)[0] == "ring"
    reduction.keep_to_tree(*nodes_of_workers(4, comm.size))
    assert reduction.pick(buffer.nbytes)[0] == "halving"


def refusals() -> None:
    comm = MPI.COMM_WORLD
    whole = np.zeros((4, 4), np.float32)
    for buffer in (whole.T, whole[None], whole[:, 0], whole[0].astype(np.float64)):
        with refused(FcaffeError, "flat, contiguous float32"):
            create_reduction("ring", comm).sum(buffer)
    with refused(UsageError, r"did you mean hierarchical\?\); known are .*ring"):
        create_reduction("hierachical", comm)
    with refused(UsageError, "did you mean ring"):
        create_reduction("hierarchical:rign", comm)
    with refused(UsageError, "takes no other reduction"):
        create_reduction("ring:tree", comm)
    with refused(FcaffeError, "two reductions of the name 'ring'"):
        register("ring")(type("Another", (Reduction,), {}))


def patience() -> None:
    """All but rank 0 wait for half a second; prints how many seconds of a core that took each of them."""
    comm = MPI.COMM_WORLD
    for name in ("tree", "ring", "doubling", "halving", "server", "shared"):
        reduction = create_reduction(name, comm)
        buffer = reduction.allocate(100_000)
        reduction.sum(buffer)
        comm.Barrier()
        if comm.rank == 0:
            time.sleep(0.5)
        began = time.process_time()
        reduction.sum(buffer)
        seconds = comm.gather(time.process_time() - began)
        if seconds is not None:
            print(json.dumps({name: seconds[1:]}))


def repeated() -> None:
    """Made and closed again and again, more often than MPI has communicators, reductions leave nothing behind."""
    comm = MPI.COMM_WORLD
    numbers = []
    others = [comm.Dup() for _ in range(TAKEN)]
    for _ in range(ROUNDS):
        for name in ("shared", "hierarchical", "auto", "ring"):
            reduction = create_reduction(name, comm)
            buffer = reduction.allocate(10_000)
            buffer[:] = 1
            reduction.sum(buffer)
            assert buffer[0] == comm.size
            reduction.close()
        with open("/proc/self/maps") as maps:
            numbers.append((sum("/dev/shm" in line for line in maps), len(os.listdir("/proc/self/fd"))))
    for other in others:
        other.Free()
    assert len(set(numbers[10:])) == 1, f"shared mappings and handles: {numbers[10]}, later {numbers[-1]}"


TAKEN, ROUNDS = 1600, 60  # rounds of at least 9 communicators each, and MPICH has 2048
CHECKS = [one_host, several_hosts, patience, choices, refusals, repeated]
if sys.argv[1] != "patience":
    waiting.POLLS = 10  # more ranks than cores: what a rank waits for comes while it sleeps
next(check for check in CHECKS if check.__name__ == sys.argv[1].replace("-", "_"))()
