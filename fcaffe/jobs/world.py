"""All ranks of the job: how this process joins them, and ends with them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from fcaffe import log
from fcaffe.errors import LostRankError, RankError
from fcaffe.jobs import processes
from fcaffe.jobs.channel import Channel
from fcaffe.jobs.frames import Message
from fcaffe.jobs.hosts import DEFAULT_TIMEOUT
from fcaffe.jobs.mpi_start import comm_world, load_mpi, prepare_environment
from fcaffe.jobs.processes import TO_END
from fcaffe.jobs.silences import NEWS
from fcaffe.jobs.started import FATAL, RANK_PROCESS, Start, host_name, started_as, wait_for_turn
from fcaffe.parallel.watchdog import TRAINING, Watchdog

PASSED_ON = 0.3  # seconds that mpiexec has to pass on the output of a rank
TICK = 0.25  # seconds


@dataclass
class World:
    """All ranks of the job; the default is a process that runs alone. `hosts` has the host of each rank.

    As the context of a `with`, it turns every exception of the body into a RankError if somebody must hear of it: other
    ranks, or the agent at the other end of the `channel`. `threads`: this MPI can be called by several threads at once.
    `order` is the launcher's, if fcaffe's launcher has started this rank.
    """

    comm: Any = None
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    hosts: tuple[str, ...] = field(default_factory=lambda: (host_name(),))
    watchdog: Watchdog = field(default_factory=Watchdog)
    threads: bool = True
    channel: Channel | None = None
    order: Message | None = None
    error: Message = field(default_factory=dict)  # of this rank, as the agent gets it
    over: bool = False  # the training has ended

    def __str__(self) -> str:
        hosts = list(dict.fromkeys(self.hosts))
        return f"{self.size} workers on {len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(hosts)})"

    def signed(self, message: str) -> str:
        return message if self.size == 1 else f"rank {self.rank} on {host_name()}: {message}"

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.size == 1 and self.channel is None:
            return
        _handle_signals(signal.SIG_IGN)  # training has ended, and nothing may interrupt the end
        if error is not None:
            raise RankError(self) from error
        if self.size > 1:
            with self.watchdog.waiting("the end of the other ranks"):
                try:
                    self.comm.Barrier()  # or mpiexec might take the first that ends for a fault
                except Exception as problem:
                    raise RankError(self) from problem
        self.over = True

    def ended(self, code: int) -> None:
        """The training of all ranks has ended with this exit code: whatever happens from now on is no fault."""
        if self.channel is not None:
            self.channel.tell(ended=code)

    def judged(self, error: BaseException) -> BaseException:
        """The error to report. An error of MPI is most often the consequence of another rank's death, which the agents
        tell the launcher, or mpiexec finds out. If neither does, the link to a rank has failed."""
        if isinstance(error, SystemExit) and error.code not in (None, 0, 1):
            self.error |= {"fault": True, "message": self.signed(f"user code ended it with exit code {error.code}")}
        if self.size == 1 or not type(error).__module__.startswith("mpi4py"):
            return error
        if self.channel is None:
            time.sleep(NEWS)
        self.error |= {"fault": True, "lost": True}
        words = " ".join(str(error).split())
        try:
            raise LostRankError(f"MPI cannot reach another rank, in {self.watchdog.now}: {words}") from error
        except LostRankError as lost:
            return lost

    def fatal(self, message: str, source: str) -> None:
        """Log the error of this rank. Only rank 0 and the launcher have log files; the launcher logs it for others, and
        for rank 0, too, if it may know a better cause."""
        self.error |= {"message": self.signed(message), "source": source}
        if self.channel is None or (self.rank == 0 and "lost" not in self.error):
            log.fatal(self.error["message"], source)
            self.error["logged"] = True

    def abort(self, code: int) -> None:
        """End all ranks with this exit code, after an error that the agent is told."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self.channel is not None:
            self.channel.tell(error={"code": code, **self.error})
            os._exit(code)
        if "message" in self.error and "logged" not in self.error:
            log.fatal(self.error["message"])
        time.sleep(PASSED_ON)  # once a rank aborts mpiexec throws away what is still on its way
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPI's own words would follow ours
        self.comm.Abort(code)

    def watch(self, timeout: float) -> None:
        """End this process if it hangs in training. A thread of each rank runs this where no agent watches. A rank that
        waits for others is more patient, so that the rank to blame says so itself."""
        beats, quiet = 0, 0.0
        while not self.over:
            time.sleep(TICK)
            quiet, doing = quiet + TICK, self.watchdog.now
            if self.watchdog.beats != beats or doing.state != TRAINING:
                beats, quiet = self.watchdog.beats, 0.0
            if quiet > timeout + NEWS * doing.waits:
                stuck = f"rank {self.rank} (process {os.getpid()}) on {host_name()} did not come out of {doing}"
                log.fatal(f"{stuck} within {timeout:g} s (--timeout)")
                os._exit(FATAL)


_joined: list[World] = []  # at most one


def join(timeout: float = DEFAULT_TIMEOUT, channel: Channel | None = None, order: Message | None = None) -> World:
    """Make this process one of the ranks. MPI is imported only if a launcher says that there are several.

    `timeout` in seconds: how long an operation may take before the job is ended; 0 for ever. `channel` and `order` are
    those of a rank that an agent has forked. Raises UsageError.

    From here on SIGTERM, SIGHUP and SIGINT end this rank at once, and so all, unless other handlers are set.
    """
    if _joined:
        return _joined[0]
    start = started_as()
    if start is None and channel is None:
        return World()
    world = World(rank=start.rank if start else 0, channel=channel, order=order)
    _joined.append(world)
    if channel is not None:
        world.watchdog = Watchdog(channel.report)
    os.environ[RANK_PROCESS] = str(os.getpid())
    _handle_signals(signal.SIG_DFL)
    if start is not None:
        if channel is None:
            processes.remove_memory()  # of jobs before this one
            if timeout > 0:
                threading.Thread(target=world.watch, args=(timeout,), daemon=True).start()
        _start_mpi(world, start)
    return world


def _start_mpi(world: World, start: Start) -> None:
    prepare_environment(start)
    try:
        mpi = load_mpi(start, by_fcaffe=world.channel is not None)
        world.comm, world.threads = comm_world(start, mpi)
        world.rank, world.size = world.comm.rank, world.comm.size
        local = world.comm.Split_type(mpi.COMM_TYPE_SHARED)
        world.local_rank, world.local_size = local.rank, local.size
        world.hosts = tuple(world.comm.allgather(host_name()))
        local.Free()
    except BaseException as error:
        wait_for_turn(start.rank)
        if world.size == 1 and world.channel is None:
            raise
        raise RankError(world) from error


def _handle_signals(handler: Any) -> None:
    for number in TO_END:
        signal.signal(number, handler)
