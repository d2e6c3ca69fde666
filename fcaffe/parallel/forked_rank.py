"""The watch over a rank that MPI's launcher, such as mpiexec or srun, has started.

The process that the launcher has started becomes the agent, and the rank is its child. So the launcher ends the job
only after the agent has reported how the rank died. Agents of different ranks do not communicate.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from fcaffe import log
from fcaffe.parallel.processes import AGENT, FOLDER, dies_with
from fcaffe.parallel.records import Orders
from fcaffe.parallel.started import LAUNCHED, host_name
from fcaffe.parallel.watch import GRACE, TO_END, Watch
from fcaffe.parallel.watchdog import STARTING, WAITING, Slot, create_table

# Slurm says that a value of PMI-1 may have 1024 characters, but it cuts a message there that has the value's name, too.
# MPICH needs an even number: it divides an odd one differently when it writes values and when it reads them.
LONGEST_VALUE = 896


class Forked:
    """A child, with the methods of subprocess.Popen that a watch uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if process else None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(rank: int, size: int, timeout: float) -> mmap.mmap:
    """Return in the child, which goes on as this rank, with its heartbeat table. This process becomes its agent."""
    table, parent = create_table(1), os.getpid()
    ours, theirs = socket.socketpair()
    is_relayed = {"SLURM_STEP_ID", "PMI_FD"} <= os.environ.keys()
    child = os.fork()
    if child == 0:
        os.setsid()  # the terminal's Ctrl-C goes to the agent, which passes it on
        dies_with(parent)()
        if is_relayed:
            os.dup2(theirs.fileno(), int(os.environ["PMI_FD"]))
        ours.close()
        theirs.close()
        return mmap.mmap(table, 0)
    os.set_inheritable(table, True)
    ours.set_inheritable(is_relayed)
    setup = {"rank": rank, "size": size, "timeout": timeout, "pid": child, "table": table}
    path = os.pathsep.join(filter(None, (FOLDER, os.environ.get("PYTHONPATH"))))
    words = [*AGENT, json.dumps({**setup, "relay": ours.fileno() if is_relayed else None})]
    os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": path})


class ForkedRank(Watch):
    """`launched`: fcaffe's launcher has started MPI's launcher, and gets its standard error. `relay` is a descriptor of
    the socket by which the rank speaks PMI-1; None if it speaks to MPI's launcher itself."""

    def __init__(self, rank: int, size: int, timeout: float, pid: int, table: int, relay: int | None) -> None:
        self.launched = LAUNCHED in os.environ
        memory, hosts = mmap.mmap(table, 0), [host_name()] * max(size, rank + 1)
        memory[:] = Slot(rank, pid, 0, -1, STARTING, "the start").pack() if not any(memory[:]) else memory[:]
        super().__init__(memory, [Forked(pid)], hosts, timeout, Orders() if self.launched and rank == 0 else None)
        self._patience = 0.0
        for number in TO_END:
            signal.signal(number, lambda number, _: self.children[0].send_signal(number))
        if relay is not None:
            of_rank, of_slurm = socket.socket(fileno=relay), socket.socket(fileno=int(os.environ["PMI_FD"]))
            self._pass_on(of_rank, of_slurm)
            self._pass_on(of_slurm, of_rank)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        """Pass on messages of PMI-1, and lower the limit of a value's length that is in one of them."""

        def pass_on() -> None:
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(1 << 16)
                target.sendall(re.sub(rb"vallen_max=\d+", b"vallen_max=%d" % LONGEST_VALUE, data))
            if not data:
                self.selector.unregister(source)

        self.selector.register(source, selectors.EVENT_READ, pass_on)

    def share(self, slots: list[Slot]) -> None:
        if self.launched:
            super().share(slots)

    def tell(self, record: dict[str, Any]) -> None:
        if self.launched:
            super().tell(record)
        elif "message" in record:
            log.fatal(record["message"])
        if record.get("fault") and "SLURM_STEP_ID" in os.environ:  # srun goes on without a task that has failed
            step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
            subprocess.run(["scancel", "--signal=KILL", step], capture_output=True)

    def judge(self, slots: list[Slot], overdue: list[Slot]) -> None:
        """Wait before a rank that waits for others is blamed: their agents may report the cause."""
        if overdue and not self.launched and overdue[0].state == WAITING:
            self._patience = self._patience or time.monotonic() + GRACE
            if time.monotonic() < self._patience:
                return
        super().judge(slots, overdue)

    def hung(self, first: Slot, slots: list[Slot]) -> str:
        if first.state != WAITING:
            return super().hung(first, slots)
        return (
            f"rank {first.rank} (process {first.pid}) on {self.hosts[0]} did not come out of {first.where()} within "
            f"{self.timeout:g} s (--timeout): it waits for a rank that hangs or cannot be reached"
        )

    def finish(self) -> int:
        return 134 if self.fault and self.code > 128 and not self.launched else self.code
