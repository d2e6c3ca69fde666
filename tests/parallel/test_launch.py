"""Ranks are found, placed and started; what cannot work is told in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcaffe import threads
from fcaffe.errors import UsageError
from fcaffe.jobs import mpi_start
from fcaffe.jobs.carrier import remote_command
from fcaffe.jobs.hosts import parse_hosts, ranks_of_hosts, read_hostfile
from fcaffe.jobs.started import RANK_PROCESS, started_as
from tests.parallel.conftest import MPIEXEC, ROOT, Job, needs_mpi

pytestmark = pytest.mark.jobs

Start = Callable[..., Job]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", None),
        ("SLURM_NTASKS=4", None),  # a shell in an allocation
        ("SLURM_NTASKS=1 SLURM_PROCID=0", None),
        ("PMI_RANK=0 PMI_SIZE=1", None),
        ("SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_ID=7", None),  # a batch script
        ("SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", ("Slurm", 1, 2)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_RANK=1 PMI_SIZE=2", ("mpiexec or srun", 1, 2)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMIX_RANK=1", ("mpiexec or srun", 1, 2)),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_RANK=3 PMI_SIZE=4 MPI_LOCALNRANKS=2", ("mpiexec or srun", 3, 4)),
        (f"PMI_RANK=1 PMI_SIZE=2 {RANK_PROCESS}=1", None),  # a child of a rank
        (f"PMI_RANK=1 PMI_SIZE=2 {RANK_PROCESS}=own", ("mpiexec or srun", 1, 2)),
        ("SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", ("Slurm", 1, 2)),
        ("SLURM_NTASKS=2 SLURM_PROCID=0 PMI_RANK=3 PMI_SIZE=4", ("mpiexec or srun", 3, 4)),
        ("SLURM_NTASKS=2 SLURM_PROCID=1 PMIX_RANK=1", ("mpiexec or srun", 1, 0)),
        ("PMIX_RANK=1", ("mpiexec or srun", 1, 0)),
        ("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 PMIX_RANK=1", ("Open MPI's mpiexec", 1, 2)),
    ],
)
def test_what_launchers_say(variables: str, expected: tuple[str, int, int] | None) -> None:
    start = started_as(dict(word.split("=") for word in variables.replace("own", str(os.getpid())).split()))
    assert (start and (start.launcher, start.rank, start.size)) == expected


def test_hosts_are_read_in_every_notation(tmp_path: Path) -> None:
    assert parse_hosts("a:8,b,198.18.0.1:2") == [("a", 8), ("b", None), ("198.18.0.1", 2)]
    file = tmp_path / "hosts"
    file.write_text("# ours\nnode-1 slots=4 max_slots=8\nnode-2:2   # MPICH\n\nnode.3\n")
    assert read_hostfile(str(file)) == [("node-1", 4), ("node-2", 2), ("node.3", None)]
    assert parse_hosts("me@a:2,[fd00::1]:3,you@[fe80::1%eth0]") == [
        ("me@a", 2),
        ("fd00::1", 3),
        ("you@fe80::1%eth0", None),
    ]
    for wrong in ("a:", "a:0", "a b", ",", "a:x", "fd00::1", "@a", "[a]"):
        with pytest.raises(UsageError, match="--hosts: "):
            parse_hosts(wrong)
    with pytest.raises(UsageError, match=r"--hostfile /no/file: cannot read it \(No such file"):
        read_hostfile("/no/file")


def test_hosts_are_filled_in_order() -> None:
    assert ranks_of_hosts(0, [("a", 8), ("b", 4)]) == (("a", 8), ("b", 4))
    assert ranks_of_hosts(9, [("a", 8), ("b", 4)]) == (("a", 8), ("b", 1))
    assert ranks_of_hosts(8, [("a", 8), ("b", 4)]) == (("a", 8),)
    assert ranks_of_hosts(5, [("a", None), ("b", None)]) == (("a", 3), ("b", 2))
    assert ranks_of_hosts(0, [("a", None), ("b", None)]) == (("a", 1), ("b", 1))
    assert ranks_of_hosts(3, [("a", 2), ("b", None)]) == (("a", 2), ("b", 1))
    with pytest.raises(UsageError, match="--workers 13, but the hosts have room for 12: a:8,b:4"):
        ranks_of_hosts(13, [("a", 8), ("b", 4)])


@pytest.mark.parametrize(
    ("own", "launchers", "ranks", "expected"), [(16, 16, 4, 4), (4, 16, 4, 4), (2, 16, 4, 2), (2, 2, 4, 1)]
)
def test_ranks_of_a_host_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, own: int, launchers: int, ranks: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(launchers if pid else own)))
    monkeypatch.setattr(threads, "cpu_quota", lambda: None)
    monkeypatch.setenv("MPI_LOCALNRANKS", str(ranks))
    assert threads.fair_threads() == expected
    monkeypatch.delenv("MPI_LOCALNRANKS")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", f"{ranks}(x2),1")
    assert threads.fair_threads() == expected


@pytest.mark.parametrize("own", [{}, {"UCX_NET_DEVICES": "eth0", "NCCL_SOCKET_IFNAME": "eth1"}, {"UCX_TLS": "tcp,sm"}])
@pytest.mark.parametrize("ranks_here", [2, 1])
def test_the_environment_of_mpi(own: dict[str, str], ranks_here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one host the loopback alone, and long pieces over TCP; what the user has set stays."""
    environment = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": str(ranks_here), **own}
    monkeypatch.setattr(os, "environ", dict(environment))
    start = started_as(environment)
    assert start is not None
    mpi_start.prepare_environment(start)
    loopback = {"UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "NCCL_SOCKET_IFNAME"}
    loopback -= {"UCX_NET_DEVICES"} if "UCX_TLS" in own else set()
    expected = dict.fromkeys(loopback, "lo") if ranks_here == 2 else {}
    expected |= {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "512k"} | environment
    assert {name: value for name, value in os.environ.items() if "PACK_BUFFER" not in name} == expected


@pytest.mark.parametrize(("provided", "expected"), [(3, True), (2, False), (1, False), (0, None)])
def test_the_thread_level_that_mpi_provides_is_looked_at(provided: int, expected: bool | None) -> None:
    mpi = SimpleNamespace(
        **{"THREAD_FUNNELED": 1, "THREAD_MULTIPLE": 3, "COMM_WORLD": SimpleNamespace(size=2)},
        Is_initialized=lambda: True,
        Query_thread=lambda: provided,
        Get_library_version=lambda: "An MPI 1.0",
    )
    start = started_as({"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert start is not None
    if expected is None:
        with pytest.raises(UsageError, match=r"An MPI 1\.0 was built, or started, for processes without threads"):
            mpi_start.comm_world(start, mpi)
    else:
        assert mpi_start.comm_world(start, mpi) == (mpi.COMM_WORLD, expected)


LOADED = """
import os, sys
from fcaffe.cli import rank
from fcaffe.jobs import processes

rank.load({"command": "train", "params": {}})
child = processes.fork("a rank")
if child is None:
    import numpy
    from mpi4py import MPI

    threads, ones = len(os.listdir("/proc/self/task")), numpy.ones((700, 700), numpy.float32)
    assert threads == 1 and not MPI.Is_initialized() and "cupy" not in sys.modules and (ones @ ones == 700).all()
    assert open("/proc/self/comm").read() == "a rank\\n" and os.getsid(0) == os.getpid()
    os._exit(7)
while child.poll() is None:
    pass
sys.exit(child.returncode != 7)
"""


@needs_mpi
def test_nothing_starts_before_ranks_are_forked() -> None:
    """Threads of libraries have ended, and come back where they are needed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PMI_RANK": "0", "PMI_SIZE": "2", "OMP_NUM_THREADS": "4"}
    words = [sys.executable, "-W", "error", "-c", LOADED]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_words_of_the_remote_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote_command("h", "x y")[0] == "ssh" and remote_command("h", "x y")[-2:] == ["h", "x y"]
    assert remote_command("h", "x y", "my shell") == ["my", "shell", "h", "x y"]
    assert remote_command("h", "x y", "kubectl exec -i") == ["kubectl", "exec", "-i", "h", "--", "sh", "-c", "x y"]
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert {"--jobid=7", "--nodelist=h", "--unbuffered"} < set(remote_command("h", "x y")), "frames have no lines"


def losses(log: str) -> list[float]:
    return [float(number) for number in re.findall(r"net output #\d: loss = (\S+)", log)]


@needs_mpi
def test_started_alone_or_by_mpiexec_the_same(start: Start, folder: Path) -> None:
    alone = start()
    assert alone.wait() == 0
    expected = losses(alone.text)
    assert len(expected) == 7
    for flags, under, variables in (
        (["--workers", "3"], [], {}),
        ([], [MPIEXEC, "-n", "3"], {}),
        ([], [MPIEXEC, "-n", "3"], {"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}),
    ):
        (folder / "small_iter_8.caffemodel").unlink()
        job = start(*flags, under=under, **variables)
        assert job.wait() == 0, job.text[-2000:]
        assert losses(job.text) == pytest.approx(expected, rel=2e-4)
        assert job.text.count("Optimization Done.") == 2, "rank 0 alone logs"
        assert "3 workers on 1 host" in job.text
        assert job.out.read_text() == ""
        assert (folder / "small_iter_8.caffemodel").exists()


@needs_mpi
@pytest.mark.parametrize(
    ("variables", "launcher", "problem"),
    [
        (
            "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0",
            "Slurm (SLURM_STEP_",
            "has one rank only: start it with this MPI's own mpiexec; under Slurm with srun --mpi=pmi2 if",
        ),
        (
            "PMI_RANK=0 PMI_SIZE=2",
            "mpiexec or srun (PMI_SIZE=2)",
            "has one rank only: start it with this MPI's own mpiexec",
        ),
        (
            "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 MPI4PY_LIBMPI=/no.so",
            "Slurm",
            "mpi4py cannot be used, or finds no MPI library (cannot load",
        ),
    ],
)
def test_ranks_without_their_mpi(start: Start, folder: Path, variables: str, launcher: str, problem: str) -> None:
    before = set(os.listdir(folder))
    job = start(**dict(word.split("=") for word in variables.split()))
    assert job.wait() != 0
    message = job.fatal[-1] if job.fatal else ""
    assert len(job.fatal) == 1 and message.startswith(f"{launcher}") and problem in message, job.text
    assert set(os.listdir(folder)) - before == {"log", "out"}


def test_one_worker_needs_no_mpi(folder: Path) -> None:
    code = (
        "import sys; from fcaffe.cli import main; code = main(sys.argv[1:]); sys.exit(code or 'mpi4py' in sys.modules)"
    )
    words = [sys.executable, "-c", code, "train", "--solver", "solver.prototxt"]
    done = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


@needs_mpi
def test_an_error_of_all_ranks_is_told_once(start: Start, folder: Path) -> None:
    (folder / "net.prototxt").write_text('layer { name: "x" type: "Nonsense" top: "a" }')
    for job in (start("--workers", "3"), start(under=[MPIEXEC, "-n", "3"])):
        assert job.wait() == 134
        assert len(job.fatal) == 1 and re.match(r'rank 0 on \S+: layer "x": unknown layer type', job.fatal[0]), job.text
        assert job.text.splitlines()[-1].endswith(job.fatal[0])


@needs_mpi
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--workers -1", "--workers must be 1 or more, not -1"),
        ("--workers 0", "--workers must be 1 or more, not 0"),
        ("--hosts a:2 --hostfile b", "--hosts and --hostfile say the same thing"),
        ("--hosts a", "One worker, on a: start it there"),
        ("--gpus 2 --workers 4 --hosts a,b", "--gpus 2 means 2 workers, not --workers 4: leave that out"),
        ("--elastic 2:4", "--elastic is for jobs on several hosts: give --hosts or --hostfile as well"),
        ("--elastic 4:2 --hosts a,b", "--elastic takes the least and the greatest number of workers, as 4:8, not 4:2"),
        ("--snapshot-every=-1", "--snapshot-every must be 0 or more, not -1"),
        ("--elastic 2:4 --workers 1 --hosts a,b", "--workers 1, but --elastic 2:4 needs 2"),
        ("mpiexec --workers 3", "--workers 3, but 2 ranks were started"),
        ("mpiexec --hosts=a,b", "--hosts is for workers that fcaffe starts, and another launcher has started these 2"),
        (
            "mpiexec --restarts=1",
            "--restarts is for workers that fcaffe starts, and another launcher has started these",
        ),
    ],
)
def test_flags_that_do_not_go_together(start: Start, flags: str, problem: str) -> None:
    """Alone, and under an mpiexec of one's own."""
    words = flags.split()
    own = words[0] == "mpiexec"
    job = start(*words[own:], under=[MPIEXEC, "-n", "2"] if own else [])
    assert job.wait() == 134
    assert len(job.fatal) == 1 and problem in job.fatal[0]


def test_without_mpi_the_way_out_is_told(start: Start, folder: Path) -> None:
    (folder / "mpi4py.py").write_text("raise ImportError('none here')")
    job = start("--workers", "2")
    assert job.wait() == 134
    assert len(job.fatal) == 1 and "pip install mpi4py mpich" in job.fatal[0]
