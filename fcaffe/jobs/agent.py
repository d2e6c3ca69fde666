"""The agent: a process of its own on each host that starts the ranks there, watches them, and cleans up behind them.

It must outlive the ranks: a rank can be killed, or hang with Python's lock held. It loads little of fcaffe, so that it
starts at once and stays small. Frames of the launcher come from standard input, and its own go to standard output. On
other hosts a remote shell and two carriers lie between (`carrier.py`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.carrier import carry_from, carry_to, is_here
from fcaffe.jobs.frames import END, MESSAGE, Message, message
from fcaffe.jobs.loop import Link, Loop
from fcaffe.jobs.output import WINDOW, RankOutput
from fcaffe.jobs.pmi import PmiServer
from fcaffe.jobs.processes import JOB, LAUNCHER
from fcaffe.jobs.ranks import TO_END, Clock, Rank, names, start_rank
from fcaffe.jobs.silences import KILLING, LEAVE, STRAY
from fcaffe.parallel.watchdog import DONE

LOOK = 0.5  # seconds between reports


class Agent:
    """Starts the ranks that one order of the launcher describes. `stderr` is a descriptor of the launcher's standard
    error, if that is on this host: the agent writes there if the launcher has died."""

    def __init__(self, folder: str, stderr: int | None) -> None:
        self.folder, self.stderr = folder, stderr
        self.loop = Loop()
        self.link = Link(self.loop, os.dup(0), os.dup(1), self._hear_launcher)
        self.output = RankOutput(self.loop, self.link)
        self.ranks: dict[int, Rank] = {}
        self.hosts: list[str] = []  # of all ranks of the job
        self.leave = LEAVE
        self.over = False  # the cause of the end is known, and no other one is sent
        self.killed = False
        self.clock = Clock()
        self.loop.every(LOOK, self._look)

    def run(self) -> None:
        """Return when all ranks have gone and the launcher knows why, or when the launcher has gone."""
        if os.path.isdir(self.folder):
            self.link.tell(ready=os.getpid(), here=self.stderr is not None)
        else:
            self.link.tell(unfit=f"there is no folder {self.folder} there, in which the job was started")
            self._kill()
        while self._live() or not self.over:  # after a `lost` rank the launcher may know a better cause
            self._turn()
        if self.ranks:
            self._end_strays()
        self.output.forward_all()
        while self.link.open and self.link.unconfirmed:
            self._turn()

    def _live(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if not rank.gone]

    def _turn(self) -> None:
        self.loop.turn()
        self.output.forward()
        for rank in self._live():
            if rank.process.poll() is not None:
                self._bury(rank)

    def _hear_launcher(self, kind: int, content: bytes) -> None:
        if kind != MESSAGE:
            self._mourn()
            return
        order = json.loads(content)
        if "program" in order:
            self._start(order)
        elif "values" in order:
            self.pmi.release(order["values"])
        elif "signal" in order and not self.ranks[0].gone:
            self.ranks[0].process.send_signal(order["signal"])
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
            launcher = f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.hosts[0]}"
            log.fatal(f"{launcher} died; this ends {names([rank.slot for rank in self._live()], self.hosts)}")
        self._kill()

    def _start(self, order: Message) -> None:
        job, hosts, first, count = order["environment"][JOB], order["hosts"], order["first"], order["count"]
        self.hosts, self.leave = hosts, max(LEAVE, order["timeout"])
        self.name = f"{job}.{first}"  # of the processes on this host; a machine may emulate several
        self.pmi = PmiServer(job, first, count, len(hosts), order["mapping"], lambda put: self.link.tell(put=put))
        frame, where = message(**order["order"]), (self.folder, self.output.targets)
        try:
            for number in range(first, first + count):
                own = {**order["environment"], **self.pmi.environment(number), JOB: self.name}
                rank = start_rank(self.loop, number, order["program"], own, *where, self._hear, self._hear_pmi)
                self.ranks[number] = rank
                rank.link.put(frame)
        except OSError as problem:
            why = f"{problem.filename or order['program'][0]}: {problem.strerror}"
            self._end(f"rank {number} on {hosts[number]} cannot be started: {why}")
        for target in self.output.targets:
            os.close(target)

    def _hear(self, number: int, kind: int, content: bytes) -> None:
        rank = self.ranks[number]
        if kind == END and content:
            self._end(f"{names([rank.slot], self.hosts)}: {content.decode()}")
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
            who = names([self.ranks[number].slot], self.hosts)
            self._end(f"the MPI of {who} gave up with code {self.pmi.aborted}; what it said stands above")

    def _bury(self, rank: Rank) -> None:
        """Handle the end of a rank's process. One that ended too early is a fault."""
        rank.gone = True
        rank.link.drain()  # its last messages
        rank.look()
        rank.link.close()
        rank.pmi.close()
        if not rank.failed and rank.doing.state != DONE:
            self.tell(**rank.cause_of_death(names([rank.slot], self.hosts)))
            self._kill()

    def _look(self, seconds: float) -> None:
        """Report what the ranks do, and end those that do not leave."""
        self.clock.tick(self._live(), seconds)
        for rank in self._live():
            if rank.doing.state == DONE and rank.quiet > self.leave:
                how_long = f"{names([rank.slot], self.hosts)} runs on for {rank.quiet:.0f} s after its training"
                self.link.tell(warning=f"{how_long}, in threads of user code, and is ended")
                rank.process.kill()
        if self.ranks and self.link.unconfirmed < WINDOW:
            self.report()

    def _kill(self) -> None:
        self.over = self.killed = True
        for rank in self._live():
            rank.process.kill()

    def _end_strays(self) -> None:
        """End the processes that user code has left on this host."""
        end = time.monotonic() + (0.0 if self.killed else STRAY)
        while processes.processes_of(self.name) and time.monotonic() < end:
            self._turn()
        end = time.monotonic() + KILLING
        while processes.kill_processes(self.name) and time.monotonic() < end:
            self._turn()


def _stay(number: int, frame: object) -> None:
    """Ignore a signal: the agent ends after the ranks."""


def main(folder: str, host: str = "", stderr: int | None = None, shell: str = "", silence: float = 0.0) -> int:
    """Be the agent of this host for a job in that folder.

    The launcher gives the `host` for which it starts this process, which reaches it by the remote shell if it is
    another one. So neither a slow look-up of a name nor a host that does not answer keeps the launcher waiting.
    """
    for number in TO_END:
        signal.signal(number, _stay)  # not SIG_IGN, which the ranks would inherit
    if host and not is_here(host):
        return carry_to(host, folder, shell, silence)
    if not host and silence and not carry_from(silence):
        return 0
    processes.remove_memory()  # of jobs before this one, of which nothing was left to do so
    Agent(folder, stderr).run()
    processes.remove_memory(processes.PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
