"""A rank that fails, dies or hangs ends the whole job, by name and in time; signals stop all ranks at one iteration."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcaffe.jobs import launch, processes
from fcaffe.jobs import run as runs
from fcaffe.jobs.hosts import Plan
from fcaffe.jobs.processes import Child
from fcaffe.jobs.ranks import Clock, Rank, Slot, hang_message
from fcaffe.parallel.watchdog import LOADING, TRAINING, Doing
from tests.parallel.conftest import FCAFFE, MPIEXEC, ROOT, Job, needs_mpi, until
from tests.parallel.test_emulated_cluster import Cluster, why_not

pytestmark = pytest.mark.jobs

CHECK = Path(__file__).parents[2] / "scripts" / "check_faults"
Start = Callable[..., Job]
FAILING = """
layer { name: "failing" type: "Python" bottom: "ip" python_param { module: "failing" layer: "Failing" } }
"""
LAYER = """
import os, re, time
import caffe

class Failing(caffe.Layer):
    calls = 0

    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        self.calls += 1
        if self.calls == 12 and os.environ["PMI_RANK"] == "1":
            what = os.environ["FAILURE"]
            if what == "abort":
                os.abort()
            if what == "give up":
                os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=3\\n")
                os._exit(3)
            if what == "hang":
                re.match("(a+)+$", "a" * 64 + "b")  # and never lets go of Python's lock

    def backward(self, top, propagate_down, bottom):
        pass
"""
HOW_TO_GO_ON = "(; --snapshot auto goes on from .*|; there is no snapshot to go on from .*)?"
SOON = 40  # seconds; a machine of its own needs two or three, and ranks otherwise wait for one another without end


@pytest.fixture
def failing(folder: Path) -> None:
    net = (folder / "net.prototxt").read_text()
    (folder / "net.prototxt").write_text(net + FAILING)
    (folder / "failing.py").write_text(LAYER)


def assert_ended(job: Job, message: str, code: int = 134) -> None:
    """Soon, with one fatal line, the last, and nothing left of it."""
    began = time.monotonic()
    assert job.wait() == code, job.text[-2000:]
    until(lambda: not job.processes(), SOON)
    assert time.monotonic() - began < SOON
    assert not job.processes()
    assert len(job.fatal) == 1 and re.fullmatch(message + HOW_TO_GO_ON, job.fatal[0]), job.text[-2000:]
    assert job.text.splitlines()[-1].endswith(job.fatal[0])


def snapshots(folder: Path, prefix: str = "small") -> list[str]:
    return sorted(path.name for path in folder.glob(f"{prefix}_iter_*.solverstate"))


@needs_mpi
def test_all_end_with_one_rank_of_an_mpiexec_of_ones_own(start: Start) -> None:
    """mpiexec itself says which rank has died, and ends the others."""
    job = start(under=[MPIEXEC, "-n", "3"], solver="long.prototxt")
    job.wait_for("Iteration 0 (")
    killed = job.rank(0)
    os.kill(killed, signal.SIGKILL)
    assert job.wait() != 0
    until(lambda: not job.processes(), SOON)
    assert not job.processes() and not job.fatal
    assert f"PID {killed}" in job.out.read_text()


@needs_mpi
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("abort", r"rank 1 \(process \d+\) on \S+ died in forward and backward of iteration 11: .*"),
        (
            "hang",
            r"rank 1 \(process \d+\) on \S+ did not come out of forward and backward of iteration 11 within 2 s "
            r"\(--timeout\); waiting for it: 0, 2",
        ),
    ],
)
@pytest.mark.usefixtures("failing")
def test_a_rank_that_fails(start: Start, failure: str, message: str) -> None:
    job = start("--workers", "3", "--timeout", "2", solver="long.prototxt", FAILURE=failure)
    assert_ended(job, message)


@needs_mpi
@pytest.mark.parametrize("failure", ["abort", "give up"])
@pytest.mark.usefixtures("failing")
def test_a_crash_does_not_hide_the_loss_of_another_host(start: Start, failure: str) -> None:
    """MPI may crash, or abort, in messages to a rank that is lost."""
    job = start("--hosts", "127.0.0.2,127.0.0.3", solver="long.prototxt", FAILURE=failure)
    job.wait_for("Iteration 0 (")
    other = job.rank(0)
    until(lambda: "rank 1" not in job.named())
    os.kill(other, signal.SIGKILL)
    assert_ended(job, rf"rank 0 \(process {other}\) on 127.0.0.2 died in .* of iteration \d+: .*")


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_rank_gives_one_snapshot(start: Start, folder: Path, number: signal.Signals) -> None:
    solver = (folder / "long.prototxt").read_text()
    (folder / "long.prototxt").write_text(solver.replace("snapshot: 4", "snapshot: 0"))
    job = start("--workers", "3", solver="long.prototxt")
    job.wait_for("Iteration 0 (")
    os.kill(job.rank(2), number)
    assert job.wait() == (143 if number == signal.SIGTERM else 0)
    assert len(snapshots(folder)) == 1 and not job.fatal
    assert job.text.count("Optimization stopped early.") == 1
    until(lambda: not job.processes(), SOON)
    assert not job.processes()


@needs_mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_launcher(start: Start, number: signal.Signals) -> None:
    """SIGTERM comes before the ranks have met."""
    job = start("--workers", "3", solver="long.prototxt")
    job.wait_for("Iteration 0 (" if number == signal.SIGKILL else "Starting the ranks")
    if number == signal.SIGKILL:
        assert all(address in ("127.0.0.1", "::1") for address in listening(job)), "open to the network"
    os.kill(job.process.pid, number)
    assert job.wait() in (143, -signal.SIGKILL)
    until(lambda: not job.processes(), SOON)
    assert not job.processes()
    launcher = rf"fcaffe's launcher \(process {job.process.pid}\) on \S+ died; this ends ranks 0, 1, 2\b.*"
    assert [bool(re.fullmatch(launcher, line)) for line in job.fatal] == [True] * (number == signal.SIGKILL)


@needs_mpi
def test_whatever_breaks_one_rank_ends_all_alike() -> None:
    """The script has many more cases."""
    done = subprocess.run([sys.executable, CHECK, "--short"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def listening(job: Job) -> set[str]:
    """The addresses on which the processes of a job listen, by TCP and UDP."""
    handles = {}
    for process in job.processes():
        for handle in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                handles[os.readlink(handle)] = process
    found = set()
    for table in ("tcp", "udp", "tcp6", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if f"socket:[{words[9]}]" in handles and words[3] in ("0A", "07"):  # listening; UDP's only state
                packed = bytes.fromhex(words[1].partition(":")[0])
                numbers = struct.unpack(f"<{len(packed) // 4}I", packed)
                family = socket.AF_INET if len(numbers) == 1 else socket.AF_INET6
                found.add(socket.inet_ntop(family, struct.pack(f">{len(numbers)}I", *numbers)))
    return found


# --- the verdict on hangs ---------------------------------------------------------------------------------------------

HOSTS = ["a", "a", "b", "c"]


def slot(rank: int, what: str) -> Slot:
    """`what`: loads, works, waits or stopped; with a plus it has done something new, with a minus it is behind."""
    state = LOADING if "loads" in what else TRAINING
    operation = "the sum" if "waits" in what else "forward"
    quiet = 1.0 if "+" in what else 6.0
    waits, stopped = "waits" in what, "stopped" in what
    return Slot(rank, 100 + rank, Doing(state, waits, operation, 7 - what.count("-")), stopped, quiet)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            "waits waits works waits",
            "rank 2 {102} on b did not come out of forward of iteration 7 within 5 s (--timeout)",
        ),
        ("waits works works waits", "rank 1 {101} on a and rank 2 {102} on b did not come out of forward of"),
        ("waits waits stopped works", "rank 2 {102} on b did not come out of forward of iteration 7"),
        ("waits waits- waits waits", "rank 1 {101} on a did not come out of the sum of iteration 6"),
        (
            "waits waits waits waits",
            "ranks 0, 1 on a and rank 2 {102} on b and rank 3 {103} on c did not come out of the",
        ),
        ("waits waits works+ waits", ""),  # what it does may take so long
        ("waits waits loads waits", ""),
        ("loads loads loads loads", ""),
        ("waits loads works waits", "rank 2 {102} on b"),
        ("waits waits waits+ waits", ""),  # its agent is silent, or it has just begun to wait
        ("waits waits waits", ""),  # nothing is known of one
    ],
)
def test_who_hangs(what: str, expected: str) -> None:
    slots = [slot(rank, each) for rank, each in enumerate(what.split())]
    message = hang_message(slots, HOSTS, 5)
    assert message.startswith(re.sub(r"{(\d+)}", r"(process \1)", expected)) and bool(message) is bool(expected), (
        message
    )
    assert not hang_message(slots, HOSTS, 0)
    assert "stopped" not in what or "stopped by a signal (SIGSTOP); waiting for it: 0, 1" in message


@pytest.mark.parametrize("waits", [False, True])
def test_a_rank_that_waits_for_a_core_or_a_disk_is_not_quiet(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    """Where others have the cores for nine tenths of the time, ten times as much of it counts."""
    waited, state = [0.0], ["R"]
    monkeypatch.setattr(processes, "waited_for_core", lambda pid: waited[0])
    monkeypatch.setattr(processes, "state_of", lambda pid: state[0])
    for share, looks in ((0.0, 20), (0.9, 180), (1.5, 180)):
        nothing = SimpleNamespace(read=lambda: None)
        rank = Rank(0, Child(1), *[nothing] * 3, doing=Doing(TRAINING, waits))  # type: ignore[arg-type]
        clock = Clock()
        for look in range(looks + 4):
            waited[0] += share * 0.25
            if look == looks:
                assert rank.quiet <= 5, share
                share = 0.0
            clock.tick([rank], 0.25)
        assert rank.quiet > 5
        before, state[0] = rank.quiet, processes.ON_DISK
        clock.tick([rank], 0.25)
        assert rank.quiet == before
        state[0] = "R"


# --- the launcher's ---------------------------------------------------------------------------------------------------


@pytest.fixture
def launched_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """launched_shell(script, ...) launches one rank that is a shell's script; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(runs, "MODULE", "tests.parallel.shell_rank")

    def run(script: str, restarts: int = 0, stops: Sequence[int] = (), **order: bool) -> int:
        orders = {"script": script, "loads": False, "trains": False, **order}
        return launch.launch(Plan(1, restarts=restarts), lambda path: orders, stops=stops)

    return run


def test_nothing_starts_again_that_was_told_to_end(launched_shell: Callable[..., int]) -> None:
    """It dies before it can end as it was told."""
    script = "trap '' INT; echo run >> runs; sleep 1.5; kill -INT $FCAFFE_LAUNCHER; sleep 0.3; kill -9 $$"
    assert launched_shell(script, trains=True, restarts=1, stops=[signal.SIGINT]) == 134
    assert Path("runs").read_text() == "run\n"


def test_a_signal_ends_an_import_that_takes_long(launched_shell: Callable[..., int]) -> None:
    began = time.monotonic()
    assert launched_shell("", loads=True) == 128 + signal.SIGTERM
    assert time.monotonic() - began < 20


def test_an_mpi_that_does_not_start_is_no_sigterm(
    launched_shell: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    said = "Abort(941770127): Fatal error in internal_Init_thread: Other MPI error, error stack:"
    assert launched_shell(f"echo '{said}' >&2; exit 143") == 134
    assert re.search(r"^F.* rank 0 .* ended with code 143, before the training; what", capfd.readouterr().err, re.M)


# --- several hosts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    cluster = Cluster("faults")
    try:
        cluster("up", 3)
        yield cluster
    finally:
        cluster("down")


@pytest.mark.cluster
@needs_mpi
def test_a_cut_link_ends_the_job_on_every_host(cluster: Cluster, folder: Path) -> None:
    words = cluster.words("exec", 1, "--", *FCAFFE, "train", "--solver", "long.prototxt", "--timeout", "5")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TEST_FOLDER": str(folder)}
    hosts = "198.18.0.1,198.18.0.2,198.18.0.3"
    job = Job([*words, "--hosts", hosts, "--restarts", "1"], folder, environment)
    try:
        job.wait_for("Iteration 0 (")
        until(lambda: snapshots(folder))
        time.sleep(1)  # for the agents to hear of one another
        cluster("cut", 3)
        job.wait_for("Restart 1 of 1, from small_iter_")
        cut = r"rank 2 \(process \d+\) on 198.18.0.3 is cut off from the other hosts .*"
        assert re.fullmatch(cut + "|.*cannot be reached: rank 2 on 198.18.0.3", job.fatal[0])
        job.wait_for("; it is called again every")
        cluster("mend", 3)
        until(lambda: job.text.count("Starting Optimization") == 2)
        assert job.text.count("Resuming from small_iter_") == 1
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 143
        until(lambda: not job.processes(), 15)
        assert not job.processes()
    finally:
        job.kill()
