"""How the flags of several workers become the solver's exchange: overlap by hosts, threads and flags, and BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest

from fcaffe.cli.workers import SharingFlags
from fcaffe.jobs.world import World
from fcaffe.timeline import Timeline

MPI = pytest.importorskip("mpi4py.MPI", reason="needs the extra fcaffe[mpi]")


@pytest.mark.parametrize(
    ("hosts", "threads", "flags", "overlap"),
    [
        ("aa", True, {}, False),
        ("aa", True, {"bucket_mb": 1.0}, True),
        ("ab", True, {}, True),
        ("ab", True, {"overlap": False}, False),
        ("aa", True, {"bucket_mb": 1.0, "overlap": False}, False),
        ("ab", False, {}, False),
        ("aa", False, {}, False),
    ],
)
def test_overlap(hosts: str, threads: bool, flags: dict[str, float], overlap: bool, capfd: pytest.CaptureFixture[str]):
    world = World(rank=0, size=2, local_rank=0, hosts=tuple(hosts), comm=MPI.COMM_SELF, threads=threads)
    made = SharingFlags(**{"reduce": "tree", "batch": "global"} | flags).for_solver(world, Timeline(), np)
    assert made["exchange"].overlap == overlap
    assert ("summed after backward, as with --no-overlap" in capfd.readouterr().err) == (hosts == "ab" and not threads)
    made["workers"].close()


@pytest.mark.parametrize(
    ("batch", "bn", "sync"),
    [("global", "", True), ("per-worker", "", False), ("global", "local", False), ("per-worker", "sync", True)],
)
def test_statistics(batch: str, bn: str, sync: bool) -> None:
    world = World(rank=0, size=2, local_rank=0, hosts=("a", "a"), comm=MPI.COMM_SELF)
    made = SharingFlags(reduce="tree", batch=batch, bn=bn).for_solver(world, Timeline(), np)
    assert made["sync_batch_norm"] == sync
    made["workers"].close()
