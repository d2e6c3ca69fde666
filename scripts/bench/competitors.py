"""Processes that are timed against each other, and the slices of steps that they take by turns.

A benchmark script starts itself again for each competitor. That process calls `serve`, which reads a word or a number
of steps from each line of its input and answers each with a JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAST_LINES = 3  # of a dead competitor's log, for the error message


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


class CompetitorError(Exception):
    """A competitor failed, exited or did not answer in time."""


def nothing() -> dict[str, Any]:
    return {}


@dataclass
class Racer:
    """The net of a competitor's process, and how to run it.

    `step` takes this many steps. `synchronize` waits for the steps that the device has not finished yet; None says that
    every step has finished when `step` returns, and then each step is timed by itself. `digest` returns a checksum of
    the latest gradients, `report` numbers about the process.
    """

    step: Callable[[int], Any]
    synchronize: Callable[[], Any] | None = None
    report: Callable[[], dict[str, Any]] = nothing
    digest: Callable[[], str] = str

    def timed(self, steps: int) -> dict[str, Any]:
        """Take these steps; returns their `seconds` and, without `synchronize`, those of `each` step."""
        if self.synchronize is None:
            each = [_seconds(lambda: self.step(1)) for _ in range(steps)]
            return {"seconds": sum(each), "each": each}
        synchronize = self.synchronize

        def all_steps() -> None:
            self.step(steps)
            synchronize()

        return {"seconds": _seconds(all_steps)}


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def serve(build: Callable[[], Racer]) -> None:
    """Answer the lines of the standard input until "end". `build` is called at the first of the other lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what libraries print does not mix with the answers

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    racer = None
    try:
        for line in sys.stdin:
            word = line.strip()
            if word == "end":
                answer(**(racer.report() if racer else {}), host_memory=peak_memory())
                return
            began = time.perf_counter()
            racer = racer or build()
            built = time.perf_counter() - began
            if word == "digest":
                answer(digest=racer.digest())
            elif word == "build":
                answer(seconds=built)
            else:
                answer(**racer.timed(int(word)))
    except Exception as problem:
        import traceback

        traceback.print_exc()
        answer(error=f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300])


def peak_memory() -> int:
    """The peak memory of this process in bytes. On Linux ru_maxrss includes the parent's at the start of this one."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass
class Competitor:
    """A competitor's process as the benchmark sees it. The process starts at once and waits for questions.

    `log` is the file for its stderr, which otherwise is that of this process. `slices` holds the seconds of single
    steps, a list for each slice.
    """

    who: str
    command: list[str]
    environment: dict[str, str]
    log: Path | None = None
    slices: list[list[float]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    def __post_init__(self) -> None:
        errors = open(self.log, "ab") if self.log else None  # noqa: SIM115 - closed below
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=self.environment
        )
        if errors:
            errors.close()
        assert self.process.stdin and self.process.stdout
        self._in, self._out = self.process.stdin, self.process.stdout

    def ask(self, what: str | int, limit: float = float("inf")) -> dict[str, Any]:
        """The answer to a word or a number of steps.

        Raises:
            CompetitorError: there is no answer, or none within `limit` seconds. The process is killed.
        """
        if self.failure:
            raise CompetitorError(self.failure)
        try:
            self._in.write(f"{what}\n".encode())
            self._in.flush()
            ready = select.select([self._out], [], [], None if limit == float("inf") else max(0.1, limit))[0]
            line = self._out.readline() if ready else b""
        except BrokenPipeError:
            ready, line = [self._out], b""
        if not ready:
            self._fail(f"took longer than {limit:.0f} s")
        if not line:
            self.process.wait()
            self._fail(f"died with exit code {self.process.returncode}{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            self._fail(answer["error"])
        return answer

    def steps(self, count: int, limit: float = float("inf")) -> list[float]:
        """Take these steps; returns the seconds of each, or their mean if they were not timed one by one."""
        answer = self.ask(count, limit)
        return answer.get("each") or [answer["seconds"] / count]

    @property
    def is_racing(self) -> bool:
        return not self.failure

    @property
    def seconds(self) -> float:
        """The median over the slices of the median step of each."""
        return median_step(self.slices)

    def end(self) -> None:
        """Ask for the report and wait for the end of the process."""
        try:
            self.report |= self.ask("end", 60)
            self._in.close()
            self.process.wait(60)
        except (CompetitorError, subprocess.TimeoutExpired):
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _fail(self, why: str) -> None:
        self.failure = why
        self.kill()
        raise CompetitorError(why)

    def _last_words(self) -> str:
        if not self.log or not self.log.exists():
            return ""
        lines = self.log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        return f": {' / '.join(lines)}"[:300]


def median_step(slices: Sequence[Sequence[float]]) -> float:
    """The median over the slices of the median step of each."""
    return statistics.median(map(statistics.median, slices))


def fastest_step(slices: Sequence[Sequence[float]]) -> float:
    """The fastest step of all slices."""
    return min(map(min, slices))


@dataclass(frozen=True)
class Slices:
    """How competitors take turns: first each warms up, then in each round each takes a slice of many steps.

    A slice has as many steps as take `seconds`, but at least `least` and at most `most`. The fastest of the `warm`
    steps tells how many those are. Between two competitors the machine rests for `pause` seconds: the threads of some
    libraries spin for a while after their last step, and would slow down the next competitor.
    """

    rounds: int
    seconds: float
    least: int = 1
    most: int = 1000
    warm: int = 1
    pause: float = 0.0

    def steps(self, step: float) -> int:
        """The steps of a slice, if one takes `step` seconds."""
        return max(self.least, min(self.most, round(self.seconds / step)))


def take_slices(
    competitors: Sequence[Any],
    plan: Slices,
    limit: float = float("inf"),
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Let the competitors take turns, and append the times of their steps to their `slices`.

    A competitor that fails, or needs more than `limit` seconds for a slice, takes no further part. Every other round
    runs in the opposite order, so that a drift of the machine's speed affects all alike.
    """
    counts: dict[int, int] = {}
    for number in range(-1, plan.rounds):
        for competitor in reversed(competitors) if number % 2 and number > 0 else competitors:
            if competitor.is_racing:
                with contextlib.suppress(CompetitorError):
                    if number < 0:
                        counts[id(competitor)] = plan.steps(min(competitor.steps(plan.warm, limit)))
                    else:
                        competitor.slices.append(competitor.steps(counts[id(competitor)], limit))
                sleep(plan.pause)
