"""What dead processes have left behind is removed; what a living one uses stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fcaffe.jobs import processes
from tests.parallel.conftest import until

HOLD = """
import mmap, os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
kept = mmap.mmap(handle, 4096, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(processes.SHARED, f"mpich_shm_test{os.getpid()}_0")
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.path.isdir(processes.SHARED), reason="there is no /dev/shm")
def test_a_segment_is_removed_once_nobody_uses_it(segment: Path) -> None:
    other = segment.with_name(f"test{os.getpid()}")
    other.touch()
    words = [sys.executable, "-c", HOLD, str(segment)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"mapped\n"
        processes.remove_memory(0.1)
        assert segment.exists(), "a living process has it mapped"
        holder.kill()
    processes.remove_memory(1)
    assert not segment.exists() and other.exists()
    other.unlink()


def test_processes_of_a_run_are_found_by_its_name() -> None:
    with subprocess.Popen(["sleep", "20"], env={processes.JOB: "one of these tests"}) as process:
        until(lambda: processes.processes_of(["one of these tests"]), 10)
        found = processes.processes_of(["one of these tests"])
        process.kill()
        assert found == [process.pid]
    assert processes.processes_of(["one of these tests"]) == []
