"""Supervisor: forks the ranks of one order of the launcher on this host, watches them, and cleans up behind them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
from importlib import import_module
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.channel import Channel
from fcaffe.jobs.frames import END, MESSAGE, Message
from fcaffe.jobs.loop import Link, Loop
from fcaffe.jobs.output import WINDOW, RankOutput
from fcaffe.jobs.pmi import PmiServer
from fcaffe.jobs.processes import JOB, LAUNCHER
from fcaffe.jobs.ranks import Clock, Rank, fork_rank, names
from fcaffe.jobs.silences import LEAVE, STRAY
from fcaffe.parallel.watchdog import DONE

LOOK = 0.5  # seconds between reports


class Supervisor:
    """Forks the ranks that one order of the launcher describes. `stderr` is a descriptor of the launcher's standard
    error, if that is on this host: the agent writes there if the launcher has died."""

    def __init__(self, folder: str, stderr: int | None) -> None:
        self.folder, self.stderr = folder, stderr
        self.loop = Loop()
        self.link = Link(self.loop, os.dup(0), os.dup(1), self._hear_launcher)
        self.output = RankOutput(self.loop, self.link)
        self.order: Message = {}  # of the launcher; empty until it comes
        self.ranks: dict[int, Rank] = {}
        self.leave = LEAVE
        self.over = False  # the cause of the end is known, and no other one is sent
        self.killed = False
        self.clock = Clock()
        self.loop.every(LOOK, self._look)

    def run(self) -> Channel | None:
        """Return when all ranks have gone and the launcher knows why, or when the launcher has gone.

        In each rank, which is forked in here, return its channel.
        """
        if os.path.isdir(self.folder):
            self.link.tell(ready=os.getpid(), here=self.stderr is not None)
        else:
            self.link.tell(unfit=f"there is no folder {self.folder} there, in which the job was started")
            self._kill()
        while not (self.order or self.over):
            self._turn()
        if self.order and (channel := self._fork_ranks()):
            return channel
        while self._live() or not self.over:  # after a `lost` rank the launcher may know a better cause
            self._turn()
        if self.ranks:
            self._end_strays()
        self.output.forward_all()
        while self.link.open and self.link.unconfirmed:
            self._turn()
        return None

    def _live(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if not rank.gone]

    def _turn(self) -> None:
        self.loop.turn()
        self.output.forward()
        dead = [rank for rank in self._live() if rank.process.poll() is not None]
        for rank in sorted(dead, key=lambda rank: rank.crashed):
            self._bury(rank)

    def _hear_launcher(self, kind: int, content: bytes) -> None:
        if kind != MESSAGE:
            self._mourn()
            return
        order = json.loads(content)
        if "module" in order:
            self.order = order
        elif "values" in order:
            self.pmi.release(order["values"])
        elif "signal" in order and (rank := self.ranks.get(0)) and not rank.gone:
            rank.process.send_signal(order["signal"])
        elif "kill" in order:
            self._kill()

    def report(self) -> None:
        self.link.tell(ranks=[rank.slot for rank in self.ranks.values()])

    def tell(self, **cause: Any) -> None:
        """Tell why the job ends, behind all that the ranks have printed before.

        The cause `lost` is a guess: this host, or another one, may still tell a better one.
        """
        if not self.over:
            self.over = not cause.get("lost")
            self.output.forward_all()
            self.report()
            self.link.tell(cause=cause)

    def _end(self, problem: str) -> None:
        """End all ranks after a fault."""
        self.tell(fault=True, message=problem)
        self._kill()

    def _mourn(self) -> None:
        """End all ranks, since the launcher has died or cannot be reached."""
        if self.stderr is not None and self._live() and not self.over:
            os.dup2(self.stderr, 2)
            launcher = f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.order['hosts'][0]}"
            log.fatal(f"{launcher} died; this ends {self._names(*self._live())}")
        self._kill()

    def _names(self, *ranks: Rank) -> str:
        return names([rank.slot for rank in ranks], self.order["hosts"])

    def _fork_ranks(self) -> Channel | None:
        """Fork the ranks; returns the channel of a rank in its process, and None in this one."""
        hosts, first, count = self.order["hosts"], self.order["first"], self.order["count"]
        number = first
        self.leave = max(LEAVE, self.order["timeout"])
        name, mapping = self.order["name"], self.order["mapping"]
        self.pmi = PmiServer(name, first, count, len(hosts), mapping, lambda put: self.link.tell(put=put))
        os.environ |= {"PMI_HOSTNAME": hosts[first], **self.pmi.environment(first)}
        try:
            os.chdir(self.folder)
            with contextlib.suppress(Exception):  # each rank imports it again, and reports the error
                import_module(self.order["module"]).load(self.order["order"])
            gc.freeze()  # the collector would copy the memory that ranks share
            self.loop.turn(0)
            for number in range(first, first + count) if not self.over else ():
                variables, targets = self.pmi.environment(number), self.output.targets
                forked = fork_rank(self.loop, number, variables, targets, self._hear, self._hear_pmi)
                if isinstance(forked, Channel):
                    return forked
                self.ranks[number] = forked
        except OSError as problem:
            self._end(f"rank {number} on {hosts[number]} cannot be started: {problem}")
        for target in self.output.targets:
            os.close(target)
        return None

    def _hear(self, number: int, kind: int, content: bytes) -> None:
        rank = self.ranks[number]
        if kind == END and content:
            self._end(f"{self._names(rank)}: {content.decode()}")
        if kind != MESSAGE:
            return
        told = json.loads(content)
        rank.look()
        if "trains" in told:
            self.report()
        elif "ended" in told:
            self.over = True  # whatever happens from now on is no fault
            rank.doing, rank.quiet = rank.doing._replace(state=DONE), 0.0
            self.output.forward_all()
            self.link.tell(ended=told["ended"])
        elif "error" in told:
            rank.failed = True
            self.tell(**told["error"])

    def _hear_pmi(self, number: int, kind: int, content: bytes) -> None:
        if kind == END:
            return
        self.pmi.serve(self.ranks[number].pmi.put, content)
        if self.pmi.aborted is not None:
            who = f"the MPI of {self._names(self.ranks[number])}"
            message = f"{who} gave up with code {self.pmi.aborted}; what it said stands above"
            self._lose(self.ranks[number], True, fault=True, message=message)

    def _bury(self, rank: Rank) -> None:
        """Handle the end of a rank's process. One that ended too early is a fault."""
        rank.close()
        if not rank.failed and rank.doing.state != DONE:
            self._lose(rank, rank.crashed, **rank.cause_of_death(self._names(rank)))

    def _lose(self, rank: Rank, by_mpi: bool, **cause: Any) -> None:
        """Tell why a rank is lost, and end the others. If MPI may have ended it, since it has lost a rank on another
        host, the launcher first waits for a better cause."""
        rank.failed = True
        lost = by_mpi and len(set(self.order["hosts"])) > 1
        self.tell(**cause, lost=lost)
        if not lost:
            self._kill()

    def _look(self, seconds: float) -> None:
        """Report what the ranks do, and end those that do not leave."""
        self.clock.tick(self._live(), seconds)
        for rank in self._live():
            if rank.doing.state == DONE and rank.quiet > self.leave:
                how_long = f"{self._names(rank)} runs on for {rank.quiet:.0f} s after its training"
                self.link.tell(warning=f"{how_long}, in threads of user code, and is ended")
                rank.process.send_signal(signal.SIGKILL)
        if self.ranks and self.link.unconfirmed < WINDOW:
            self.report()

    def _kill(self) -> None:
        self.over = self.killed = True
        for rank in self._live():
            rank.process.send_signal(signal.SIGKILL)

    def _end_strays(self) -> None:
        """End the processes that user code has left on this host."""
        end = time.monotonic() + (0.0 if self.killed else STRAY)
        while processes.processes_of([os.environ[JOB]]) and time.monotonic() < end:
            self._turn()
        processes.end_processes([os.environ[JOB]], self._turn)
