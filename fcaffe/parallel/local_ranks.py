"""The watch over ranks that the agent has started itself, as its children.

The kernel tells the agent how each rank has ended, and ends the ranks if the agent dies.
"""

from __future__ import annotations

import mmap
import os
import selectors
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from fcaffe import log
from fcaffe.parallel import records
from fcaffe.parallel.blame import names
from fcaffe.parallel.pmi import PmiServer
from fcaffe.parallel.processes import JOB, LAUNCHER, dies_with, kill_processes_of
from fcaffe.parallel.records import Orders
from fcaffe.parallel.watch import Watch
from fcaffe.parallel.watchdog import FAILED, LEAVING, SLOT, STARTING, TABLE, Slot, create_table


class LocalRanks(Watch):
    """The `count` ranks of this host, from rank `first` on, of a job with the ranks `hosts`.

    They are processes that run `program` in `folder`. `mapping` tells MPICH which ranks share a host. The launcher
    counts as dead after `silence` seconds without an order; 0 for no limit, on the launcher's own host. `stderr` is a
    descriptor of the launcher's standard error. The agent writes there if the launcher has died.
    """

    def __init__(
        self,
        orders: Orders,
        program: Sequence[str],
        environment: Mapping[str, str],
        hosts: Sequence[str],
        first: int,
        count: int,
        mapping: str,
        timeout: float = 0.0,
        silence: float = 0.0,
        folder: str = ".",
        stderr: int | None = None,
    ) -> None:
        self.descriptor = create_table(count)
        table = mmap.mmap(self.descriptor, 0)
        for index in range(count):
            slot = Slot(first + index, 0, 0, -1, STARTING, "the start")
            table[index * SLOT.size : (index + 1) * SLOT.size] = slot.pack()
        super().__init__(table, [], hosts, timeout, orders)
        self.program = program
        self.environment = environment
        self.silence = silence
        self.folder = folder
        self.stderr = stderr
        self.name = f"{environment[JOB]}.{first}"  # of the processes on this host; a machine may emulate several
        self.pmi = PmiServer(environment[JOB], first, count, len(hosts), mapping, self.meet)
        for rank in range(first, first + count):
            ours, theirs = socket.socketpair()
            with theirs:
                own = {**self.pmi.environment(rank, theirs.fileno()), TABLE: str(self.descriptor), JOB: self.name}
                self.children.append(self.start(own, theirs.fileno()))
            self._serve_pmi(rank, ours)

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

    def meet(self, values: dict[str, str]) -> None:
        """All ranks of this host are in a barrier and have put these values."""
        records.send_items("put", values.items(), barrier=True)

    def obey(self, orders: Sequence[dict[str, Any]]) -> None:
        """End a barrier, too, with the values that the ranks of all hosts have put."""
        for order in orders:
            if "values" in order:
                self.pmi.release(dict(order["values"]))
        super().obey(orders)

    def look(self, seconds: float) -> None:
        self.launcher_gone |= 0 < self.silence < self.unheard
        super().look(seconds)

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        if self.pmi.aborted is not None:
            rank, self.code = self.pmi.aborted
            self.fault = True
            self.tell({"rank": rank, "code": self.code})
            self.kill_ranks()
        else:
            super().judge(slots, overdue)

    def out_of_order(self, index: int, slot: Slot, living: bool) -> bool:
        """A rank that ends with 0 before it has left MPI is a fault, too."""
        if super().out_of_order(index, slot, living):
            return True
        return slot.state not in (LEAVING, FAILED) and living and slot.rank not in self.pmi.leaving

    def orphaned(self, slots: list[Slot]) -> None:
        if self.stderr is not None:
            os.dup2(self.stderr, 2)
            log.fatal(
                f"fcaffe's launcher (process {os.environ.get(LAUNCHER)}) on {self.hosts[0]} died, which had started "
                f"{names(slots, self.hosts)}; so do they"
            )
        else:  # the launcher may have been stopped for a while, or the link is slow
            message = f"{names(slots, self.hosts)} got no order of fcaffe's launcher for {self.unheard:.0f} s"
            self.tell({"code": records.FATAL, "fault": True, "message": message})
        super().orphaned(slots)

    def finish(self) -> int:
        """Returns the exit code of MPI_Abort, or of the first rank that ended with one; 128 and more for a signal."""
        if self.launcher_gone or self.fault:
            kill_processes_of(self.name)
        return self.code
