"""scripts/emulated_cluster: hosts, their links, and MPI on them."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).parents[2] / "scripts" / "emulated_cluster"
SWITCHED = errno.ECONNREFUSED  # by a host that is there and has no such server
CONNECT = """
import socket, sys
with socket.socket() as probe:
    probe.settimeout(0.5)
    print(probe.connect_ex((sys.argv[1], int(sys.argv[2]))))
"""
ALL_REDUCE = """
import json, time
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
mine, total, seconds = np.ones(500_000, np.float32), np.empty(500_000, np.float32), []
for _ in range(3):
    world.Barrier()
    start = time.perf_counter()
    world.Allreduce(mine, total)
    seconds.append(time.perf_counter() - start)
leaders = world.allreduce(int(world.Split_type(MPI.COMM_TYPE_SHARED).rank == 0))
hosts = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print(json.dumps({"sum": float(total.mean()), "nodes": leaders, "hosts": hosts, "seconds": sorted(seconds)[1]}))
"""


class Cluster:
    def __init__(self, name: str) -> None:
        self.name = f"test{os.getpid()}{name}"

    def words(self, verb: str, *arguments: object) -> list[str]:
        return [sys.executable, str(SCRIPT), verb, "--name", self.name, *map(str, arguments)]

    def __call__(self, verb: str, *arguments: object) -> str:
        done = subprocess.run(self.words(verb, *arguments), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, verb: str, *arguments: object) -> str:
        done = subprocess.run(self.words(verb, *arguments), capture_output=True, text=True, timeout=300)
        assert done.returncode == 1 and not done.stdout
        return done.stderr

    def status(self) -> list[dict[str, Any]]:
        return json.loads(self("status", "--json"))

    def connect(self, host: int, to: str, port: int = 9) -> int:
        """The error of a connection; 0 if there is a server."""
        return int(self("exec", host, "--", sys.executable, "-c", CONNECT, to, port))


def why_not() -> str | None:
    """Why this machine cannot have a cluster."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if missing := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"{' and '.join(missing)} of iproute2 not installed"
    name = f"test{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else None


@pytest.fixture(scope="module")
def allowed() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def cluster(allowed: None) -> Iterator[Cluster]:
    """Not up yet."""
    cluster = Cluster("single")
    yield cluster
    cluster("down")


@pytest.fixture(scope="module")
def three(allowed: None) -> Iterator[Cluster]:
    cluster = Cluster("three")
    try:
        cluster("up", 3, "--rate", "100mbit")
        yield cluster
    finally:
        cluster("down")


@pytest.fixture
def mpi() -> None:
    if not importlib.util.find_spec("mpi4py"):
        pytest.skip("mpi4py is not installed")
    beside = Path(sys.prefix, "bin", "mpiexec")
    if not (mpiexec := beside if beside.exists() else shutil.which("mpiexec")):
        pytest.skip("there is no mpiexec")
    if "HYDRA" not in subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("mpiexec is not MPICH's")


def everything_of(name: str) -> list[str]:
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    return [*(space for space in spaces if name in space), *map(str, Path("/run/emulated_cluster").glob(name))]


def network_of_the_machine() -> list[str]:
    queries = (["-br", "link"], ["-br", "address"], ["route", "show", "table", "all"])
    return [subprocess.run(["ip", *query], capture_output=True, text=True, check=True).stdout for query in queries]


@pytest.mark.cluster
def test_up_and_down_leave_the_machine_as_it_was(cluster):
    before = network_of_the_machine()
    cluster("up", 2)
    assert len(everything_of(cluster.name)) == 4  # two hosts, their switch, the folder
    assert network_of_the_machine() == before
    assert "is up already" in cluster.refused("up", 2)
    cluster("down")
    assert everything_of(cluster.name) == []
    cluster("down")
    assert "is not up" in cluster.refused("status")


@pytest.mark.cluster
def test_an_up_that_fails_leaves_nothing(cluster):
    blocking = f"emulated-{cluster.name}-2"
    subprocess.run(["ip", "netns", "add", blocking], check=True)
    assert blocking in cluster.refused("up", 2)
    assert everything_of(cluster.name) == []
    assert "--rate fast" in cluster.refused("up", 2, "--rate", "fast")
    assert "0 hosts" in cluster.refused("up", 0)
    assert "there are" in cluster.refused("up", 2, "--cores", 10_000)
    assert everything_of(cluster.name) == []


@pytest.mark.cluster
def test_hosts_reach_each_other_and_nothing_else(three):
    assert three.connect(1, "198.18.0.3") == SWITCHED
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert three.connect(1, "127.0.0.1", server.getsockname()[1]) == SWITCHED  # its own 127.0.0.1, not this one
    shown = subprocess.run(["ip", "-j", "-4", "address"], capture_output=True, check=True).stdout
    addresses = [address["local"] for link in json.loads(shown) for address in link["addr_info"]]
    for outside in ["192.0.2.1", *(address for address in addresses if not address.startswith("127."))]:
        assert three.connect(2, outside) == errno.ENETUNREACH


@pytest.mark.cluster
def test_a_cut_link_can_be_mended(three):
    three("cut", 3)
    try:
        assert [row["link"] for row in three.status()] == ["up", "up", "cut"]
        assert three.connect(1, "198.18.0.3") != SWITCHED
        assert three.connect(3, "198.18.0.1") != SWITCHED
        assert three.connect(1, "198.18.0.2") == SWITCHED
    finally:
        three("mend", "198.18.0.3")
    deadline = time.monotonic() + 60
    while three.connect(1, "198.18.0.3") != SWITCHED:
        assert time.monotonic() < deadline
    assert [row["link"] for row in three.status()] == ["up"] * 3
    assert "no host '4'" in three.refused("cut", 4)


@pytest.mark.cluster
def test_an_all_reduce_takes_the_time_of_the_links(three, mpi):
    seen = json.loads(three("run", "--", sys.executable, "-c", ALL_REDUCE))
    assert seen["sum"] == 3 and seen["nodes"] == 3
    assert seen["hosts"] == ["198.18.0.1", "198.18.0.2", "198.18.0.3"]
    least = 4 / 3 * 2e6 * 8 / 100e6  # each rank sends at least 2 (p - 1) / p of the 2 MB
    assert 0.7 * least < seen["seconds"] < 5 * least


@pytest.mark.cluster
def test_arguments_of_mpiexec_and_its_exit_status(three, mpi):
    assert three("run", "-n", 1, "-genv", "COLOUR", "blue", "--", "sh", "-c", "echo $COLOUR").split() == ["blue"]
    assert subprocess.run(three.words("run", "--", "sh", "-c", "exit 7"), timeout=300).returncode == 7


@pytest.mark.parametrize(
    "words, said",
    [
        (["up", "2", "--name", "a/b"], "'a/b' is not made of"),
        (["run", "-n", "2"], "a command belongs behind --"),
        (["down", "--", "true"], "no command belongs behind --"),
        (["status", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage(words, said):
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and said in done.stderr
