"""Jobs that drawn faults hit at drawn moments: each ends in time, names the cause once, leaves nothing, loses nothing.

pytest tests/parallel/test_drawn_faults.py --draw-faults 120     seconds of drawing; --draw-seed N for the same again
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fcaffe.jobs import processes
from tests.parallel.conftest import Job, needs_mpi, until

pytestmark = pytest.mark.jobs

LIMIT = 90  # seconds that a job may take from its last fault on; a loaded machine is slow to start ranks
NET = """
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {
  num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "user" type: "Python" bottom: "ip" python_param { module: "user" layer: "User" }
  include { phase: TRAIN } }
layer { name: "slow" type: "Python" bottom: "ip" python_param { module: "user" layer: "Slow" }
  include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 40 display: 1 random_seed: 1 solver_mode: CPU
snapshot: 10 snapshot_prefix: "run" test_iter: 8 test_interval: 15 test_initialization: false
"""
# A layer of user code, of which one rank does something once, in its last iteration or earlier.
USER = """
import os, subprocess, threading, time
import caffe
import fcaffe.output_files

def full(target):
    raise OSError(28, "No space left on device", target)

class Slow(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        pass

    def backward(self, top, propagate_down, bottom):
        pass

    def forward(self, bottom, top):
        time.sleep(0.1)

class User(Slow):
    calls = 0

    def forward(self, bottom, top):
        self.calls += 1
        time.sleep(0.02)
        print(os.environ.get("LETTER", "") * 4000, flush=True)
        if self.calls != {call} or os.environ.get("PMI_RANK", "0") != "{rank}" or os.path.exists("done"):
            return
        open("done", "w").close()
        {code}
"""
CODES = {
    "a thread that stays": "threading.Thread(target=time.sleep, args=(4,)).start()",
    "an error beside a thread": """
        wait = 99 if "FCAFFE_JOB" in os.environ else 1
        threading.Thread(target=time.sleep, args=(wait,)).start()
        raise ValueError("no good")""",
    "a process that stays": "subprocess.Popen(['sleep', '99'], start_new_session=True)",
    "an exit": "os._exit(7)",
    "a full disk": "fcaffe.output_files.temporary_name = full",
}
# What the log says when a phase begins.
PHASES = {
    "start": "Starting the ranks",
    "loading": "Use CPU.",
    "first iteration": "Iteration 0",
    "snapshot": "Snapshotting to",
    "test": "Testing net",
    "end": "Optimization Done",
}
EARLY = ("start", "loading")  # phases in which ranks may take their time
KILLED = ("launcher", "agent", "rank")
STOPPED = {f"stopped {victim}": victim for victim in KILLED}  # and later continued, but for a rank that trains
STOP_FOR = 3.0  # seconds, less than --timeout
VICTIMS = (*KILLED, *STOPPED, "SIGTERM")
# What the first fatal line says of a fault, by rank, process and host.
MESSAGES = {
    "rank": "rank {rank} (process {pid}) on {host} ",
    "stopped rank": "rank {rank} (process {pid}) on {host} did not come out of ",
    "agent": "the agent (process {pid}) on ",
    "an exit": "rank {rank} (process ",
    "an error beside a thread": 'rank {rank} on {host}: layer "user" (Python): user.User.forward: ValueError: no good',
    "a full disk": "rank 0 on {host}: ",
}
CLOSED = "a closed terminal"  # the reader of the log ends after some lines
UNREAD = "an unread pipe"  # gets what user code prints, with letters beyond ASCII


class Case(NamedTuple):
    """`flags` are of the training; `fault` hits in this phase, and `wait` seconds later; `code` is a layer's."""

    flags: tuple[str, ...]
    workers: int
    fault: str
    phase: str
    wait: float
    rank: int
    again: str  # a second fault, in the run that has started again

    def __str__(self) -> str:
        faults = f"{self.fault}, then {self.again}" if self.again else self.fault
        return f"{faults} at {self.phase} + {self.wait:.2f} s, rank {self.rank}: {' '.join(self.flags)}"


def draw(chance: random.Random) -> Case:
    workers = chance.choice([1, 2, 4])
    ways: list[tuple[str, ...]] = [(), ("--restarts", "1")]
    flags = chance.choice(ways) + (("--workers", str(workers)) if workers > 1 else ())
    if workers > 1 and chance.random() < 0.5:
        half = workers // 2
        flags = ("--hosts", f"127.0.0.2:{half},127.0.0.3:{half}", *chance.choice(ways))
        if chance.random() < 0.5:
            flags = (*flags[:2], "--elastic", f"{half}:{workers}", "--rejoin", "1")
    if workers > 1 or "--restarts" in flags:
        flags += ("--timeout", "4")
    fault = chance.choice([*CODES, *VICTIMS, CLOSED, UNREAD])
    again = chance.choice(["", "", "rank", "agent"]) if fault in ("rank", "agent", "an exit") else ""
    phase, rank = chance.choice(list(PHASES)), 0 if fault == "a full disk" else chance.randrange(workers)
    if phase == "start" and not flags:
        phase = "loading"  # a plain worker starts no ranks
    return Case(flags, workers, fault, phase, chance.choice([0, 0.05, 0.2]), rank, again)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path


@pytest.fixture
def terminals() -> Iterator[list[int]]:
    handles: list[int] = []
    yield handles
    for handle in handles:
        os.close(handle)


def hit(job: Job, fault: str, rank: int) -> list[int]:
    """The process that was killed or stopped, if it was there."""
    victim = STOPPED.get(fault, fault)
    name = f"rank {rank}" if victim == "rank" else victim
    targets = [job.process.pid] if victim in ("launcher", "SIGTERM") else [*filter(None, [job.named().get(name)])]
    number = signal.SIGSTOP if fault in STOPPED else signal.SIGTERM if fault == "SIGTERM" else signal.SIGKILL
    try:
        for target in targets[:1]:
            os.kill(target, number)
    except ProcessLookupError:  # it has just ended
        return []
    return targets[:1]


def expected(case: Case, job: Job, faults: int) -> set[int]:
    """The exit codes that are right. A fault that comes when the training has ended may have no effect."""
    late = {0} if case.phase == "end" else set()
    if case.fault == "launcher":
        return {-signal.SIGKILL} | late
    if case.fault == "SIGTERM":
        return {143, -signal.SIGTERM if case.workers == 1 and case.phase in (*EARLY, "end") else 143} | late
    if case.fault in ("an error beside a thread", "a full disk"):
        return {134}
    if case.fault in ("rank", "agent", "stopped rank", "an exit") and faults:
        if case.fault == "stopped rank" and case.phase in EARLY:
            return {0}
        starts_again = "--elastic" in case.flags or ("--restarts" in case.flags and faults == 1)
        return {0} if starts_again else {134} | late
    return {0}


def chance_of_lines(case: Case) -> int:
    """Lines of the log that the reader takes, from the start of the ranks to their end."""
    return 1 + 80 * list(PHASES).index(case.phase)


def states(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("run*.solverstate")}


def problems_of(case: Case, folder: Path, start: Callable[..., Job]) -> list[str]:
    """Run the case; returns what went wrong."""
    for path in [*folder.glob("run*"), *folder.glob("done")]:
        path.unlink()
    call = 38 if case.phase == "end" else {"test": 16, "snapshot": 10}.get(case.phase, 2)
    text = USER.replace("{call}", str(call)).replace("{rank}", str(case.rank))
    (folder / "user.py").write_text(text.replace("{code}", CODES.get(case.fault, "pass")))
    more = ["--snapshot-every", "0.1"] + (["--batch", "per-worker"] if case.workers > 1 else [])
    lines = chance_of_lines(case)
    alone = case.workers == 1 and "--restarts" not in case.flags
    source, target = os.pipe()
    readers = {
        CLOSED: f'exec "$@" 2> >(exec head -n {lines} >> log)',
        UNREAD: f'exec "$@" > /proc/{os.getpid()}/fd/{target}' if not alone else 'exec "$@"',
    }
    under = ["bash", "-c", readers[case.fault], "bash"] if case.fault in readers else None
    letter = {"LETTER": "\u00e9", "PYTHONUTF8": "1"} if case.fault == UNREAD else {}
    job = start(*case.flags, *more, under=under, OMP_NUM_THREADS="1", **letter)
    faults, before, hits = int(case.fault == "an exit"), set[str](), list[int]()
    if case.fault in VICTIMS:
        until(lambda: PHASES[case.phase] in job.text or job.process.poll() is not None, LIMIT)
        time.sleep(case.wait)
        victim = case.fault if not alone or case.fault == "SIGTERM" else "stopped launcher"
        victim = "launcher" if alone and case.fault in KILLED else victim
        before = states(folder)
        hits = hit(job, victim, case.rank)
        if victim in STOPPED and (victim != "stopped rank" or case.phase in EARLY):
            time.sleep(STOP_FOR)
            for stopped in hits:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
        elif victim != "SIGTERM":
            faults += len(hits)
    if case.again and ("--restarts" in case.flags or "--elastic" in case.flags):
        until(lambda: re.search("Restart 1|Generation 1", job.text) or job.process.poll() is not None, LIMIT)
        until(lambda: job.text.count("Starting Optimization") > 1 or job.process.poll() is not None, LIMIT)
        faults += job.process.poll() is None and bool(hit(job, case.again, case.rank))
    until(lambda: job.process.poll() is not None, LIMIT)
    problems = [*judged(case, job, faults, before, alone), *([] if alone else misnamed(case, job, hits))]
    job.kill()
    os.close(source)
    os.close(target)
    return problems


def judged(case: Case, job: Job, faults: int, before: set[str], alone: bool) -> Iterator[str]:
    code = job.process.poll()
    if code is None:
        yield f"still runs {LIMIT} s later"
        return
    until(lambda: not job.processes(), 20)
    if job.processes() and not (alone and case.fault == "a process that stays"):  # nobody looks after a plain worker
        yield f"left {job.processes().keys()}"
    fatal = len(job.fatal)
    if alone and faults and case.fault in ("rank", "agent", "an exit"):
        if code == 0:
            yield "exit code 0 of a plain worker that was ended"
    elif code not in expected(case, job, faults):
        yield f"exit code {code}, not one of {expected(case, job, faults)}"
    elif code == 134 and not 1 <= fatal <= max(faults, 1):
        yield f"{fatal} fatal lines"
    elif code == 0 and fatal > faults:
        yield f"{fatal} fatal lines of {faults} faults"
    left = states(job.folder)
    if case.fault == UNREAD and not alone and "bytes of standard output were dropped" not in job.text:
        yield "did not say that output was dropped"
    if (
        case.fault == "SIGTERM"
        and code == 143
        and case.phase not in ("start", "loading", "first iteration")
        and not left
    ):
        yield "no snapshot at SIGTERM"
    if code == 0:
        if "run_iter_40.solverstate" not in left or any("temporary" in name for name in left):
            yield f"the snapshots of a training that has ended are {sorted(left)}"
    elif lost := {name for name in before if "temporary" not in name} - left:
        yield f"lost {lost}"
    elif before and not left:
        yield "lost all snapshots"
    if own := [path for path in processes.segments() if not alone and processes.has_no_writer(path)]:
        time.sleep(1)  # perhaps of another job, which is ending
        if own := [path for path in own if os.path.exists(path)]:
            yield f"left {own}"


def misnamed(case: Case, job: Job, hits: list[int]) -> Iterator[str]:
    """What is wrong in the first fatal line."""
    if not job.fatal or case.fault not in MESSAGES or case.phase == "end" or (case.fault in VICTIMS and not hits):
        return
    host = socket.gethostname()
    if "--hosts" in case.flags:
        host = f"127.0.0.{2 + 2 * case.rank // case.workers}"
    expected = MESSAGES[case.fault].format(rank=case.rank, pid=(*hits, 0)[0], host=host)
    if case.workers == 1:
        expected = expected.replace(f"rank 0 on {host}: ", "")
    if not job.fatal[0].startswith(expected):
        yield f"the first fatal line begins with {job.fatal[0][: len(expected)]}, not {expected}"


@needs_mpi
def test_any_faults_at_any_moment(request: pytest.FixtureRequest, folder: Path, start: Callable[..., Job]) -> None:
    seconds, seed = request.config.getoption("--draw-faults"), request.config.getoption("--draw-seed")
    end = time.monotonic() + seconds
    number = seed
    while number == seed or time.monotonic() < end:
        case = draw(random.Random(number))
        problems = problems_of(case, folder, start)
        print(f"{number}: {case}: {problems or 'right'}")
        assert not problems, f"seed {number}, {case}: {problems}\n{(folder / 'log').read_text()[-3000:]}"
        number += 1
