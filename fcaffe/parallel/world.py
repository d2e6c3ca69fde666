"""This process's place among the ranks: whether it is one of several, of how many, and on which hosts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel import guard, relay, watchdog
from fcaffe.parallel.local_ranks import dies_with
from fcaffe.parallel.watchdog import DEFAULT_TIMEOUT, Watchdog
from fcaffe.threads import ranks_on_host

LAUNCHED = "FCAFFE_LAUNCHED"  # set by `launch.py` to the number of ranks

# What launchers set: their name, the variables of a rank and of the number of ranks. The first that is there counts:
# an mpiexec within a batch job leaves the batch system's own variables as they are.
LAUNCHERS = [
    ("Open MPI's mpiexec", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    ("MVAPICH's launcher", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    ("mpiexec", ("PMI_RANK",), ("PMI_SIZE",)),
    ("PALS", ("PALS_RANKID",), ("PALS_SIZE",)),
    ("PMIx", ("PMIX_RANK",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
]
NETWORK_INTERFACES = ("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "NCCL_SOCKET_IFNAME")
HOST_NAMES = ("PMI_HOSTNAME", "PMIX_HOSTNAME", "SLURMD_NODENAME")
REMEDY = (
    "start it with this MPI's own mpiexec, or build mpi4py for that launcher's (pip install --no-binary mpi4py mpi4py)"
)
SLURM_REMEDY = (
    "start it with srun --mpi=TYPE, of a type that this MPI knows (srun --mpi=list), or with this MPI's own mpiexec; "
    "in a batch script, unset SLURM_PROCID to let --workers N start the ranks"
)
told_to_end: list[int] = []  # signals that have raised SystemExit
TAKEN, PASSED_ON = 2.0, 0.05  # seconds, at most, that mpiexec has to read what a rank wrote, and to pass it on
TURN = 0.5  # seconds that rank 0 has to say, before others do, what is wrong with all


class Start(NamedTuple):
    """What the environment says of how this process was started."""

    launcher: str
    size_variable: str
    rank: int
    size: int  # 0 if unknown

    @property
    def remedy(self) -> str:
        return SLURM_REMEDY if self.size_variable.startswith("SLURM") else REMEDY

    def __str__(self) -> str:
        if not self.size:
            return f"{self.launcher} started this process as rank {self.rank}"
        said = f"{self.launcher} ({self.size_variable}={self.size})"
        return f"{said} started this process as rank {self.rank} of {self.size}"


def started_as(environment: Mapping[str, str] | None = None) -> Start | None:
    """How a launcher started this process as one of several ranks; None if it was started alone.

    A shell in a Slurm allocation has SLURM_NTASKS, but only a task has SLURM_PROCID.
    """
    environment = os.environ if environment is None else environment
    for launcher, rank_variables, size_variables in LAUNCHERS:
        rank = _number(environment, rank_variables)
        size = _number(environment, size_variables)
        if rank is None and (size is None or launcher in ("PMIx", "Slurm")):
            continue
        if LAUNCHED in environment:
            size = _number(environment, (LAUNCHED,))
        if size is not None and size[1] <= 1:
            return None
        return Start(launcher, size[0] if size else "", rank[1] if rank else 0, size[1] if size else 0)
    if LAUNCHED in environment:
        return Start("fcaffe", LAUNCHED, 0, int(environment[LAUNCHED]))
    return None


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, int] | None:
    return next(((name, int(environment[name])) for name in names if environment.get(name, "").isdecimal()), None)


def host_name() -> str:
    """As the launcher calls this host."""
    return next((os.environ[name] for name in HOST_NAMES if os.environ.get(name)), "") or socket.gethostname()


class RankError(Exception):
    """Carries an error of one of several ranks, its `__cause__`, to where it is told and ends all of them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world


@dataclass
class World:
    """All ranks of the job; the default is a process that runs alone. `hosts` has the host of each rank.

    As the context of a `with`, it turns every exception of the body into a RankError if there are other ranks.
    `threads`: this MPI can be called by several threads at once.
    """

    comm: Any = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    hosts: tuple[str, ...] = field(default_factory=lambda: (host_name(),))
    watchdog: Watchdog = field(default_factory=Watchdog)
    threads: bool = True

    def __str__(self) -> str:
        hosts = list(dict.fromkeys(self.hosts))
        return f"{self.size} workers on {len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(hosts)})"

    def signed(self, message: str) -> str:
        return message if self.size == 1 else f"rank {self.rank} on {host_name()}: {message}"

    def __enter__(self) -> World:
        if self.size > 1:
            try:
                _raise_signals()
            except BaseException as error:
                raise RankError(self) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.size == 1:
            return
        _handle_signals(signal.SIG_IGN)  # there is nothing left to stop; and the end must not be cut short
        if error is not None:
            raise RankError(self) from error
        with self.watchdog.waiting("the end of the other ranks"):
            self.comm.Barrier()  # or mpiexec might take the first that ends for a fault
        self.watchdog.leave()

    def wait_for_turn(self) -> None:
        """What is wrong with all ranks is told by rank 0, who then ends them; the others speak if they still live."""
        self.watchdog.leave(failed=True)
        _wait_for_turn(self.rank)

    def abort(self, code: int) -> None:
        """End all ranks with this exit code."""
        sys.stdout.flush()
        sys.stderr.flush()
        _wait_for_readers()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own words would follow ours
        self.comm.Abort(code)


def join(timeout: float = DEFAULT_TIMEOUT) -> World:
    """Take this process's place among the ranks. MPI is imported only if a launcher says that there are several.

    `timeout` in seconds: how long an operation may take before the job is ended; 0 for ever. Raises UsageError.

    From here on SIGTERM, SIGHUP and SIGINT raise SystemExit in a rank, so that one that is told to end says so to all.
    While there is a guard but the body of the `with` has not yet begun, they wait for that: an exception would get past
    it, and the guard would take the rank for one that was killed.
    """
    start = started_as()
    if start is None:
        return World()
    _raise_signals()
    _die_with_starter()
    _stay_on_this_host(start)
    mpi = _load_mpi(start)
    world = World()
    try:
        with _starting(start, mpi, timeout):
            world.comm, world.threads = _comm_world(start, mpi)
            world.rank, world.size = world.comm.rank, world.comm.size
            local = world.comm.Split_type(mpi.COMM_TYPE_SHARED)
            world.local_rank, world.local_size = local.rank, local.size
            world.hosts = tuple(world.comm.allgather(host_name()))
        _handle_signals(_note)
        reports = LAUNCHED in os.environ and world.rank == 0
        world.watchdog = watchdog.start(world.comm, local, world.hosts, timeout, reports)
        if reports:
            relay.listen(gone=lambda: world.watchdog.leave(failed=True))
            os.write(1, guard.report(-1))  # that all ranks have found one another
        local.Free()
    except BaseException as error:
        if world.size == 1:
            raise
        raise RankError(world) from error
    return world


def _die_with_starter() -> None:
    """Let the kernel end this rank when MPI's daemon on this host, which has started it, dies: nothing else would, if
    this rank is stopped or the guard is dead as well. fcaffe's launcher has seen to that itself."""
    parent = os.getppid()
    if guard.process_name(parent) in guard.DAEMONS:
        dies_with(parent)()


def _stay_on_this_host(start: Start) -> None:
    """If all ranks are on this host, nothing is to be open to the network: MPI and NCCL may use the loopback only."""
    if start.size and ranks_on_host() == start.size:
        for variable in NETWORK_INTERFACES:
            os.environ.setdefault(variable, "lo")


def _load_mpi(start: Start) -> Any:
    """mpi4py's MPI, not yet initialised: so the library's name is known if it does not start."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = True
        with _no_warnings():
            from mpi4py import MPI
    except ImportError:
        problem = "mpi4py is not installed: pip install mpi4py, over the MPI of this launcher"
    except RuntimeError as error:
        words = " ".join(str(error).split())
        problem = (
            f"mpi4py finds no MPI library ({words}): load this launcher's MPI, or pip install mpich and use its own"
        )
    else:
        return MPI
    _wait_for_turn(start.rank)
    raise UsageError(f"{start}, but {problem}")


def _comm_world(start: Start, mpi: Any) -> tuple[Any, bool]:
    """MPI's world, and whether several threads may call MPI at once."""
    if not mpi.Is_initialized():
        with _no_warnings():
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
    if mpi.Query_thread() < mpi.THREAD_FUNNELED:
        raise UsageError(
            f"{_library(mpi)} was built, or started, for processes without threads (MPI_THREAD_SINGLE), and fcaffe "
            "reads data in threads: use an MPI that provides MPI_THREAD_FUNNELED or more"
        )
    if mpi.COMM_WORLD.size == 1 and start.size > 1:
        _wait_for_turn(start.rank)
        raise UsageError(
            f"{start}, but {_library(mpi)} does not know its launcher and has one rank only: {start.remedy}"
        )
    return mpi.COMM_WORLD, mpi.Query_thread() >= mpi.THREAD_MULTIPLE


def _library(mpi: Any) -> str:
    """Name and version of the MPI library, on one line."""
    first = mpi.Get_library_version().rstrip("\0").partition("\n")[0]
    return " ".join(first.partition(", package")[0].replace("Version:", "").split())


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Of variables of another MPI's launcher, which we tell in our own words; of forking, see below."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _starting(start: Start, mpi: Any, timeout: float) -> Iterator[None]:
    """While MPI starts it may end this process, or hang: a child that waits for the end of the `with` says so then."""
    read, write = os.pipe()
    parent = os.getpid()
    launched = str(os.getppid()) == os.environ.get(guard.LAUNCHER)
    with _no_warnings():  # Python warns if there are threads, here BLAS's, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            os.setsid()  # survive it if mpiexec kills our parent for another rank's failure
            os.close(write)
            _watch_start(start, _library(mpi), read, parent, launched, timeout)
        finally:
            os._exit(0)
    os.close(read)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.write(write, b"!")
        os.close(write)
        os.waitpid(child, 0)


def _watch_start(start: Start, library: str, read: int, parent: int, launched: bool, timeout: float) -> None:
    heard, _, _ = select.select([read], [], [], timeout or None)
    if heard and (os.read(read, 1) or launched or guard.was_killed(parent)):
        return  # it started; or others know better why it did not: the launcher, or who has killed it
    _wait_for_turn(start.rank)
    if heard:
        log.fatal(f"{start} on {host_name()}, but {library} did not start: {start.remedy}")
    else:
        log.fatal(
            f"{start} on {host_name()}, but the ranks did not find one another within {timeout:g} s (--timeout): see "
            f"that all hosts reach one another on the network that {library} uses"
        )
        os.kill(parent, signal.SIGKILL)


def _wait_for_readers() -> None:
    """Until mpiexec has taken what we wrote: once a rank aborts it throws away what is still on its way."""
    until = time.monotonic() + TAKEN
    while time.monotonic() < until and any(_unread(stream) for stream in (1, 2)):
        time.sleep(0.01)
    time.sleep(PASSED_ON)


def _unread(stream: int) -> int:
    """Bytes in a pipe; 0 for what is none."""
    count = bytearray(4)
    try:
        fcntl.ioctl(stream, termios.FIONREAD, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def _wait_for_turn(rank: int) -> None:
    if rank > 0:
        time.sleep(TURN + min(rank, 100) / 50)


def _handle_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, handler)


def _raise_signals() -> None:
    """From now on, and for those that were noted before, signals raise SystemExit."""
    _handle_signals(_exit)
    if told_to_end:
        _exit(told_to_end[0], None)


def _note(number: int, _: FrameType | None) -> None:
    told_to_end.append(number)


def _exit(number: int, _: FrameType | None) -> None:
    """Once; a second signal would cut short what the first has begun. It is noted as well, since a library's code that
    calls ours may lose an exception."""
    _handle_signals(signal.SIG_IGN)
    told_to_end.append(number)
    sys.exit(128 + number)
