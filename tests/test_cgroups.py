"""Limits of control groups, in trees of files as the kernel has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcaffe import cgroups, threads
from fcaffe.engines import memory

GB = 10**9


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return tmp_path


def write(root: Path, **files: object) -> None:
    """Files below `root`, by their paths there."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def process(root: Path, groups: str) -> None:
    write(root, **{"proc/self/cgroup": groups, "sys/fs/cgroup/cgroup.controllers": "cpu memory"})


def test_without_groups_nothing_is_limited(tree: Path) -> None:
    assert cgroups.free_memory() is None and cgroups.cpu_quota() is None
    process(tree, "0::/")
    assert cgroups.free_memory() is None and cgroups.cpu_quota() is None


@pytest.mark.parametrize("tightest", ["", "job.slice", "job.slice/step.scope"])
def test_the_tightest_group_on_the_way_up_counts(tree: Path, tightest: str) -> None:
    process(tree, "0::/job.slice/step.scope")
    for group in ("", "job.slice", "job.slice/step.scope"):
        folder = f"sys/fs/cgroup/{group}".rstrip("/")
        limits = ("2000000000", "150000 100000") if group == tightest else ("max", "max 100000")
        write(tree, **{f"{folder}/memory.max": limits[0], f"{folder}/memory.current": 500_000_000})
        write(tree, **{f"{folder}/cpu.max": limits[1]})
    assert cgroups.free_memory() == 1_500_000_000
    assert cgroups.cpu_quota() == 1.5
    write(tree, **{"sys/fs/cgroup/job.slice/memory.max": GB})
    assert cgroups.free_memory() == 500_000_000


def test_pages_of_files_are_free_and_swap_counts_as_far_as_the_group_may(tree: Path) -> None:
    process(tree, "0::/c")
    folder = "sys/fs/cgroup/c"
    write(tree, **{f"{folder}/memory.max": 2 * GB, f"{folder}/memory.high": GB})
    write(tree, **{f"{folder}/memory.current": 900_000_000})
    write(tree, **{f"{folder}/memory.stat": "anon 5\ninactive_file 300000000\nactive_file 100000000"})
    assert cgroups.free_memory() == GB - 900_000_000 + 400_000_000, "memory.high slows a process to a halt"
    assert cgroups.free_memory(swap=7) == 500_000_007
    write(tree, **{f"{folder}/memory.swap.max": 5, f"{folder}/memory.swap.current": 3})
    assert cgroups.free_memory(swap=7) == 500_000_002
    write(tree, **{f"{folder}/memory.current": 4 * GB, f"{folder}/memory.stat": ""})
    assert cgroups.free_memory() == 0


def test_a_container_sees_its_own_group_as_what_is_mounted(tree: Path) -> None:
    write(tree, **{"sys/fs/cgroup/memory.max": 1000})
    for group in ("/docker/abc", "/../outside", "/"):
        process(tree, f"4:cpu:/a\n0::{group}")
        assert cgroups.free_memory() == 1000


def test_memory_and_threads_ask_them(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tree, "0::/c")
    folder = "sys/fs/cgroup/c"
    write(tree, **{f"{folder}/memory.max": 1000, f"{folder}/memory.swap.max": 0, f"{folder}/memory.current": 600})
    write(tree, **{f"{folder}/cpu.max": "200000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for variable in (*threads.RANKS, *threads.VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    assert memory.free_bytes() == 400
    own = memory.obtainable_bytes(np)
    assert own is not None and own > 400, "and what the process has already"
    assert threads.available_cpus() == threads.fair_threads() == threads.wanted_threads() == 2
    assert threads.describe_threads() == "2 threads, for a quota of 2 CPUs' time (of a container or batch job)"
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert memory.free_bytes() == 200 and threads.fair_threads() == 1


TRAIN = """
import sys
from fcaffe.cli import main
sys.exit(main(sys.argv[1:]))
"""
NET = """
layer { name: "data" type: "Input" top: "x" input_param { shape { dim: %d dim: 1000 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1000 } }
"""


def test_a_real_group(tmp_path: Path) -> None:
    """A net that does not fit into the group of its process is refused in words; the kernel would kill it."""
    parent = next((group for group in cgroups.groups() if os.access(group, os.W_OK)), None)
    if parent is None or os.geteuid() != 0:
        pytest.skip("needs root, and control groups that can be written")
    folder = parent / f"fcaffe-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.max").write_text(str(600 << 20))
    except OSError as problem:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"a group with a limit of memory cannot be made here: {problem}")
    (tmp_path / "net.prototxt").write_text(NET % 100_000)
    enter = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
    net = str(tmp_path / "net.prototxt")
    words = [sys.executable, "-c", enter + TRAIN, "time", "--iterations", "1", "--model", net]
    try:
        done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    finally:
        folder.rmdir()
    assert done.returncode == 134, done.stderr
    assert "out of memory: training this net takes 808 MB" in done.stderr.splitlines()[-1]
    assert "set batch_size to" in done.stderr.splitlines()[-1]
