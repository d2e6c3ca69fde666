"""Which split of a host's cores between workers and threads trains a net fastest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fcaffe.errors import FcaffeError
from fcaffe.threads import VARIABLES, environment_of_others

MARGIN = 1.03  # repeated measurements of one split differ by so much


class Split(NamedTuple):
    """A number of workers and of threads of each. `seconds` is the median of an iteration; `problem` says why there is
    none."""

    workers: int
    threads: int
    seconds: float = 0.0
    batch: int = 0
    problem: str = ""

    def __str__(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{workers} of {self.threads} thread{'s' * (self.threads > 1)}"


def splits(cores: int) -> list[Split]:
    """The splits that use all cores, from 1 worker of all threads to as many workers as cores."""
    return [Split(workers, cores // workers) for workers in range(1, cores + 1) if cores % workers == 0]


def measure_splits(flags: Sequence[str], cores: int, tell: Callable[[str], None]) -> list[Split]:
    """Measure each split of the cores by `fcaffe bench step`.

    Args:
        flags: Flags of `fcaffe bench step`, which name the net.
        cores: Number of cores.
        tell: Called with a line before each measurement.

    Raises:
        FcaffeError: No split can be measured.
    """
    results = []
    for split in splits(cores):
        tell(f"Measuring {split}")
        batch, ms, problem = _run(split, flags)
        results.append(split._replace(seconds=ms / 1000, batch=batch, problem=problem))
    if all(result.problem for result in results):
        raise FcaffeError(results[0].problem)
    return results


def advice(results: Sequence[Split]) -> str:
    """A line with the best split, its time and another one's, and the flag for it."""
    known = sorted((result for result in results if not result.problem), key=lambda result: result.seconds)
    best, single = known[0], next((result for result in known if result.workers == 1), None)
    other = single if single and single is not best else known[1] if len(known) > 1 else None
    told = "; ".join(f"{each}: {1000 * each.seconds:.4g} ms" for each in (best, other) if each)
    if single and single.seconds < MARGIN * best.seconds:
        return f"{told}; {'one worker is' if single is best else 'that is not clearly'} faster, leave --workers out"
    return f"{told}; use --workers {best.workers}"


def _run(split: Split, flags: Sequence[str]) -> tuple[int, float, str]:
    """Run one job; returns (batch, milliseconds of an iteration, problem)."""
    command = [sys.executable, "-m", "fcaffe", "bench", "step", *flags, f"--workers={split.workers}"]
    environment = environment_of_others() | dict.fromkeys(VARIABLES, str(split.threads))
    done = subprocess.run(
        [*command, "--json"], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("F", "ERROR"))] or [
            f"it ended with exit code {done.returncode}"
        ]
        return 0, 0.0, lines[-1].partition("] ")[2] or lines[-1]
    result = json.loads(done.stdout)["results"][0]
    return result["batch"], result["ms"], ""
