"""How far a training is: a bar below the log lines, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from fcaffe import log
from fcaffe.solvers import Observer, Solver


@contextlib.contextmanager
def progress_of(solver: Solver) -> Iterator[None]:
    """Show the solver's progress while the body of the `with` runs it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # which takes a while to load
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Images(ProgressColumn):
        """Images a second, from iterations a second."""

        def render(self, task: Task) -> Text:
            images = solver.net.batch_size * solver.passes
            return Text(f"{task.speed * images:.0f} images/s" if task.speed else "")

    bar = Progress(
        TextColumn("Iteration {task.completed:.0f} of {task.total:.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[state]}"),
        Images(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
        expand=True,
    )
    task = bar.add_task("training", total=solver.schedule.max_iter, completed=solver.iteration, state="")

    class Advance(Observer):
        def iteration_ends(self, loss: float, rate: float) -> None:
            state = f"loss {log.number(loss)}  lr {log.number(rate)}"
            bar.update(task, completed=solver.iteration, state=state)

    def show(line: str) -> None:
        bar.console.print(line, end="", soft_wrap=True, markup=False, highlight=False, emoji=False)

    solver.observers.append(advance := Advance())
    log.set_show(show)
    try:
        with bar:
            yield
    finally:
        log.set_show(None)
        solver.observers.remove(advance)
