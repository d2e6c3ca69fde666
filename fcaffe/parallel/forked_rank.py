"""The watch over a rank that MPI's launcher, such as mpiexec or srun, has started.

The process that the launcher knows becomes the agent of the rank, which is its child. So the launcher ends the job only
when the agent has said how the rank died. Agents of different ranks do not talk to one another.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
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
    child = os.fork()
    if child == 0:
        os.setsid()  # the terminal's Ctrl-C goes to the agent, which passes it on
        dies_with(parent)()
        return mmap.mmap(table, 0)
    os.set_inheritable(table, True)
    path = os.pathsep.join(filter(None, (FOLDER, os.environ.get("PYTHONPATH"))))
    words = [*AGENT, json.dumps({"rank": rank, "size": size, "timeout": timeout, "pid": child, "table": table})]
    os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": path})


class ForkedRank(Watch):
    """`launched`: fcaffe's launcher has started MPI's launcher, and gets its standard error."""

    def __init__(self, rank: int, size: int, timeout: float, pid: int, table: int) -> None:
        self.launched = LAUNCHED in os.environ
        memory, hosts = mmap.mmap(table, 0), [host_name()] * max(size, rank + 1)
        memory[:] = Slot(rank, pid, 0, -1, STARTING, "the start").pack() if not any(memory[:]) else memory[:]
        super().__init__(memory, [Forked(pid)], hosts, timeout, Orders() if self.launched and rank == 0 else None)
        self._patience = 0.0
        for number in TO_END:
            signal.signal(number, lambda number, _: self.children[0].send_signal(number))

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
        """A rank that waits for others is not to blame, so their agents have time to say more."""
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
