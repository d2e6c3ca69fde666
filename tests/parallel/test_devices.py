"""Which GPUs the hosts have, and which one a rank takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fcaffe.cli.engine import (
    Devices,
    device_of,
    find_devices,
    parse_devices,
)
from fcaffe.engines.cuda import driver
from fcaffe.errors import UsageError
from fcaffe.jobs.started import host_name
from fcaffe.jobs.world import World
from tests.engines.cuda.fake_driver import FakeDriver
from tests.parallel.conftest import MPIEXEC, Job, needs_mpi

TWO = Devices(("a", "b"))


def world(*hosts: str, rank: int = 0, local_rank: int = 0) -> World:
    return World(rank=rank, size=len(hosts), local_rank=local_rank, hosts=hosts)


def test_those_that_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "open_library", lambda: FakeDriver(("A", "B")))
    assert find_devices() == Devices(("A", "B"))


def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("libcuda.so.1: cannot open")

    monkeypatch.setattr(driver, "open_library", fail)
    assert str(find_devices()).startswith("no GPU (there is no NVIDIA driver, as libcuda.so.1 cannot be loaded: inst")
    monkeypatch.setattr(driver, "open_library", lambda: FakeDriver(code=100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert str(find_devices()) == "no GPU (NVIDIA's driver sees no GPU: CUDA_VISIBLE_DEVICES is '-1')"


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
    assert [device_of(world(*hosts, local_rank=rank), TWO) for rank in (0, 1)] == [0, 1]
    assert device_of(world(*hosts, local_rank=1), TWO, [1, 0]) == 0
    assert device_of(world(*hosts, local_rank=1), Devices(("b",))) == 0  # the launcher shows each rank its own
    with pytest.raises(UsageError, match=r"rank 3 is number 2 \(from 0\) on .*, which has 2 GPUs"):
        device_of(world(*hosts, rank=3, local_rank=2), TWO)


@needs_mpi
def test_refusal_under_a_launcher(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = start("--gpus", "2", under=[MPIEXEC, "-n", "2"])
    assert job.wait() == 134
    assert len(job.fatal) == 1 and f"rank 0 is number 0 (from 0) on {host_name()}, which has no GPU" in job.fatal[0]
