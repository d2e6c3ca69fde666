"""Which GPUs the hosts have, and which one a rank takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcaffe.errors import UsageError
from fcaffe.parallel.devices import (
    Devices,
    check_devices,
    describe,
    device_of,
    devices_of_hosts,
    find_devices,
    parse_devices,
)
from fcaffe.parallel.world import World, host_name
from tests.parallel.conftest import MPIEXEC, Job, needs_mpi
from tests.parallel.fake_cupy import BUS, cupy, runtime

TWO = Devices(("a", "b"))
CUPY = """
from types import SimpleNamespace
runtime = SimpleNamespace(getDeviceCount=lambda: 2, deviceGetPCIBusId=str)
cuda = SimpleNamespace(runtime=runtime)
"""


def world(*hosts: str, rank: int = 0, local_rank: int = 0) -> World:
    return World(rank=rank, size=len(hosts), local_rank=local_rank, hosts=hosts)


def test_those_that_cupy_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(runtime, "devices", 2)
    assert find_devices() == Devices((BUS.format(0), BUS.format(1)))
    assert describe(devices_of_hosts(World())) == f"{host_name()} has 2 GPUs"


def test_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver: CUDA driver version\nis insufficient for CUDA runtime version")

    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(runtime, "getDeviceCount", fail)
    driver = "no GPU (cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version)"
    assert str(find_devices()) == driver
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 0)
    assert str(find_devices()) == "no GPU (CUDA sees none)"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert str(find_devices()).startswith("no GPU (CuPy is not installed: pip install cupy-cuda12x")
    monkeypatch.delitem(sys.modules, "cupy")
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1:\\ncannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    assert str(find_devices()) == "no GPU (CuPy does not start: libcuda.so.1: cannot open)"


def test_hosts() -> None:
    """A launcher may show each rank the same GPUs, or another one; a host counts each once."""
    one, other, none = Devices(("a",)), Devices(("b",)), Devices((), "why")
    job = world("n1", "n1", "n2", "n2", "n3")
    everybodys = list(zip(job.hosts, (TWO, TWO, one, other, none), strict=True))
    job.comm = SimpleNamespace(allgather=lambda own: everybodys)
    found = devices_of_hosts(job)
    assert describe(found) == "n1 has 2 GPUs, n2 has 2 GPUs, n3 has no GPU (why)"


def test_too_few() -> None:
    found = {"n1": TWO, "n2": Devices(("a",))}
    check_devices(3, world("n1", "n1", "n2"), found)
    with pytest.raises(UsageError, match="--gpus 4 needs a GPU for each worker, 2 on n2, but n1 has 2 GPUs, n2 has 1"):
        check_devices(4, world("n1", "n1", "n2", "n2"), found)
    with pytest.raises(UsageError, match="--gpus 8, but 3 ranks were started: leave the flag out; n1 has 2 GPUs, n2"):
        check_devices(8, world("n1", "n1", "n2"), found)
    alone = {host_name(): TWO}
    check_devices(2, World(), alone)
    with pytest.raises(UsageError, match=f"3 on {host_name()}, but {host_name()} has 2 GPUs"):
        check_devices(3, World(), alone)


def test_numbers() -> None:
    assert parse_devices("all", TWO) == [0, 1] and parse_devices("1", TWO) == [1]
    for text, problem in {
        "0,2": "has 2 GPUs, numbered from 0 to 1",
        "0,x": "give numbers of GPUs with commas between them, or all",
        "": "give numbers",
    }.items():
        with pytest.raises(UsageError, match=f"--gpu {text}: .*{problem}"):
            parse_devices(text, TWO)
    with pytest.raises(UsageError, match=r"--gpu all: .* has no GPU \(why\)"):
        parse_devices("all", Devices((), "why"))


def test_device_of_a_rank() -> None:
    hosts = ("n1", "n1", "n2", "n2")
    assert [device_of(world(*hosts, local_rank=place), TWO) for place in (0, 1)] == [0, 1]
    assert device_of(world(*hosts, local_rank=1), TWO, [1, 0]) == 0
    assert device_of(world(*hosts, local_rank=1), Devices(("b",))) == 0  # the launcher shows each rank its own
    with pytest.raises(UsageError, match=r"rank 3 is number 2 on .*, which has 2 GPUs"):
        device_of(world(*hosts, rank=3, local_rank=2), TWO)


def test_refusals_count_them(start: Callable[..., Job], folder: Path) -> None:
    (folder / "cupy.py").write_text(CUPY)
    for flags in ("--gpus 4", "--gpu 0,1"):
        job = start(*flags.split())
        assert job.wait() == 134
        assert len(job.fatal) == 1 and job.fatal[0].startswith(f"{flags}: this version of fcaffe computes on the CPU")
        assert f"({host_name()} has 2 GPUs)" in job.fatal[0]


@needs_mpi
def test_refusal_under_a_launcher(start: Callable[..., Job], folder: Path) -> None:
    (folder / "cupy.py").write_text("raise ImportError('libcuda.so.1')")
    job = start("--gpus", "2", under=[MPIEXEC, "-n", "2"])
    assert job.wait() == 134
    assert len(job.fatal) == 1 and "has no GPU (CuPy does not start: libcuda.so.1)" in job.fatal[0]
