"""One run of the ranks: started, listened to, told to end, and cleared away."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import IO, Any

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel import leftovers, relay
from fcaffe.parallel.guard import MARK, that_counts
from fcaffe.parallel.local_ranks import LocalRanks
from fcaffe.parallel.mpiexec import MpiexecRun

FATAL = 134
ASKED_FOR = (129, 130, 143)  # exit codes of a rank that was told to end: SIGHUP, SIGINT, SIGTERM
ORDERLY = (0, 1, *ASKED_FOR, FATAL, 141)  # a rank that ends with another code has not said why: that is a fault
FAULTS_FROM = "guard.py", "watchdog.py", "world.py"  # files of the fatal lines that tell of one, whatever the code
# Codes of mpiexec when a rank that did not yet listen to signals, or mpiexec itself, was told to end.
TOLD_TO_END = {int(number): int(number) for number in (signal.SIGINT, signal.SIGTERM)}
TICK = 1.0  # seconds
MARGIN = 30  # seconds beyond the time-out of the ranks, who notice first, before the launcher gives a job up
LAST_WORDS = 5  # seconds that the guard has to end after the ranks
AFTERMATH = 15  # seconds that mpiexec has to end after a rank's fatal line; if the network is cut it may wait for ever

FATAL_LINE = re.compile(rb"F\d{4} \S+ +\d+ (\S+)\] (.*)")
# With that MPICH ends, by a code that is most often 143: that of SIGTERM, which nobody has sent.
NO_START = re.compile(rb"Abort\(\d+\).*: Fatal error in \w*Init")
# What MPICH's mpiexec says of a dead rank; it names any of those that it killed then, so it would mislead.
MISLEADING = re.compile(
    rb"=+$|=   ( *PID|EXIT CODE|BAD TERMINATION|CLEANING UP|YOU CAN IGNORE)|YOUR APPLICATION TERMINATED WITH|"
    rb"This typically refers to a problem with your app|Please see the FAQ page for debug"
)


class Job:
    """One run of the ranks, which `start` starts; `command` says in the log how. Their processes on this host have
    `name` in their environment.

    `started`: all ranks have found one another. `fault`: it did not end by itself, nor by an error that would come
    again. `asked_to_end`: one of the signals `stops` has come, which make ranks end, if they still can. `reason`: why
    it ended, if nobody has told it yet. `iteration`: the last that is known. `unwritten`: the error because of which
    what the ranks printed, to a standard output that is more than a log, is not whole.
    """

    def __init__(
        self,
        command: str,
        start: Callable[[], LocalRanks | MpiexecRun],
        name: str,
        timeout: float,
        stops: Collection[int] = (),
    ) -> None:
        self.command = command
        self.start = start
        self.name = name
        self.timeout = timeout
        self.stops = stops
        self.ranks: LocalRanks | MpiexecRun | None = None
        self.started = False
        self.fault = False
        self.asked_to_end = False
        self.reason = ""
        self.iteration = -1
        self.code = 0
        self.unwritten: OSError | None = None
        self._interrupted = 0  # by this signal
        self._fatal_from = ""  # source file of the first fatal line
        self._no_start = False  # MPI has said so
        self._told: float | None = None  # when it came
        self._reports = 0

    def run(self) -> None:
        with self._signals():
            log.info("Starting the ranks: " + self.command)
            ranks = self.ranks = self.start()
            if self._interrupted:
                self._kill()
            streams = (
                (ranks.stdout, sys.stdout, self._pass_out),
                (ranks.stderr, sys.stderr, self._pass_err),
            )
            threads = [threading.Thread(target=self._copy, args=stream, daemon=True) for stream in streams]
            for thread in threads:
                thread.start()
            code = self._wait(ranks)
            self._clear(threads)
        ranks.close()
        self._conclude(ranks, code)

    def _wait(self, ranks: LocalRanks | MpiexecRun) -> int:
        before = began = time.monotonic()
        heard, silence = 0, 0.0  # seconds since the last report, by ticks: this process may be stopped for a while
        while True:
            if (code := ranks.wait(TICK)) is not None:
                return code
            now = time.monotonic()
            silence = silence + min(now - before, 2 * TICK) if self._reports == heard else 0.0
            heard, before = self._reports, now
            if 0 < self.timeout < silence - MARGIN and (self.started or self._starts_too_long(now - began)):
                self.reason = f"No sign of life of rank 0 for {silence:.0f} s, {self._last()}. "
                self._kill()
            elif self._told is not None and time.monotonic() - self._told > AFTERMATH:
                self._kill()

    def _starts_too_long(self, seconds: float) -> bool:
        """Whether that is not because others have the cores. Of the ranks' own time-out that is not counted either."""
        return that_counts(seconds, leftovers.processes_of(self.name)) > self.timeout + MARGIN

    def _clear(self, threads: Sequence[threading.Thread]) -> None:
        """See that nothing of the run is left on this host: neither processes, of which the guard is the last to go by
        itself, nor shared memory of those that were killed."""
        deadline = time.monotonic() + LAST_WORDS
        while (left := leftovers.processes_of(self.name)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for thread in threads:
            thread.join(LAST_WORDS)
        deadline = time.monotonic() + AFTERMATH
        while (left := leftovers.processes_of(self.name)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            raise UsageError(
                f"process {left[0]} of this job cannot be killed: end it before training goes on "
                f"(ps -o stat,wchan -p {left[0]} says what it waits for)"
            )
        leftovers.remove_memory()
        leftovers.remove_folders(self.name)

    def _conclude(self, ranks: LocalRanks | MpiexecRun, code: int) -> None:
        told_to_end = ranks.killed_by if isinstance(ranks, LocalRanks) else TOLD_TO_END.get(code, 0)
        if told_to_end in relay.RELAYED and not self._interrupted:
            self._interrupted = told_to_end
            log.warning(f"{signal.Signals(told_to_end).name} has ended a process of this job, {self._last()}")
        # A rank that was told to end may be gone before the guard knows why.
        orderly = code in ASKED_FOR or (code in ORDERLY and self._fatal_from not in FAULTS_FROM)
        orderly = orderly and not self._no_start
        self.fault = not orderly and not self._interrupted
        if self._interrupted and code != 0:
            self.code = 128 + self._interrupted
        else:
            self.code = code if orderly else FATAL
        if not self.fault or self._told is not None:
            self.reason = ""
        elif not self.reason and ranks.killed_by:
            self.reason = f"rank {ranks.first} was killed by signal {ranks.killed_by}, {self._last()}. "
        elif not self.reason:
            who = f"rank {ranks.first}" if isinstance(ranks, LocalRanks) else self.command.split()[0]
            self.reason = f"{who} ended with code {code}, {self._last()}; what it said stands above. "

    def _last(self) -> str:
        if not self.started:
            return "before the ranks had started"
        return "before the first iteration" if self.iteration < 0 else f"in iteration {self.iteration}"

    # --- what the ranks say -------------------------------------------------------------------------------------------

    def _copy(self, source: IO[bytes], target: Any, wanted: Callable[[bytes], bytes]) -> None:
        with source:
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
            self.started = True
            self._reports += 1
            self.iteration = int(report)
            return before
        return b"" if MISLEADING.match(line) else line

    def _pass_err(self, line: bytes) -> bytes:
        if self._told is not None:  # what the others, and mpiexec, say now has its cause in what was told
            return b""
        fatal = FATAL_LINE.match(line)
        if fatal is None:
            self._no_start |= NO_START.match(line) is not None
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
        self.asked_to_end |= number in self.stops
        if number == signal.SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            self._kill()
        elif self.ranks is not None:
            relay.send(number, self.ranks.stdin)

    def _kill(self) -> None:
        if self.ranks is not None:
            self.ranks.kill()
