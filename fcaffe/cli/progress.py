"""Progress bars below the log lines, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import click

from fcaffe import log
from fcaffe.solvers import Observer, Solver

Item = TypeVar("Item")

CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def progress_of(solver: Solver) -> Iterator[None]:
    """Show the solver's progress while the body of the `with` runs it."""
    if not sys.stderr.isatty():
        yield
        return
    iterations = max(0, solver.schedule.max_iter - solver.iteration)
    bar = _bar(None, iterations, "Training", item_show_func=lambda text: text)

    class Advance(Observer):
        looks = False

        def iteration_ends(self, loss: float, rate: float) -> None:
            seconds = bar.time_per_iteration
            images = f"  {solver.net.batch_size * solver.passes / seconds:.0f} images/s" if seconds else ""
            bar.update(1, f"loss {log.number(loss)}  lr {log.number(rate)}{images}")

    solver.observers.append(advance := Advance())
    try:
        with _shown(bar):
            yield
    finally:
        solver.observers.remove(advance)


def counted(items: Iterable[Item], total: int, noun: str) -> Iterator[Item]:
    """Yield `total` items, and show on a terminal how many have come."""
    if not sys.stderr.isatty():
        yield from items
        return
    with _shown(_bar(items, total, noun)) as bar:
        yield from bar


def _bar(items: Iterable[Any] | None, total: int, label: str, **settings: Any) -> Any:
    return click.progressbar(items, total, label, show_pos=True, file=sys.stderr, **settings)


@contextlib.contextmanager
def _shown(bar: Any) -> Iterator[Any]:
    """Show the bar. A log line takes its row, and the next update draws it below."""

    def show(line: str) -> None:
        sys.stderr.write(CLEAR_LINE + line)

    log.set_show(show)
    try:
        with bar:
            yield bar
    finally:
        log.set_show(None)
