"""docs/distributed.md, "What survives", line by line: the snapshots that each end leaves, and how to go on.

An older run's states are in the folder.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fcaffe.solvers.snapshot.files import temporary_prefix
from fcaffe.solvers.snapshot.runs import Identity
from tests.parallel.conftest import ROOT, Job, needs_mpi, until
from tests.parallel.test_drawn_faults import CODES, NET, SOLVER, USER, hit
from tests.solvers.test_whose_states import save

pytestmark = pytest.mark.jobs

WAYS = {
    "one worker": [],
    "several": ["--workers", "2", "--timeout", "20"],
    "several hosts": ["--hosts", "127.0.0.2:1,127.0.0.3:1", "--timeout", "20"],
    "elastic": ["--hosts", "127.0.0.2:1,127.0.0.3:1", "--elastic", "2:2", "--rejoin", "1", "--timeout", "20"],
}
LEFT = {  # what the table says of each end: the exit code, and whether temporary snapshots stay
    "done": (0, False),
    "Ctrl-C": (0, False),
    "SIGTERM": (143, True),
    "a rank is killed": (134, True),
    "an agent is killed": (134, True),
    "the launcher is killed": (-9, True),
    "restarts are used up": (134, True),
    "a full disk": (134, True),
}
CASES = [("several", end) for end in LEFT]
CASES += [("one worker", end) for end in ("done", "SIGTERM", "the launcher is killed")]
CASES += [("several hosts", end) for end in ("done", "a rank is killed", "the launcher is killed")]
CASES += [("elastic", end) for end in ("done", "the launcher is killed")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        SOLVER.replace("max_iter: 40", "max_iter: 90").replace("test_interval: 15", "test_interval: 100")
    )
    return tmp_path


def iteration(path: Path) -> int:
    return int(re.findall(r"_iter_(\d+)", path.name)[0])


@needs_mpi
@pytest.mark.parametrize(("way", "end"), CASES)
def test_the_table(start: Callable[..., Job], folder: Path, way: str, end: str) -> None:
    text = USER.replace("{call}", "25").replace("{rank}", "0")
    prefix = str(folder / "run")
    older = Identity(prefix)  # a run that has come further, and was killed
    of_older = {Path(save(older, 95, prefix)), Path(save(older, 70, temporary_prefix(prefix)))}
    (folder / "user.py").write_text(text.replace("{code}", CODES["a full disk"] if end == "a full disk" else "pass"))
    flags = [*WAYS[way], "--snapshot-every", "0.1"] + (["--batch", "per-worker"] if WAYS[way] else [])
    flags += ["--restarts", "1"] if end == "restarts are used up" else []
    job = start(*flags, OMP_NUM_THREADS="1")
    until(lambda: "Iteration 15" in job.text or job.process.poll() is not None)
    if end == "Ctrl-C":
        job.process.send_signal(signal.SIGINT)
    elif end == "SIGTERM":
        job.process.send_signal(signal.SIGTERM)
    elif end == "restarts are used up":
        hit(job, "rank", 1)
        until(lambda: job.text.count("Resuming from") > 0 or job.process.poll() is not None)
        until(lambda: job.text.count("Starting Optimization") > 1 or job.process.poll() is not None)
        hit(job, "rank", 1)
    elif end.endswith("killed"):
        hit(job, {"a": "rank", "an": "agent", "the": "launcher"}[end.split()[0]], 1)
    code, keeps = LEFT[end]
    assert job.wait() == code, job.text[-2000:]
    until(lambda: not job.processes(), 30)
    left = sorted(set(folder.glob("run*_iter_*.solverstate")) - of_older)
    assert {"temporary" in path.name for path in left} == {False, True} if keeps else {False}
    assert not [path for path in folder.glob(".*.tmp") if end != "the launcher is killed"]
    latest = max(left, key=lambda path: (iteration(path), path.stat().st_mtime_ns))
    assert 1 <= len([path for path in left if "temporary" in path.name]) <= 3 or not keeps
    if code == 134 and end != "a full disk":
        assert job.fatal[-1].endswith(f"; --snapshot auto goes on from {latest.name}")
    again = start("--snapshot", "auto", OMP_NUM_THREADS="1")
    assert again.wait() == 0, again.text[-2000:]
    assert f"Resuming from {latest.name}" in again.text
    assert (folder / "run_iter_90.solverstate").exists()
    assert {path.with_suffix(".solverstate") for path in folder.glob("*temporary*")} | of_older == of_older


def test_a_folder_may_have_the_name_of_a_model(folder: Path, start: Callable[..., Job]) -> None:
    (folder / "my.caffemodels").mkdir()
    solver = (folder / "solver.prototxt").read_text().replace('"run"', '"my.caffemodels/run"')
    (folder / "solver.prototxt").write_text(solver.replace("max_iter: 90", "max_iter: 20"))
    (folder / "user.py").write_text(USER.replace("{call}", "9").replace("{rank}", "0").replace("{code}", "os._exit(3)"))
    assert start("--snapshot-every", "0.05", OMP_NUM_THREADS="1").wait() == 3
    assert len(list(folder.glob("my.caffemodels/run_temporary_iter_*.solverstate"))) == 2
    again = start("--snapshot", "auto", OMP_NUM_THREADS="1")
    assert again.wait() == 0 and "Resuming from my.caffemodels/run_temporary_iter_" in again.text


@pytest.mark.parametrize("words", ["--workers 200", "--hosts a:100,b:100", "--hosts a:50,b:50 --elastic 80:100"])
def test_a_batch_that_cannot_be_split_is_told_before_anything_starts(tmp_path: Path, words: str) -> None:
    import subprocess
    import sys

    data = 'layer { name: "d" type: "Data" top: "x" top: "y" data_param { source: "no" backend: LMDB batch_size: 64 } }'
    (tmp_path / "net.prototxt").write_text(data)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    words_of_all = [sys.executable, "-m", "fcaffe", "train", "--solver", "solver.prototxt", *words.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words_of_all, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 134 and "workers cannot split a batch of 64: use at most 64" in done.stderr
    assert "Starting the ranks" not in done.stderr


@needs_mpi
def test_a_first_start_without_a_host_fails_at_once(folder: Path, start: Callable[..., Job]) -> None:
    (folder / "user.py").write_text(USER.replace("{call}", "9").replace("{rank}", "0").replace("{code}", "pass"))
    shell = folder / "shell"
    shell.write_text("#!/bin/sh\necho no such host >&2\nexit 255\n")
    shell.chmod(0o755)
    job = start("--hosts", "nosuch.invalid:2", "--restarts", "1", "--batch", "per-worker", "--remote-shell", str(shell))
    assert job.wait() == 134
    assert len(job.fatal) == 1 and job.fatal[0].startswith("nosuch.invalid: its agent ended with code 255 before")
    assert "no such host" in job.text and "Restart" not in job.text


@needs_mpi
def test_hosts_by_a_remote_shell_of_ones_own(folder: Path, start: Callable[..., Job]) -> None:
    """It runs the command here; of one host it says that the job's folder is missing."""
    (folder / "user.py").write_text(USER.replace("{call}", "9").replace("{rank}", "0").replace("{code}", "pass"))
    shell = folder / "shell"
    shell.write_text(
        f'#!/bin/sh\n[ "$1" = b.invalid ] && set -- b "$(echo "$2" | sed "s#{folder}#/no/such/folder#")"\n'
        'exec sh -c "$2"\n'
    )
    shell.chmod(0o755)
    flags = ["--batch", "per-worker", "--remote-shell", str(shell), "--restarts", "1"]
    job = start("--hosts", "a.invalid:1,c.invalid:1", *flags, OMP_NUM_THREADS="1")
    assert job.wait() == 0, job.text[-2000:]
    job = start("--hosts", "a.invalid:1,b.invalid:1", *flags, OMP_NUM_THREADS="1")
    assert job.wait() == 134
    assert len(job.fatal) == 1 and job.fatal[0].startswith("b.invalid: there is no folder /no/such/"), job.text[-2000:]
