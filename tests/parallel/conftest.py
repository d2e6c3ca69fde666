"""Trainings on several ranks, in a folder of their own, with a small net."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import NET, SOLVER, write_records

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs the extra fcaffe[mpi]"
)
FCAFFE = [sys.executable, "-m", "fcaffe"]
LONG = SOLVER.replace("max_iter: 8", "max_iter: 1000000").replace("display: 2", "display: 100000")
# Images of 8 rows are sequences of 8 steps, which go on from batch to batch.
LSTM = """
layer { name: "rows" type: "Reshape" bottom: "data" top: "rows" reshape_param { shape { dim: 0 dim: 8 dim: -1 } } }
layer { name: "steps" type: "Permute" bottom: "rows" top: "steps" permute_param { order: 1 order: 0 order: 2 } }
layer { name: "cut" type: "Slice" bottom: "steps" top: "x" top: "one" slice_param { axis: 2 slice_point: 15 } }
layer { name: "flat" type: "Reshape" bottom: "one" top: "flat" reshape_param { shape { dim: 0 dim: 0 } } }
layer { name: "cont" type: "Power" bottom: "flat" top: "cont" power_param { scale: 0 shift: 1 } }
layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" top: "h"
        recurrent_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "back" type: "Permute" bottom: "h" top: "back" permute_param { order: 1 order: 0 order: 2 } }
"""
os.environ.pop("PYTHONHASHSEED", None)  # each rank has hashes of its own, on which no order may depend
PATIENCE = 300  # seconds; a loaded machine may be slow to start ranks
# Ranks of tests outnumber the cores: where they wait in MPICH itself, it sleeps between its looks.
SLEEPS = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


def run_ranks(ranks: int, script: str, *words: object, folder: Path | None = None, **variables: str) -> tuple[str, str]:
    """What so many ranks of a script beside this file print, and their log; each computes with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **SLEEPS, **variables}
    command = [MPIEXEC, "-n", ranks, sys.executable, "-m", "mpi4py", Path(__file__).with_name(script), *words]
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


class Job:
    """A running training. All its processes have its folder in their environment."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.out = folder / "out"
        with open(self.out, "wb") as out, open(self.log, "wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    @property
    def fatal(self) -> list[str]:
        return re.findall(r"^F\d{4} [\d:.]+ +\d+ \S+\] (.*)$", self.text, re.MULTILINE)

    def wait_for(self, what: str) -> None:
        until(lambda: what in self.text or self.process.poll() is not None)
        assert what in self.text, self.text[-2000:]

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def processes(self) -> dict[int, dict[str, str]]:
        """Environments of all processes of the job, by number."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            variables = dict(word.split("=", 1) for word in words if "=" in word)
            if variables.get("TEST_FOLDER") == str(self.folder):
                found[int(path.name)] = variables
        return found

    def named(self) -> dict[str, int]:
        """The processes of the ranks and of the agents, by `rank 0`, `rank 1` and `agent`."""
        found = {}
        for process, variables in self.processes().items():
            with contextlib.suppress(OSError):
                name, words = (Path(f"/proc/{process}/{file}").read_text() for file in ("comm", "cmdline"))
                kind = "agent" if "fcaffe.jobs.agent" in words else f"rank {variables.get('PMI_RANK')}"
                found[name.strip().removeprefix("fcaffe ") if name.startswith("fcaffe rank") else kind] = process
        return found

    def rank(self, number: int) -> int:
        """The process of a rank."""
        assert f"rank {number}" in self.named(), self.text[-2000:]
        return self.named()[f"rank {number}"]

    def kill(self) -> None:
        for process in (self.process.pid, *self.processes()):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def until(true: Callable[[], object], seconds: float = PATIENCE, pause: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(pause)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    (tmp_path / "long.prototxt").write_text(LONG)
    write_records(str(tmp_path / "lmdb"), [0, 1, 2] * 4)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Job]]:
    """start("--workers", "3", solver="long.prototxt", under=["mpiexec", ...], VARIABLE="value") starts a training."""
    jobs: list[Job] = []

    def begin(*flags: str, solver: str = "solver.prototxt", under: list[object] | None = None, **variables: str) -> Job:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "TEST_FOLDER": str(folder), **variables}
        command = [*map(str, under or []), *FCAFFE, "train", "--solver", solver, *flags]
        jobs.append(Job(command, folder, environment))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
