"""Progress bars below the log lines, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from fcaffe import log
from fcaffe.solvers import Observer, Solver

Item = TypeVar("Item")


@contextlib.contextmanager
def progress_of(solver: Solver) -> Iterator[None]:
    """Show the solver's progress while the body of the `with` runs it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.progress import ProgressColumn, Task, TextColumn  # which takes a while to load
    from rich.text import Text

    class Images(ProgressColumn):
        """Images per second, from iterations per second."""

        def render(self, task: Task) -> Text:
            images = solver.net.batch_size * solver.passes
            return Text(f"{task.speed * images:.0f} images/s" if task.speed else "")

    bar = _bar("Iteration {task.completed:.0f} of {task.total:.0f}", TextColumn("{task.fields[state]}"), Images())
    task = bar.add_task("training", total=solver.schedule.max_iter, completed=solver.iteration, state="")

    class Advance(Observer):
        looks = False

        def iteration_ends(self, loss: float, rate: float) -> None:
            state = f"loss {log.number(loss)}  lr {log.number(rate)}"
            bar.update(task, completed=solver.iteration, state=state)

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
    bar = _bar("{task.completed:.0f} of {task.total:.0f} " + noun)
    task = bar.add_task(noun, total=total)
    with _shown(bar):
        for item in items:
            yield item
            bar.update(task, advance=1)


def _bar(words: str, *columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn(words),
        BarColumn(bar_width=None),
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )


@contextlib.contextmanager
def _shown(bar: Any) -> Iterator[None]:
    """Show the bar; log lines appear above it."""

    def show(line: str) -> None:
        bar.console.print(line, end="", soft_wrap=True, markup=False, highlight=False, emoji=False)

    log.set_show(show)
    try:
        with bar:
            yield
    finally:
        log.set_show(None)
