"""The agents of a job's hosts, as the launcher sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence

from fcaffe.jobs.frames import MESSAGE, STDERR, STDOUT, TEXT, Lines, Message
from fcaffe.jobs.loop import Link, Loop, Stream, own
from fcaffe.jobs.output import Output
from fcaffe.jobs.ranks import Slot, names
from fcaffe.jobs.silences import CALL

CALLING, READY, GONE = "calling", "ready", "gone"  # states of a member


class Member:
    """An agent, or a carrier to one on another host.

    Attributes:
        state: CALLING until the agent is READY for an order; GONE after the end of the process.
        host: Where the ranks run.
        name: Marks all processes of the agent (`processes.JOB`).
        here: The agent is on this host.
        problem: Why the agent cannot start ranks.
        cut: Seconds without a sign of the host, after which the link counts as cut.
        quiet: What it prints outside of frames is not forwarded.
        listener: Takes its messages, as (member, message).
        slots: Its ranks, as last heard of.
        unheard: Seconds since its last message.
    """

    def __init__(self, loop: Loop, process: subprocess.Popen[bytes], output: Output, host: str, name: str) -> None:
        self.process, self.host, self.output, self.name = process, host, output, name
        self.state = CALLING
        self.here = self.quiet = False
        self.problem = ""
        self.cut = 0.0
        self.listener: Callable[[Member, Message], object] = lambda member, message: None
        self.slots: list[Slot] = []
        self.unheard = 0.0
        self.values: dict[str, str] | None = None  # that its ranks have put, since they are in a barrier
        self.link = Link(loop, own(process.stdout), own(process.stdin), self._hear)
        self.errors = Stream(loop, own(process.stderr), None, self._print, Lines())

    def __str__(self) -> str:
        return f"the agent (process {self.process.pid}) on {self.host}" if self.here else f"the agent on {self.host}"

    @property
    def is_lost(self) -> bool:
        return self.state == GONE or bool(self.problem or self.cut)

    def _hear(self, kind: int, content: bytes) -> None:
        self.unheard = 0.0
        if kind in (STDOUT, STDERR):
            self.output.write(kind, content)
        elif kind == TEXT:
            self._print(kind, content)
        elif kind == MESSAGE:
            message = json.loads(content)
            if "ready" in message:
                self.state, self.here = READY, message["here"]
            self.problem = message.get("unfit", self.problem)
            self.cut = message.get("cut", self.cut)
            self.listener(self, message)
        elif content:
            self.problem = content.decode()

    def _print(self, kind: int, text: bytes) -> None:
        if kind == TEXT and not self.quiet:
            self.output.write(STDERR, text)

    def look(self, seconds: float) -> None:
        """Note that so many seconds have passed, and whether the process has ended."""
        self.unheard += seconds
        if self.state != GONE and self.process.poll() is not None:
            for stream in (self.link, self.errors):
                stream.drain()
                stream.close()
            self.state = GONE

    def why_not_ready(self) -> str:
        """The message about an agent that did not come to be ready."""
        if self.problem:
            return f"{self.host}: {self.problem}"
        if self.cut == CALL:
            return f"{self} cannot be reached: it is not ready after {CALL:g} s"
        if self.cut:
            return f"{self} cannot be reached: no sign of life for {self.cut:g} s"
        return (
            f"{self.host}: its agent ended with code {self.process.returncode} before the ranks had started; what it "
            "said stands above, and docs/distributed.md has a section on hosts that do not start"
        )

    def why_lost(self, hosts: Sequence[str], when: str) -> str:
        """The message about an agent whose ranks have not ended; `hosts` are those of all ranks."""
        if self.problem:
            return f"{self}: {self.problem}"
        if not self.cut:
            return f"{self} died, {when}, and the ranks with it"
        silence = f"no sign of life for {self.cut:g} s"
        if self.slots:
            return f"{names(self.slots, hosts)} is cut off from the other hosts since {self.slots[0].doing}: {silence}"
        return f"{self} cannot be reached: {silence}, {when}"

    def kill(self) -> None:
        """End the agent, with which the kernel ends the ranks; or the carrier and its remote shell, whose end the agent
        of the other host notices."""
        if self.process.poll() is None:  # otherwise the number may be another process's by now
            os.killpg(self.process.pid, signal.SIGKILL)
