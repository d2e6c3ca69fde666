"""A process that the launcher has started for a job: the agent of a host, ssh to another host's agent, or mpiexec."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from fcaffe.parallel import records
from fcaffe.parallel.watchdog import Slot

LAST_WORDS = 5  # seconds until what a process has written before its end is read


class Output:
    """The launcher's output, to which it forwards what its members print.

    Attributes:
        closed: Nothing more is forwarded. After the end of a job, other ranks and mpiexec only print its consequences.
        unwritten: The error while forwarding standard output, which is therefore incomplete.
    """

    def __init__(self) -> None:
        self.closed = False
        self.unwritten: OSError | None = None

    def write(self, text: bytes, target: Any) -> None:
        try:  # if nobody reads it any more the job goes on
            target.write(text.decode(errors="backslashreplace"))
            target.flush()
        except OSError as problem:
            self.unwritten = problem


@dataclass(eq=False)
class Member:
    """A process of a job.

    Attributes:
        process: The agent, ssh or mpiexec.
        host: The host on which the ranks run; empty for mpiexec, which messages call `name`.
        events: Takes its records as (member, record), and its end as (member, None), when `code` is known.
        output: Takes what it prints.
        remote: It is at the end of ssh.
        stderr: The descriptor by which an agent of this host can reach the launcher's standard error.
        ready: It waits for the order to start ranks.
        slots: Its ranks, as last heard of.
        unheard: Seconds since its last record.
        put: What its ranks have put into the key-value space since the last barrier.
    """

    process: subprocess.Popen[bytes]
    host: str
    events: Events
    output: Output
    remote: bool = False
    stderr: int | None = None
    name: str = ""
    ready: bool = False
    code: int | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    unheard: float = 0.0
    put: list[Any] = field(default_factory=list)
    in_barrier: bool = False

    def __post_init__(self) -> None:
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        tasks = (self._out, self._err, self._write, self._wait)
        threads = [threading.Thread(target=task, daemon=True) for task in tasks]
        self._readers = threads[:2]
        for thread in threads:
            thread.start()

    def __str__(self) -> str:
        if not self.host:
            return f"{self.name} (process {self.process.pid})"
        return f"the agent on {self.host}" if self.remote else f"the agent (process {self.process.pid}) on {self.host}"

    def order(self, **order: Any) -> None:
        """Send an order to an agent, which may be slow to read it."""
        self._orders.put(json.dumps(order).encode() + b"\n")

    def kill(self) -> None:
        """End the agent, with which the kernel ends the ranks; or ssh or mpiexec, and what it has started here. On
        other hosts the agents notice it, or MPI's processes."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    # --- threads ------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError), self.process.stdin as stdin:  # it has ended meanwhile
            while order := self._orders.get():
                stdin.write(order)
                stdin.flush()

    def _out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                # mpiexec also prints the ranks that it has killed.
                if self.host or not self.output.closed:
                    self.output.write(line, sys.stdout)

    def _err(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                text, record = records.split(line)
                if text and not self.output.closed:
                    self.output.write(text, sys.stderr)
                if record is not None:
                    self.ready |= "ready" in record
                    self.output.closed |= "code" in record
                    self.events.put((self, record))

    def _wait(self) -> None:
        self.code = self.process.wait()
        self._orders.put(b"")  # ends _write
        for reader in self._readers:
            reader.join(LAST_WORDS)  # a process that a rank has started may still hold the pipes
        self.events.put((self, None))


Events = queue.SimpleQueue[tuple[Member, dict[str, Any] | None]]
