"""Starts the ranks of a job that was started alone, with the machine's mpiexec, and stays until they have ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from fcaffe import log
from fcaffe.parallel import relay
from fcaffe.parallel.guard import MARK
from fcaffe.parallel.mpiexec import find_mpiexec, outside_environment
from fcaffe.parallel.watchdog import DEFAULT_TIMEOUT
from fcaffe.parallel.world import LAUNCHED

FATAL = 134
ORDERLY = (0, 1, 130, FATAL, 141, 143)  # a rank that ends with another code has not said why: that is a fault
MARGIN = 30  # seconds beyond the time-out of the ranks, who notice first, before the launcher gives a job up
AFTERMATH = 15  # seconds that mpiexec has to end after a rank's fatal line; if the network is cut it may wait for ever
RETRY, PATIENCE = 5, 900  # seconds between attempts to start again, and of all of them: a host may need to come back

FATAL_LINE = re.compile(rb"F\d{4} \S+ +\d+ (\S+)\] (.*)")
# What MPICH's mpiexec says of a dead rank; it names any of those that it killed then, so it would mislead.
MISLEADING = re.compile(
    rb"=+$|=   ( *PID|EXIT CODE|BAD TERMINATION|CLEANING UP|YOU CAN IGNORE)|YOUR APPLICATION TERMINATED WITH|"
    rb"This typically refers to a problem with your app|Please see the FAQ page for debug"
)


@dataclass(frozen=True)
class Plan:
    """What is to be started where. `hosts` (name, ranks) is empty for this host alone; `timeout` is in seconds."""

    workers: int
    hosts: tuple[tuple[str, int], ...] = ()
    mpi_args: str = ""
    timeout: float = DEFAULT_TIMEOUT
    restarts: int = 0


def launch(plan: Plan, words: Sequence[str], newest_snapshot: Callable[[], str | None] = lambda: None) -> int:
    """Run `fcaffe WORDS` on all workers; returns its exit code.

    After a fault it starts again, up to `plan.restarts` times, from `newest_snapshot()`, or, without one, as at first.
    Raises UsageError if there is no MPI.
    """
    mpiexec = find_mpiexec()
    environment = {**outside_environment(), LAUNCHED: str(plan.workers)}

    def run(*more: str) -> Job:
        program = [*_program(), *words, *more]
        job = Job(
            mpiexec.command(plan.workers, plan.hosts, plan.mpi_args, program, environment), environment, plan.timeout
        )
        job.run()
        return job

    job = run()
    for restart in range(1, plan.restarts + 1):
        if not job.fault:
            break
        path = newest_snapshot()
        log.warning(
            f"{job.reason}Restart {restart} of {plan.restarts}, " + (f"from {path}" if path else "from the start")
        )
        more = [f"--snapshot={path}", "--weights="] if path else []
        deadline = time.monotonic() + PATIENCE
        job = run(*more)
        while job.fault and not job.started and time.monotonic() < deadline:
            log.warning(f"{job.reason}The next attempt to start the ranks is in {RETRY} s")
            time.sleep(RETRY)
            job = run(*more)
    if job.reason:
        log.fatal(job.reason)
    if job.unwritten is not None and not job.code:
        raise job.unwritten
    return job.code


def _program() -> list[str]:
    """How this command was called, so that a rank is called alike."""
    script = sys.argv[0]
    if os.path.basename(script) in ("fcaffe", "caffe") and os.path.isfile(script):
        return [sys.executable, os.path.abspath(script)]
    return [sys.executable, "-m", "fcaffe"]


class Job:
    """One run of mpiexec.

    `started`: all ranks have found one another. `fault`: it did not end by itself, nor by an error that would come
    again. `reason`: why, if nobody has told it yet. `iteration`: the last that is known. `unwritten`: the error because
    of which what the ranks printed, to a standard output that is more than a log, is not whole.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], timeout: float) -> None:
        self.command = command
        self.environment = environment
        self.timeout = timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.started = False
        self.fault = False
        self.reason = ""
        self.iteration = -1
        self.code = 0
        self.unwritten: OSError | None = None
        self._interrupted = 0  # by this signal
        self._fatal_from = ""  # source file of the first fatal line
        self._told: float | None = None  # when it came
        self._silence = 0  # seconds since the last report

    def run(self) -> None:
        with self._signals():
            log.info("Starting the ranks: " + shlex.join(self.command))
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # the terminal's Ctrl-C goes to us alone
                preexec_fn=_die_with_parent,
            )
            if self._interrupted:
                self._kill()
            streams = (
                (self.process.stdout, sys.stdout, self._pass_out),
                (self.process.stderr, sys.stderr, self._pass_err),
            )
            threads = [threading.Thread(target=self._copy, args=stream, daemon=True) for stream in streams]
            for thread in threads:
                thread.start()
            code = self._wait(self.process)
            for thread in threads:
                thread.join(AFTERMATH)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self._conclude(code)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
            self._silence += 1
            if 0 < self.timeout < self._silence - MARGIN:
                self.reason = f"No sign of life of rank 0 for {self._silence} s, {self._last()}. "
                self._kill()
            elif self._told is not None and time.monotonic() - self._told > AFTERMATH:
                self._kill()

    def _conclude(self, code: int) -> None:
        orderly = code in ORDERLY and self._fatal_from != "guard.py"
        self.fault = not orderly and not self._interrupted
        if self._interrupted and code != 0:
            self.code = 128 + self._interrupted
        else:
            self.code = code if orderly else FATAL
        if not self.fault or self._told is not None:
            self.reason = ""
        elif not self.reason:
            self.reason = f"{self.command[0]} ended with code {code}, {self._last()}; what it said stands above. "

    def _last(self) -> str:
        if not self.started:
            return "before the ranks had started"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    # --- what the ranks say -------------------------------------------------------------------------------------------

    def _copy(self, source: IO[bytes], target: Any, wanted: Callable[[bytes], bytes]) -> None:
        for line in source:
            text = wanted(line)
            if text:
                try:  # if nobody reads it any more the job goes on
                    target.write(text.decode(errors="backslashreplace"))
                    target.flush()
                except OSError as problem:
                    self.unwritten = problem

    def _pass_out(self, line: bytes) -> bytes:
        before, mark, report = line.partition(MARK)
        if mark:
            self.started, self._silence = True, 0
            self.iteration = int(report)
            return before
        return b"" if MISLEADING.match(line) else line

    def _pass_err(self, line: bytes) -> bytes:
        if self._told is not None:  # what the others, and mpiexec, say now has its cause in what was told
            return b""
        fatal = FATAL_LINE.match(line)
        if fatal is None:
            return line
        source, message = fatal[1].decode(), fatal[2].decode(errors="backslashreplace")
        self._fatal_from, self._told = source.partition(":")[0], time.monotonic()
        if self._fatal_from != "guard.py" and message.startswith("rank 0 "):
            return line
        log.fatal(message, source)  # into the log files too, to which of the ranks only rank 0 writes
        return b""

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._relay) for number in relay.RELAYED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _relay(self, number: int, _: FrameType | None) -> None:
        """To rank 0. If there is none yet, or a second SIGTERM says that it takes too long, end all at once."""
        again = self._interrupted == number
        if number == signal.SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            self._kill()
        elif self.process is not None and self.process.stdin is not None:
            relay.send(number, self.process.stdin)

    def _kill(self) -> None:
        """mpiexec, and what it has started here; on other hosts MPI's processes notice that it has gone."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """In mpiexec's process before it becomes mpiexec: if the launcher is killed, so is it, and the ranks after it."""
    if _libc is not None:
        _libc.prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
