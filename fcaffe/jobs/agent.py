"""The agent: a process of its own on each host that starts the ranks there, watches them, and cleans up behind them.

It must outlive the ranks: a rank can be killed, or hang with Python's lock held. The launcher starts it, on other hosts
by a remote shell. Frames of the launcher come from standard input, and its own go to standard output
(`frames.py`). It loads little of fcaffe, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import selectors
import signal
import sys
import time
from typing import Any

from fcaffe import log
from fcaffe.jobs import processes
from fcaffe.jobs.blame import hang_message, names, with_stopped
from fcaffe.jobs.call import is_here, run_remote_agent
from fcaffe.jobs.frames import FrameError, Lines, Link, Message
from fcaffe.jobs.pmi import PmiServer
from fcaffe.jobs.processes import JOB, LAUNCHER
from fcaffe.jobs.ranks import (
    ENDING,
    FAILED,
    GONE,
    GRACE,
    LIVE,
    LOADING,
    TO_END,
    Clock,
    Rank,
    Slot,
    overdue,
    start_rank,
)
from fcaffe.jobs.started import INTERRUPTED
from fcaffe.parallel.watchdog import STARTING

FATAL = 134  # exit code of a job that an error or a fault has ended
TICK, LOOK, REPORT = 0.1, 0.25, 1.0  # seconds between two looks for messages, for hung ranks, and two reports
SILENCE = 20.0  # seconds without a frame after which launcher and agents on different hosts count as lost
LAST_WORDS = 5.0  # seconds that processes of user code have after the ranks
MOST = 1 << 20  # bytes of frames that wait for the launcher
PATIENCE = 0.3  # seconds in which memory may become free


class Agent:
    """Starts the ranks that one order of the launcher describes. `stderr` is a descriptor of the launcher's standard
    error, if that is on this host: the agent writes there if the launcher has died."""

    def __init__(self, folder: str, stderr: int | None) -> None:
        self.folder, self.stderr = folder, stderr
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.hosts: list[str] = []  # of all ranks of the job
        self.timeout = 0.0
        self.silence = SILENCE if stderr is None else 0.0
        self.unheard = 0.0  # seconds without a frame of the launcher
        self.orphaned = False
        self.told = False  # the cause of the end
        self.deadline = float("inf")  # when all ranks are killed
        self.clock = Clock()
        self.link = Link(self.selector, 0, 1, self._hear_launcher)
        self.outputs: list[Link] = []

    def run(self) -> None:
        """Return when all ranks have gone, or when the launcher has and there are none."""
        if os.path.isdir(self.folder):
            self.link.send(ready=os.getpid(), here=self.stderr is not None)
        else:
            self.link.send(unfit=f"there is no folder {self.folder} there, in which the job was started")
            return
        looked = reported = time.monotonic()
        while not (all(rank.state == GONE for rank in self.ranks) and (self.ranks or self.orphaned)):
            for key, _ in self.selector.select(TICK):
                key.data()
            for rank in self.ranks:
                self._hear(rank)
            self._reap()
            now = time.monotonic()
            if now - looked >= LOOK:
                self._look(min(now - looked, 4 * LOOK))
                looked = now
            if now - reported >= REPORT:
                self.report()
                reported = now
            if now > self.deadline:
                self.kill()
        self._finish()

    # --- the launcher -------------------------------------------------------------------------------------------------

    def _hear_launcher(self, message: Message | str | None) -> None:
        self.unheard = 0.0
        if not isinstance(message, dict) or "unreadable" in message:
            self.orphaned = True
        elif "program" in message:
            self._start(**message)
        elif "values" in message:
            self.pmi.release(dict(message["values"]))
        elif "signal" in message and self.ranks[0].state != GONE:
            self.ranks[0].process.send_signal(message["signal"])
        elif "kill" in message:
            self.told = True
            self.kill()

    def report(self) -> None:
        self.link.send(ranks=with_stopped([rank.slot for rank in self.ranks]))

    def tell(self, code: int = FATAL, **cause: Any) -> None:
        """Tell why the job ends, behind all that the ranks have printed before."""
        if not self.told:
            self.told = True
            for output in self.outputs:
                output.drain()
            self.report()
            self.link.send(cause={"code": code, **cause})

    # --- the ranks ----------------------------------------------------------------------------------------------------

    def _start(
        self,
        program: list[str],
        environment: dict[str, str],
        order: Message,
        hosts: list[str],
        first: int,
        count: int,
        mapping: str,
        timeout: float,
        silence: float,
    ) -> None:
        self.hosts, self.timeout = hosts, timeout
        self.silence = silence if self.silence else 0.0
        self.name = f"{environment[JOB]}.{first}"  # of the processes on this host; a machine may emulate several
        self.pmi = PmiServer(environment[JOB], first, count, len(hosts), mapping, self._meet)
        pipes = [os.pipe() for _ in range(2)]
        for key, (source, _) in zip(("out", "err"), pipes, strict=True):
            output = Link(self.selector, source, None, functools.partial(self._forward, key), Lines())
            self.selector.modify(source, selectors.EVENT_READ, functools.partial(self._read_output, output))
            self.outputs.append(output)
        try:
            for number in range(first, first + count):
                own = {**environment, **self.pmi.environment(number), JOB: self.name}
                rank = start_rank(number, program, self.folder, own, order, (pipes[0][1], pipes[1][1]))
                self.ranks.append(rank)
                self._answer_at_once(rank)
        except OSError as problem:
            why = f"{problem.filename or program[0]}: {problem.strerror}"
            self.tell(fault=True, message=f"rank {number} on {hosts[number]} cannot be started: {why}")
            self.kill()
        for _, target in pipes:
            os.close(target)

    def _read_output(self, output: Link) -> None:
        """Read what ranks have printed, not faster than the launcher takes it."""
        if len(self.link.queue) < MOST:
            output.read()
        else:
            time.sleep(TICK / 10)

    def _forward(self, key: str, text: str | None) -> None:
        """Forward what a rank has printed."""
        if text:
            self.link.send(**{key: text})

    def _meet(self, values: dict[str, str]) -> None:
        """All ranks of this host are in a barrier and have put these values."""
        if self.pmi.count == len(self.hosts):
            self.pmi.release(values)
        else:
            self.link.send(put=list(values.items()))

    def _answer_at_once(self, rank: Rank) -> None:
        """Answer PMI-1 while MPI starts or ends. In between heartbeats wait for the next tick."""
        with contextlib.suppress(KeyError):
            self.selector.register(rank.socket, selectors.EVENT_READ, lambda: self._hear(rank))

    def _answer_later(self, rank: Rank) -> None:
        with contextlib.suppress(KeyError):
            self.selector.unregister(rank.socket)

    def _hear(self, rank: Rank) -> None:
        heard = False
        try:
            for message in rank.messages():
                heard = True
                if isinstance(message, str):
                    self.pmi.serve(rank.number, rank.socket, message)
                elif "beat" in message and rank.state in LIVE:
                    if message["beat"][0] != STARTING and rank.state == STARTING:
                        self._answer_later(rank)
                    rank.enter(*message["beat"])
                elif "ended" in message:
                    self.told = True  # whatever happens from now on is no fault
                    rank.enter(ENDING, "the end", rank.iteration)
                    self._answer_at_once(rank)
                    for output in self.outputs:
                        output.drain()
                    self.link.send(ended=message["ended"])
                elif "error" in message:
                    rank.enter(FAILED, "the end", rank.iteration)
                    self.deadline = min(self.deadline, time.monotonic() + GRACE)
                    self.tell(**message["error"])
        except FrameError as problem:
            self.tell(fault=True, message=f"{names([rank.slot], self.hosts)} sends {problem}")
            self.kill()
        if not heard and rank.state in (GONE, ENDING, FAILED):
            self._answer_later(rank)  # its socket is at its end
        if self.ranks and self.pmi.aborted is not None and not self.told:
            number, code = self.pmi.aborted
            who = names([other.slot for other in self.ranks if other.number == number], self.hosts)
            self.tell(fault=True, message=f"{who} ended: its MPI gave up with code {code}; what it said stands above")
            self.kill()

    def _reap(self) -> None:
        """Find the ranks whose process has ended, and judge the first that did so too early."""
        gone = [rank for rank in self.ranks if rank.state != GONE and rank.process.poll() is not None]
        for rank in gone:
            self._hear(rank)  # its last messages
            before = rank.slot
            rank.state = GONE
            self._answer_later(rank)
            if before.state in LIVE:
                self._died(before, rank.process.returncode)
            elif before.state == FAILED:
                self.kill()

    def _died(self, slot: Slot, code: int) -> None:
        who = names([slot], self.hosts)
        asked = -code if -code in TO_END else signal.SIGINT if code == INTERRUPTED and slot.operation == LOADING else 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if asked:
            self.tell(128 + asked, signal=int(asked))
        elif slot.state == STARTING:
            message = f"{who} {how}, before the ranks had started; what it said stands above"
            self.tell(fault=True, message=message)
        else:
            how = f"it ended with exit code {code}" if code >= 0 else "killed, or crashed outside of Python"
            self.tell(fault=True, message=f"{who} died in {slot.where()}: {how}")
        self.kill()

    def _look(self, seconds: float) -> None:
        """Find ranks that hang, or do not leave, and a launcher that is lost."""
        self.unheard += seconds
        self.orphaned |= 0 < self.silence < self.unheard
        self.clock.tick(self.ranks, seconds)
        late = [rank for rank in self.ranks if overdue(rank, self.timeout)]
        for rank in late:
            if rank.state == ENDING:
                self.link.send(warning=f"{names([rank.slot], self.hosts)} has not left for {rank.quiet:.0f} s after "
                               "the end of its training, and is ended: do threads of user code run on?")
            if rank.state in (ENDING, FAILED):
                rank.kill()
                rank.quiet = 0.0
        hung = [rank for rank in late if rank.state in LIVE]
        if self.orphaned and any(rank.state != GONE for rank in self.ranks):
            self._mourn()
        elif hung and not self.told:
            slots = with_stopped([rank.slot for rank in self.ranks])
            message = hang_message(slots[self.ranks.index(hung[0])], slots, [], [], self.hosts, self.timeout)
            self.tell(fault=True, message=message, overdue=hung[0].number)
            self.kill()

    def _mourn(self) -> None:
        """The launcher has died, or cannot be reached."""
        who = names([rank.slot for rank in self.ranks], self.hosts)
        if self.stderr is not None and not self.told:
            os.dup2(self.stderr, 2)
            launcher = f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.hosts[0]}"
            log.fatal(f"{launcher} died, which had started {who}; so do they")
        self.tell(fault=True, message=f"{who} got no order of fcaffe's launcher for {self.unheard:.0f} s")
        self.kill()

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    def _finish(self) -> None:
        """Forward the last output, end what user code has left, and wait for the launcher to take all frames."""
        if self.ranks:
            processes.end_processes(self.name, LAST_WORDS)
        for output in self.outputs:
            output.drain()
        end = time.monotonic() + LAST_WORDS
        while self.link.queue and time.monotonic() < end:
            select.select([], [1], [], TICK)
            self.link.write()


def _stay(number: int, frame: object) -> None:
    """Ignore a signal: the agent ends after the ranks."""


def main(folder: str, host: str = "", stderr: int | None = None, shell: str = "") -> int:
    """Be the agent of this host for a job in that folder.

    The launcher gives the `host` for which it starts this process, which reaches it by the remote shell if it is
    another one. So neither a slow look-up of a name nor a host that does not answer keeps the launcher waiting.
    """
    if host and not is_here(host):
        return run_remote_agent(host, folder, shell)
    for number in TO_END:
        signal.signal(number, _stay)  # not SIG_IGN, which the ranks would inherit
    processes.remove_memory()  # of jobs before this one, of which nothing was left to do so
    Agent(folder, stderr).run()
    processes.remove_memory(PATIENCE)
    return 0


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
