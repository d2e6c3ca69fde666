"""A process that the launcher has started for a job: the agent of a host, here or at the end of ssh, or mpiexec."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

from fcaffe.parallel import records
from fcaffe.parallel.table import Slot

LAST_WORDS = 5  # seconds until what a process has written before its end is read


class Output:
    """Where the launcher writes what its members print. After the record of a job's end, nothing more is written: what
    the other ranks and mpiexec say then has its cause in that end. `unwritten`: the error because of which the ranks'
    standard output is incomplete."""

    def __init__(self) -> None:
        self.closed = False
        self.unwritten: OSError | None = None

    def write(self, text: bytes, target: Any) -> None:
        try:  # if nobody reads it any more the job goes on
            target.write(text.decode(errors="backslashreplace"))
            target.flush()
        except OSError as problem:
            self.unwritten = problem


class Member:
    """`host` is the one on which the ranks run, empty for mpiexec, whose `name` is told; `remote`: at the end of ssh.
    `stderr` is the descriptor by which an agent of this host can reach the launcher's standard error.

    Its records go to `events` as (member, record), and its end as (member, None), when `code` is known. `ready`: it
    waits for the order to start ranks. `slots` are its ranks as last heard of, and `unheard` the seconds since then.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        host: str,
        events: Events,
        output: Output,
        remote: bool = False,
        stderr: int | None = None,
        name: str = "",
    ) -> None:
        self.process = process
        self.host = host
        self.remote = remote
        self.stderr = stderr
        self.name = name
        self.events = events
        self.output = output
        self.ready = False
        self.code: int | None = None
        self.slots: dict[int, Slot] = {}
        self.unheard = 0.0
        self.put: list[Any] = []  # what its ranks have put into the key-value space since the last barrier
        self.in_barrier = False
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

    def dismiss(self) -> None:
        """Let an agent end that has not been told to start ranks."""
        self._orders.put(b"")

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
                # mpiexec has words of its own on an end whose cause is known: it names ranks that it has killed.
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
        self.dismiss()
        for reader in self._readers:
            reader.join(LAST_WORDS)  # a process that a rank has started may still hold the pipes
        self.events.put((self, None))


Events = queue.SimpleQueue[tuple[Member, dict[str, Any] | None]]
