"""The watch over ranks that the agent has started itself, as its children: those of a job on one host.

The kernel tells the agent how each rank has ended, and ends the ranks if the agent dies.
"""

from __future__ import annotations

import functools
import mmap
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fcaffe.parallel import records
from fcaffe.parallel.blame import names
from fcaffe.parallel.network import Network
from fcaffe.parallel.pmi import PmiServer
from fcaffe.parallel.processes import JOB, LAUNCHER, Process, dies_with, processes_of
from fcaffe.parallel.table import FAILED, LEAVING, SLOT, STARTING, Slot, create_table
from fcaffe.parallel.watch import GRACE, TICK, Watch

TABLE = "FCAFFE_TABLE"  # in a rank's environment: the descriptor of the heartbeat table
TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask for the end


class LocalRanks(Watch):
    """`workers` processes of this host that run `program` in `folder` as the ranks of one MPI job.

    `stderr` is a handle of the launcher's standard error, for the message that the launcher has died.
    """

    def __init__(
        self,
        program: Sequence[str],
        workers: int,
        environment: Mapping[str, str],
        host: str,
        timeout: float = 0.0,
        folder: str = ".",
        stderr: int = 2,
        reports: bool = True,
        launched: bool = True,
    ) -> None:
        self.descriptor = create_table(workers)
        table = mmap.mmap(self.descriptor, 0)
        for rank in range(workers):
            table[rank * SLOT.size : (rank + 1) * SLOT.size] = Slot(rank, 0, 0, -1, STARTING, "the start").pack()
        super().__init__(table, [host] * workers, timeout, Network([], None, b"", 0), reports, launched)
        self.program = program
        self.environment = environment
        self.folder = folder
        self.stderr = stderr
        self.pmi = PmiServer(workers)
        self.code = 0
        self.deadline: float | None = None  # when ranks that still live are killed
        self.children: list[Any] = []
        for rank in range(workers):
            ours, theirs = socket.socketpair()
            with theirs:
                own = {**self.pmi.environment(rank, theirs.fileno()), TABLE: str(self.descriptor)}
                self.children.append(self.start(own, theirs.fileno()))
            self.pids[rank] = self.children[rank].pid
            self._serve_pmi(rank, ours)
            self.when_ended(self.pids[rank], functools.partial(self._note, rank))

    def start(self, own: dict[str, str], connection: int) -> Any:
        """Start a rank with these variables; it inherits the connection and the table."""
        return subprocess.Popen(
            self.program,
            env={**self.environment, **own},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            pass_fds=[connection, self.descriptor],
            start_new_session=True,  # the terminal's Ctrl-C goes to the launcher alone
            preexec_fn=dies_with(os.getpid()),
        )

    def _serve_pmi(self, rank: int, source: socket.socket) -> None:
        def serve() -> None:
            if not self.pmi.serve(rank, source):
                self.selector.unregister(source)
                source.close()

        self.selector.register(source, selectors.EVENT_READ, serve)

    def find_deaths(self) -> bool:
        for rank in range(len(self.children)):
            self._note(rank)
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.kill_ranks()
        return len(self.deaths) == len(self.children)

    def _note(self, rank: int) -> None:
        code = self.children[rank].poll()
        if code is None or rank in self.deaths:
            return
        self.deaths.append(rank)
        self.code = self.code or (128 - code if code < 0 else code)

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        living = len(self.deaths) < len(slots)
        gone = [slots[rank] for rank in self.deaths if self._out_of_order(slots[rank], living)]
        if self.pmi.aborted is not None:
            self.code, self.fault = self.pmi.aborted, True
            self.kill_ranks()
        elif self.launcher_gone and living:
            os.dup2(self.stderr, 2)
            self.launched = False
            self.end(
                f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.hosts[0]} died, which had started "
                f"{names(slots, self.hosts)}; so do they"
            )
        elif gone and not self.failed:
            self._end_for(gone[0])
        elif overdue and not self.failed:
            self.end_hung(overdue[0], slots)
        elif self.failed and self.deaths and self.deadline is None:
            self.deadline = time.monotonic() + GRACE  # it should have aborted the others

    def _out_of_order(self, slot: Slot, living: bool) -> bool:
        if slot.state in (LEAVING, FAILED):
            return False
        return bool(self.children[slot.rank].poll()) or (living and slot.rank not in self.pmi.leaving)

    def _end_for(self, slot: Slot) -> None:
        """End the others for a rank that has ended; tell why it did, unless it may have told that itself."""
        code = self.children[slot.rank].poll()
        if slot.state != STARTING and -code not in TO_END:
            self.end_dead(slot, f"it ended with exit code {code}") if code >= 0 else self.end_dead(slot)
            return
        self.fault, self.deadline = True, time.monotonic() + TICK
        self.code = self.code or 1
        records.send({"rank": slot.rank, "code": self.code, "signal": max(0, -code)})

    def kill_ranks(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()

    def finish(self) -> int:
        """Returns the exit code of MPI_Abort, or of the first rank that ended with one; 128 and more for a signal."""
        if self.launcher_gone:
            for process in processes_of(os.environ.get(JOB, "")):
                if process != os.getpid():
                    Process(process).kill()
        return self.code
