"""The agents of a job's hosts, as the launcher sees them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence

from fcaffe.jobs.blame import names
from fcaffe.jobs.frames import Lines, Link, Message
from fcaffe.jobs.output import Output
from fcaffe.jobs.ranks import SILENCE, Slot

CALL = 60.0  # seconds that an agent has until it is ready
CALLING, READY, GONE = "calling", "ready", "gone"  # states of a member


class Member:
    """An agent, or a remote shell to one.

    Attributes:
        state: CALLING until the agent is READY for an order; GONE after the end of the process.
        host: Where the ranks run.
        here: The agent is on this host.
        problem: Why the agent cannot start ranks.
        quiet: What it prints outside of frames is not forwarded.
        listener: Takes its messages, as (member, message).
        slots: Its ranks, as last heard of.
        unheard: Seconds since its last message.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
        output: Output,
        host: str,
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process, self.host, self.output = process, host, output
        self.state = CALLING
        self.here = self.quiet = False
        self.problem = ""
        self.listener: Callable[[Member, Message], object] = lambda member, message: None
        self.slots: list[Slot] = []
        self.unheard = 0.0
        self.values: dict[str, str] | None = None  # that its ranks have put, since they are in a barrier
        self.link = Link(selector, process.stdout.fileno(), process.stdin.fileno(), self._hear)
        self.errors = Link(selector, process.stderr.fileno(), None, self._print, Lines())

    def __str__(self) -> str:
        return f"the agent (process {self.process.pid}) on {self.host}" if self.here else f"the agent on {self.host}"

    def _hear(self, message: Message | str | None) -> None:
        self.unheard = 0.0
        if not isinstance(message, dict):
            self._print(message, "stdout")
            return
        if "ready" in message:
            self.state, self.here = READY, message["here"]
        self.problem = message.get("unfit", self.problem)
        for stream in ("stdout", "stderr"):
            if stream in message:
                self.output.write(stream, message[stream])
        self.listener(self, message)

    def _print(self, text: str | None, stream: str = "stderr") -> None:
        if text and not self.quiet:
            self.output.write(stream, text)

    def tick(self, seconds: float) -> None:
        self.unheard += seconds
        if self.state != GONE and self.process.poll() is not None:
            for link in (self.link, self.errors):
                link.drain()
                link.close()
            self.state = GONE
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def why_not_ready(self) -> str:
        """The message about an agent that did not come to be ready."""
        if self.problem:
            return f"{self.host}: {self.problem}"
        if self.state != GONE:
            return f"{self} cannot be reached: it is not ready after {CALL:g} s"
        return (
            f"{self.host}: its agent ended with code {self.process.returncode} before the ranks had started; what it "
            "said stands above, and docs/distributed.md has a section on hosts that do not start"
        )

    def why_lost(self, hosts: Sequence[str], when: str) -> str:
        """The message about an agent whose ranks have not ended; `hosts` are those of all ranks."""
        silence = f"no sign of life for {self.unheard:.0f} s"
        if self.problem:
            return f"{self}: {self.problem}"
        if self.state == GONE:
            return f"{self} died, {when}, and the ranks with it"
        if self.slots:
            where = self.slots[0].where()
            return f"{names(self.slots, hosts)} is cut off from the other hosts since {where}: {silence}"
        return f"{self} cannot be reached: {silence}, {when}"

    def is_lost(self) -> bool:
        """Whether an agent without ranks has gone, or is silent."""
        return self.state == GONE or bool(self.problem) or self.unheard > (CALL if self.state == CALLING else SILENCE)

    def kill(self) -> None:
        """End the agent, with which the kernel ends the ranks; or the remote shell, and what it has started here. On
        other hosts the agents notice it."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
