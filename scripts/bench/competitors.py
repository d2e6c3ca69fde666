"""Competitors: processes of their own that take turns in taking steps, and say how long they took.

A script that holds a race starts itself again for each competitor, and there calls `serve`. The two talk in lines: a
word or a number of steps goes in, a JSON object comes out.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAST_LINES = 3  # of a dead competitor's log that are shown


class CompetitorError(Exception):
    """Why a competitor is out of the race."""


def nothing() -> dict[str, Any]:
    return {}


@dataclass
class Racer:
    """What a competitor's process can be asked for: steps, which may run ahead of `synchronize`; a digest of the last
    gradients, in which every bit counts; at the end, numbers about the process."""

    step: Callable[[int], Any]
    synchronize: Callable[[], Any] = nothing
    report: Callable[[], dict[str, Any]] = nothing
    digest: Callable[[], str] = str


def serve(build: Callable[[], Racer]) -> None:
    """Be a competitor, until "end" comes in. `build` makes what races, when "build" or steps are asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    racer = None
    try:
        for line in sys.stdin:
            word = line.strip()
            began = time.perf_counter()
            if racer is None and word != "end":
                racer = build()
            if word == "end":
                answer(**(racer.report() if racer else {}), host_memory=peak_memory())
                return
            if racer is not None and word == "digest":
                answer(digest=racer.digest())
                continue
            if racer is not None and word != "build":
                racer.step(int(word))
                racer.synchronize()
            answer(seconds=time.perf_counter() - began)
    except Exception as problem:
        import traceback

        traceback.print_exc()
        answer(error=f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:300])


def peak_memory() -> int:
    """Of this process in bytes. Linux counts in ru_maxrss what its parent had when it started this, too."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass
class Competitor:
    """A competitor's process as the race sees it. It is started at once, and waits.

    `log`: the file that its stderr goes to; else it goes where this process's goes.
    """

    who: str
    command: list[str]
    environment: dict[str, str]
    log: Path | None = None
    times: list[float] = field(default_factory=list)  # of single steps, in seconds
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
        """The answer. CompetitorError, and the process is ended, if there is none, or none within so many seconds."""
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

    def step(self, steps: int, limit: float = float("inf")) -> float:
        """Seconds of one of so many steps."""
        return self.ask(steps, limit)["seconds"] / steps

    @property
    def is_racing(self) -> bool:
        return not self.failure

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

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


def take_turns(
    competitors: list[Competitor], rounds: int, turn: float, most: int, guess: int = 1, limit: float = float("inf")
) -> None:
    """Some rounds in which everybody who is still racing takes steps for about `turn` seconds, but `most` at most.

    All must be warm; `guess` steps tell how long one takes. Who fails, or needs more than `limit` seconds, is out.
    """
    steps: dict[str, int] = {}
    for turn_of in range(-1, rounds):
        for competitor in (one for one in competitors if one.is_racing):
            with contextlib.suppress(CompetitorError):
                if turn_of < 0:
                    steps[competitor.who] = max(1, min(most, round(turn / competitor.step(guess, limit))))
                else:
                    competitor.times.append(competitor.step(steps[competitor.who], limit))
