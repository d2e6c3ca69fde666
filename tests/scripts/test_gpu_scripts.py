"""The scripts for a GPU that is not there: on stand-ins, and the ends of what they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engines.cuda import emulator
from tests.parallel.conftest import needs_mpi
from tests.scripts.bench_runs import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import steps

pytestmark = pytest.mark.jobs


@pytest.fixture(autouse=True)
def outside_of_xdist(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pytest that a test starts does not take itself for one of xdist's workers."""
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)


TESTS = """
import os, subprocess, sys, time
import pytest

def test_fails():
    assert 1 == 2, "for a reason"

def test_hangs_or_not():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep({hangs} or max(0, float(os.environ["FCAFFE_TESTS_END"]) - time.time()) + 0.1)

def test_that_has_no_time():
    raise SystemExit("it began")
"""


def processes_with(marker: str) -> list[int]:
    """The processes that have this in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="reads /proc")
@pytest.mark.parametrize(("hangs", "processes"), [(0, 1), (600, 2)])
def test_failures_are_written_when_the_time_is_over(
    hangs: int, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no process stays, neither pytest's nor the tests' own."""
    marker = f"FCAFFE_TEST_OF_STEPS={tmp_path}"
    monkeypatch.setenv(*marker.split("="))
    (tmp_path / "test_some.py").write_text(TESTS.format(hangs=hangs))
    output, failed, words = tmp_path / "output.txt", tmp_path / "failed.txt", [str(tmp_path), "-c", os.devnull]
    began = time.monotonic()
    if hangs:
        assert steps.run_tests(words, 10, output, failed, processes, last=4) == steps.TIMED_OUT
        assert time.monotonic() - began < 10 + 4 * steps.GRACE
    else:
        assert steps.run_tests(words, 120, output, failed, processes, last=109) == 1
        assert steps.OVER in output.read_text(), "pytest itself says what failed"
    assert "FAILED" in failed.read_text() and "for a reason" in failed.read_text()
    assert "it began" not in output.read_text()
    assert not set(processes_with(marker)) - {os.getpid()}


def on_stand_ins(*command: object) -> subprocess.CompletedProcess[str]:
    folders = ROOT / "tests" / "engines" / "cuda" / "stand_in_gpu", ROOT
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=environment, timeout=300, capture_output=True, text=True)


@pytest.mark.skipif(not emulator.has_compiler, reason="the emulator of kernels needs g++")
@needs_mpi
def test_check_gpu_has_a_line_for_each_step(tmp_path: Path) -> None:
    done = on_stand_ins(ROOT / "scripts" / "check_gpu", "--iterations", 5, "--out", tmp_path / "out.txt")
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["versions", "convolutions", "LeNet", "two GPUs"]
    assert "right in fp32, bf16, tf32, fp16" in lines[1] and "fcaffe works here" in lines[-1]
    assert all("5 losses are Caffe's" in line for line in lines[2:4])
    assert "Iteration 4" in (tmp_path / "out.txt").read_text()


@pytest.mark.skipif(not emulator.has_compiler, reason="the emulator of kernels needs g++")
def test_check_gpu_tells_the_steps_that_fail(tmp_path: Path) -> None:
    """Here no training starts, as its iterations are too few."""
    done = on_stand_ins(ROOT / "scripts" / "check_gpu", "--iterations", -1, "--out", tmp_path / "out.txt")
    assert done.returncode == 1 and done.stdout.count("FAILED: ") == 2 and "A step failed: send us" in done.stdout


@pytest.mark.skipif(not emulator.has_compiler, reason="the emulator of kernels needs g++")
def test_first_gpu_run_ends_in_time_and_writes_what_it_finds(tmp_path: Path) -> None:
    """On the stand-ins, which have no time for all of it."""
    began = time.monotonic()
    flags = "--seconds", 20, "--only", "machine,smoke,kernels,race"
    done = on_stand_ins(ROOT / "scripts" / "first_gpu_run", "--out", tmp_path, *flags)
    assert time.monotonic() - began < 20 + 4 * steps.GRACE
    said = (tmp_path / "steps.txt").read_text()
    assert done.returncode == any(word in said for word in ("TIME IS UP", "FAILED", "no time is left"))
    assert "machine: done" in said and "the end" in said
    assert all(name in said for name in ("smoke", "kernels", "race"))
    assert "numpy" in (tmp_path / "machine.txt").read_text()
    found = (tmp_path / "smoke.txt").read_text()
    assert "convolution 3x3 64->96 group 1 forward" in found and "WRONG" not in found
