"""The scripts for a GPU that is not there: on stand-ins, and the ends of what they start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.engines.cuda import emulator
from tests.scripts.bench_runs import ROOT, run

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import steps

TESTS = """
import subprocess, sys, time
import pytest

def test_fails():
    assert 1 == 2, "for a reason"

@pytest.mark.parametrize("number", range(200))
def test_takes_time(number):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep({sleep})
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
@pytest.mark.parametrize(("sleep", "processes"), [(0.2, 1), (600, 2)], ids=["many tests", "a test that hangs"])
def test_failures_are_written_when_the_time_is_over(
    sleep: float, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no process stays, neither pytest's nor the tests' own."""
    marker = f"FCAFFE_TEST_OF_STEPS={tmp_path}"
    monkeypatch.setenv(*marker.split("="))
    (tmp_path / "test_some.py").write_text(TESTS.format(sleep=sleep))
    output, failed = tmp_path / "output.txt", tmp_path / "failed.txt"
    began = time.monotonic()
    code = steps.run_tests([str(tmp_path), "-c", os.devnull], 15, output, failed, processes)
    assert time.monotonic() - began < 15 + 2 * steps.GRACE
    assert "FAILED" in failed.read_text() and "for a reason" in failed.read_text()
    if sleep == 600:
        assert code == steps.TIMED_OUT
    else:
        assert code == 1 and steps.OVER in output.read_text(), "pytest itself says what failed"
    assert not set(processes_with(marker)) - {os.getpid()}


@pytest.mark.skipif(not emulator.has_compiler, reason="the emulator of kernels needs g++")
def test_first_gpu_run_on_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its end, with every step that has begun in the table."""
    stand_in = ROOT / "tests" / "engines" / "cuda" / "stand_in_gpu"
    monkeypatch.setenv("FCAFFE_STAND_IN_GPU", str(stand_in))
    done = run("first_gpu_run", "--out", tmp_path, "--seconds", "60", "--only", "machine,smoke", code=0)
    assert "smoke: all is right" in done.stdout
    assert "the end" in (tmp_path / "steps.txt").read_text()
