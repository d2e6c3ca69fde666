"""One run of a job's ranks, as its launcher sees it: started, listened to, told to end, and cleared away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import IO, Any

from fcaffe import log
from fcaffe.errors import UsageError
from fcaffe.parallel import processes, records
from fcaffe.parallel.records import FATAL
from fcaffe.parallel.started import host_name
from fcaffe.parallel.watch import MARGIN

INTERRUPTED = 130  # of a rank that SIGINT ends while it loads fcaffe
ORDERLY = (0, 1, INTERRUPTED, FATAL, 141)  # a rank that ends with another code has not said why: that is a fault
ASKED_FOR = (129, 143)  # exit codes of a training that SIGHUP or SIGTERM ended
RELAYED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
TICK = 1.0  # seconds
LAST_WORDS = 5  # seconds that the agent has to end after the ranks
AFTERMATH = 8  # seconds that mpiexec has to end after the record of an end; if the network is cut it may wait for ever


class Job:
    """One run of the ranks. `start` starts what starts them: the agent of this host (`by_agent`), or mpiexec; `command`
    says in the log how. Their processes on this host have `name` in their environment.

    `started`: all ranks have found one another. `fault`: it did not end by itself, nor by an error that would come
    again. `asked_to_end`: one of the signals `stops` has come, which make ranks end, if they still can. `iteration`:
    the last that is known. `unwritten`: the error because of which the ranks' standard output is incomplete.
    """

    def __init__(
        self,
        command: str,
        start: Callable[[], subprocess.Popen[bytes]],
        by_agent: bool,
        name: str,
        timeout: float,
        stops: Collection[int] = (),
    ) -> None:
        self.command = command
        self.start = start
        self.by_agent = by_agent
        self.name = name
        self.timeout = timeout
        self.stops = stops
        self.process: subprocess.Popen[bytes] | None = None
        self.started = False
        self.fault = False
        self.asked_to_end = False
        self.iteration = -1
        self.code = 0
        self.unwritten: OSError | None = None
        self._interrupted = 0  # by this signal
        self._ending: dict[str, Any] | None = None  # the first record of why the job ends
        self._ending_since = 0.0
        self._reports = 0
        self._silence = ""  # the message that rank 0 has said nothing for too long

    def run(self) -> None:
        with self._signals():
            log.info("Starting the ranks: " + self.command)
            process = self.process = self.start()
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            if self._interrupted:
                self._kill()
            streams = (
                (process.stdout, sys.stdout, self._pass_out),
                (process.stderr, sys.stderr, self._pass_err),
            )
            threads = [threading.Thread(target=self._copy, args=stream, daemon=True) for stream in streams]
            for thread in threads:
                thread.start()
            code = self._wait(process)
            self._clear(threads)
        with contextlib.suppress(OSError):
            process.stdin.close()
        self._conclude(code)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        before = time.monotonic()
        heard, silence = 0, 0.0  # seconds since the last report, by ticks: this process may be stopped for a while
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(TICK)
            now = time.monotonic()
            silence = silence + min(now - before, 2 * TICK) if self._reports == heard else 0.0
            heard, before = self._reports, now
            if 0 < self.timeout < silence - 2 * MARGIN:
                self._silence = f"No sign of life of rank 0 for {silence:.0f} s, {self._last()}"
                self._kill()
            elif self._ending is not None and now - self._ending_since > AFTERMATH:
                self._kill()

    def _clear(self, threads: Sequence[threading.Thread]) -> None:
        """See that nothing of the run is left on this host: neither processes nor shared memory of killed ones."""
        left = self._left(LAST_WORDS)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for thread in threads:
            thread.join(LAST_WORDS)
        if left := self._left(AFTERMATH):
            raise UsageError(
                f"process {left[0]} of this job cannot be killed: end it before training goes on "
                f"(ps -o stat,wchan -p {left[0]} says what it waits for)"
            )
        processes.remove_memory()

    def _left(self, seconds: float) -> list[int]:
        """The processes of this run that are still there after so many seconds at most."""
        deadline = time.monotonic() + seconds
        while (left := processes.processes_of(self.name)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def _conclude(self, code: int) -> None:
        """Set `fault` and `code` from the record of the end, or else from the exit code of the process; log why the job
        ended if nobody has done so."""
        ending = self._ending or {}
        if not ending:
            number = -code if code < 0 else code if code in RELAYED and not (self.by_agent or self.started) else 0
            orderly = code in (*ORDERLY, *ASKED_FOR)
        else:
            number, code = ending.get("signal", 0), ending["code"]
            orderly = code in ORDERLY and not ending.get("fault")
        if number in RELAYED and not self._interrupted:
            self._interrupted = number
            log.warning(f"{signal.Signals(number).name} has ended a process of this job, {self._last()}")
        self.fault = not orderly and not self._interrupted
        if self._interrupted and code != 0:
            self.code = 128 + self._interrupted
        else:
            self.code = code if orderly else FATAL
        if self.fault and "message" not in ending:
            log.fatal(self._silence or self._why(ending, code, number))

    def _why(self, ending: dict[str, Any], code: int, number: int) -> str:
        process = self.process.pid if self.process else 0
        if self.by_agent and number and not ending:
            return f"the agent (process {process}) on {host_name()} died, {self._last()}, and the ranks with it"
        who = f"rank {ending['rank']}" if "rank" in ending else f"{self.command.split()[0]} (process {process})"
        if number:
            return f"{who} was killed by signal {number}, {self._last()}"
        unstarted = not (self.by_agent or self.started)
        more = ", and docs/distributed.md has a section on hosts that do not start" * unstarted
        return f"{who} ended with code {code}, {self._last()}; what it said stands above{more}"

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
        """Without mpiexec's own words on the end of a job whose cause is known: it names ranks that it has killed."""
        return line if self._ending is None or self.by_agent else b""

    def _pass_err(self, line: bytes) -> bytes:
        if self._ending is not None:  # what the others, and mpiexec, say now has its cause in that end
            return b""
        text, record = records.split(line)
        if record is None:
            return line
        if "iteration" in record:
            self.started, self.iteration = True, record["iteration"]
            self._reports += 1
        else:
            self._ending, self._ending_since = record, time.monotonic()
            if "message" in record and not record.get("logged"):
                log.fatal(record["message"], record.get("source"))
        return text

    # --- signals ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._relay) for number in RELAYED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _relay(self, number: int, _: FrameType | None) -> None:
        """To rank 0, by the standard input of the agent or mpiexec, which hands it to the agent of rank 0's host. If
        there is no rank yet, or a second SIGTERM says that it takes too long, end all at once.

        One rank is enough: the training loop agrees with the others on what to do.
        """
        again = self._interrupted == number
        self.asked_to_end |= number in self.stops
        if number == signal.SIGTERM or not self.started:
            self._interrupted = number
        if again or not self.started:
            self._kill()
        elif self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                os.write(self.process.stdin.fileno(), b"%d\n" % number)

    def _kill(self) -> None:
        """End the agent, with which the kernel ends the ranks; or mpiexec, and what it has started here. On other hosts
        MPI's processes notice that it has gone."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
