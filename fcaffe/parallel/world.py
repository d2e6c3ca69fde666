"""All ranks of the job: how this process joins them, is told to end, and ends with them."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from fcaffe import log
from fcaffe.errors import LostRankError, RankError
from fcaffe.parallel import forked_rank, records
from fcaffe.parallel.mpi_start import comm_world, load_mpi, prepare_environment
from fcaffe.parallel.placement import DEFAULT_TIMEOUT
from fcaffe.parallel.started import (
    LAUNCHED,
    RANK_PROCESS,
    Start,
    host_name,
    is_child_of_rank,
    started_as,
    wait_for_turn,
)
from fcaffe.parallel.watch import GRACE
from fcaffe.parallel.watchdog import TABLE, Watchdog

PASSED_ON = 0.3  # seconds that mpiexec has to pass on the output of a rank


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
    error: dict[str, Any] = field(default_factory=dict)  # of this rank, as its record to the launcher has it

    def __str__(self) -> str:
        hosts = list(dict.fromkeys(self.hosts))
        return f"{self.size} workers on {len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(hosts)})"

    def signed(self, message: str) -> str:
        return message if self.size == 1 else f"rank {self.rank} on {host_name()}: {message}"

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.size == 1:
            self.watchdog.leave(failed=error is not None)
            return
        _handle_signals(signal.SIG_IGN)  # training has ended, and nothing may interrupt the end
        if error is not None:
            raise RankError(self) from error
        with self.watchdog.waiting("the end of the other ranks"):
            try:
                self.comm.Barrier()  # or mpiexec might take the first that ends for a fault
            except Exception as problem:
                raise RankError(self) from problem
        self.watchdog.leave()

    def judged(self, error: BaseException) -> BaseException:
        """The error to report. An error of MPI is most often the consequence of another rank's death. The agent may
        learn of that death after this rank does. It then reports it and ends this rank. If it does not, the link to a
        rank has failed."""
        if self.size == 1 or not type(error).__module__.startswith("mpi4py"):
            return error
        time.sleep(GRACE)
        self.error["fault"] = True
        words = " ".join(str(error).split())
        try:
            raise LostRankError(f"MPI cannot reach another rank, in {self.watchdog.operation}: {words}") from error
        except LostRankError as lost:
            return lost

    def wait_for_turn(self) -> None:
        """After an error, wait until rank 0 has had time to report it and to end all ranks: they may all have it."""
        self.watchdog.leave(failed=True)
        wait_for_turn(self.rank)

    def fatal(self, message: str, source: str) -> None:
        """Log the error of this rank. Only rank 0 and the launcher have log files; the launcher logs it for others."""
        self.error |= {"message": self.signed(message), "source": source}
        if self.rank == 0 or LAUNCHED not in os.environ:
            log.fatal(self.error["message"], source)

    def abort(self, code: int, number: int = 0) -> None:
        """End all ranks with this exit code, and tell the launcher why: an error, or the signal `number`."""
        sys.stdout.flush()
        sys.stderr.flush()
        if LAUNCHED in os.environ:
            told = {"rank": self.rank, "code": code, "logged": self.rank == 0, "signal": number}
            records.send({**told, **self.error})
        if self.comm is None:
            os._exit(code)
        if TABLE not in os.environ:
            time.sleep(PASSED_ON)  # once a rank aborts mpiexec throws away what is still on its way
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own words would follow ours
        self.comm.Abort(code)

    def end_by_signal(self, number: int, _: FrameType | None) -> None:
        """Handle a signal that asks for the end: end all ranks at once. An exception could get lost in the code of a
        library that calls fcaffe."""
        _handle_signals(signal.SIG_IGN)
        self.watchdog.leave(failed=True)
        self.abort(128 + number, number)


def join(timeout: float = DEFAULT_TIMEOUT) -> World:
    """Make this process one of the ranks. MPI is imported only if a launcher says that there are several.

    `timeout` in seconds: how long an operation may take before the job is ended; 0 for ever. Raises UsageError.

    From here on SIGTERM, SIGHUP and SIGINT end all ranks, unless other handlers are set.
    """
    start = started_as()
    own = _watchdog(start, timeout)
    if own is None:
        return World()
    os.environ[RANK_PROCESS] = str(os.getpid())
    if start is None:
        own.beat("the start")
        records.send({"iteration": -1})
        return World(watchdog=own)
    world = World(rank=start.rank)
    _handle_signals(world.end_by_signal)
    prepare_environment(start)
    try:
        mpi = load_mpi(start)
        world.comm, world.threads = comm_world(start, mpi)
        world.rank, world.size = world.comm.rank, world.comm.size
        local = world.comm.Split_type(mpi.COMM_TYPE_SHARED)
        world.local_rank, world.local_size = local.rank, local.size
        world.hosts = tuple(world.comm.allgather(host_name()))
        world.watchdog = own
        own.beat("the start")
        if LAUNCHED in os.environ and world.rank == 0:
            records.send({"iteration": -1})  # all ranks have found one another
        local.Free()
    except BaseException as error:
        if world.size == 1:
            own.leave(failed=True)
            raise
        raise RankError(world) from error
    return world


def _watchdog(start: Start | None, timeout: float) -> Watchdog | None:
    """The watchdog of this rank. If no agent has started it, it gets an agent of its own. None if it is no rank."""
    if TABLE in os.environ and not is_child_of_rank(os.environ):
        table = mmap.mmap(int(os.environ[TABLE]), 0)
        return Watchdog(start.rank if start else 0, table, int(os.environ["MPI_LOCALRANKID"]))
    return start and Watchdog(start.rank, forked_rank.fork(start.rank, start.size, timeout))


def _handle_signals(handler: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, handler)
