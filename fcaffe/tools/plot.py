"""The curves of a training as named series, and pictures of them by matplotlib: an overview, and Caffe's charts."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.log.reader import Curve, TrainingLog, read_log
from fcaffe.output_files import replacing

# Kinds of series. A score is a test output between 0 and 1 that is no loss, such as an accuracy.
TRAIN_LOSS, TEST_LOSS, SCORE, OTHER_OUTPUT, RATE = "train loss", "test loss", "test accuracy", "test output", "rate"
WINDOW = 1 / 20  # share of a curve's points in the running mean

Path = str | os.PathLike[str]

FORMATS = ("png", "pdf", "svg")
LONGEST_TEXT = 60  # characters of a name in a picture
COLORS = {TRAIN_LOSS: "#6b93c4", TEST_LOSS: "#1f3e6c", RATE: "#777777"}
RUN_COLORS = ["#2f6db3", "#d1642a", "#3f8f4f", "#8a4f9e", "#b8962e", "#2f9a9a", "#c0436d", "#5b5b5b"]
SCORE_COLORS = RUN_COLORS[1:7]
TEST_STYLES = ["--", ":", "-."]
LOSSES = (TRAIN_LOSS, TEST_LOSS)
PANELS = {"loss": (6, LOSSES), "score": (4, (SCORE,)), "learning rate": (2, (RATE,))}

# The charts of plot_training_log.py, by Caffe's numbers.
_KINDS = {"Test accuracy": SCORE, "Test loss": TEST_LOSS, "Train learning rate": RATE, "Train loss": TRAIN_LOSS}
CHARTS = [f"{kind} vs. {axis}" for kind in _KINDS for axis in ("Iters", "Seconds")]


class Series(NamedTuple):
    """A curve with its kind, its name, and the second of each of its points since the training began."""

    kind: str
    name: str
    curve: Curve
    seconds: Curve


def series_of(log: TrainingLog) -> list[Series]:
    """All series of a log that have points.

    The loss of a test net is the sum that Caffe logs, or else its parts. Several outputs of one name, such as
    accuracies by class, are numbered, and are no scores. The learning rate extends to the last iteration.
    """
    found = [Series(TRAIN_LOSS, "train loss", log.loss, log.seconds)]
    for number, net in sorted(log.test_nets.items()):
        suffix = f" (test net {number})" if len(log.test_nets) > 1 else ""
        if net.loss:
            found.append(Series(TEST_LOSS, f"test loss{suffix}", net.loss, net.seconds))
        for output in net.outputs.values():
            if output.is_loss and net.loss:
                continue
            same = [other for other in net.outputs.values() if other.name == output.name]
            is_score = len(same) == 1 and all(0 <= value <= 1 for value in output.curve.values())
            kind = TEST_LOSS if output.is_loss else SCORE if is_score else OTHER_OUTPUT
            name = output.name if len(same) == 1 else f"{output.name}/{same.index(output)}"
            found.append(Series(kind, f"test {name}{suffix}", output.curve, net.seconds))
    if log.rate:
        end = max(log.seconds, default=max(log.rate))
        found.append(Series(RATE, "learning rate", {**log.rate, end: log.rate[max(log.rate)]}, log.seconds))
    return [series for series in found if series.curve]


def smoothed(curve: Curve) -> Curve:
    """The running mean over WINDOW of the points. Values that are not finite stay as they are and do not count."""
    iterations = sorted(curve)
    values = np.array([curve[iteration] for iteration in iterations], np.float64)
    half = int(len(values) * WINDOW / 2)
    if half == 0:
        return curve
    finite = np.isfinite(values)
    sums, counts = (np.cumsum([0.0, *part]) for part in (np.where(finite, values, 0), finite))
    index = np.arange(len(values))
    width = np.minimum(half, np.minimum(index, index[::-1]))  # symmetric, so that a slope stays as it is,
    width = np.maximum(width, half // 2)  # except close to the ends
    first, last = np.maximum(index - width, 0), np.minimum(index + width + 1, len(values))
    with np.errstate(all="ignore"):
        means = np.where(finite, (sums[last] - sums[first]) / (counts[last] - counts[first]), values)
    return dict(zip(iterations, means.tolist(), strict=True))


class Run(NamedTuple):
    """A training in the picture. Its color is None if it is the only one: then each kind of series has its own."""

    name: str
    net: str
    series: list[Series]
    color: str | None


class Line(NamedTuple):
    """A series in a chart: its run, its number among those of its kind, and its curve, smoothed or as faint points."""

    run: Run
    series: Series
    number: int
    curve: Curve
    is_faint: bool = False


class Chart(NamedTuple):
    """Lines that share their axes. `is_log` is whether the vertical one is logarithmic, `ends` are its own ends."""

    lines: list[Line]
    values: list[float]  # finite ones, which the axis must show
    is_log: bool
    ends: tuple[float, float] | None


def chart_of(kinds: Sequence[str], runs: Sequence[Run]) -> Chart:
    """The series of these kinds. A train loss is smoothed over its faint points."""
    lines = []
    for run in runs:
        for kind in kinds:
            for number, series in enumerate(one for one in run.series if one.kind == kind):
                curve = smoothed(series.curve) if kind == TRAIN_LOSS else series.curve
                if curve != series.curve:
                    lines.append(Line(run, series, number, series.curve, is_faint=True))
                lines.append(Line(run, series, number, curve))
    main = [line for line in lines if line.series.kind == kinds[0]] or lines
    values = [value for line in main for value in line.series.curve.values() if math.isfinite(value)]
    if SCORE in kinds:
        low = max(0.0, min(1.25 * min(values, default=0.0) - 0.25, 0.99))  # just below the lowest one
        return Chart(lines, values, False, (low, 1 + 0.02 * (1 - low)))
    shown = (value for line in lines for value in line.curve.values() if math.isfinite(value))
    is_log = is_wide(values) and min(shown) > 0
    ends = (0.0, 1.15 * max(values, default=1) or 1.0) if RATE in kinds and not is_log else None
    return Chart(lines, values, is_log, ends)


def plot(log_paths: Sequence[Path], picture_path: Path) -> None:
    """Draw the losses, scores and learning rates of logs, fcaffe's or Caffe's, into a PNG, PDF or SVG file.

    Raises FcaffeError."""
    runs = _runs(log_paths)
    scored = any(series.kind == SCORE for run in runs for series in run.series)
    panels = {title: panel for title, panel in PANELS.items() if scored or title != "score"}
    with new_picture(picture_path, (9, 7.5 if scored else 6)) as figure:
        heights = [height for height, _ in panels.values()]
        all_axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
        figure.suptitle(runs[0].net or "training", fontsize=13)
        for axes, (title, (_, kinds)) in zip(all_axes, panels.items(), strict=True):
            axes.set_ylabel(title)
            _draw(axes, chart_of(kinds, runs))
        axes.set_xlabel("iteration")
        axes.xaxis.get_major_locator().set_params(integer=True)


def plot_chart(chart: int, picture_path: Path, log_paths: Sequence[Path]) -> None:
    """Draw the chart of this number, with the curves of each log, into a PNG, PDF or SVG file. Raises FcaffeError."""
    kind, _, axis = CHARTS[chart].partition(" vs. ")
    runs = _runs(log_paths)
    with new_picture(picture_path, (9, 5.5)) as figure:
        for run, path in zip(runs, log_paths, strict=True):
            if not any(series.kind == _KINDS[kind] for series in run.series):
                raise FcaffeError(f"{os.fspath(path)} has no {kind.lower()} to draw")
        axes = figure.subplots()
        _draw(axes, chart_of([_KINDS[kind]], runs), by_time=axis == "Seconds")
        axes.set(title=CHARTS[chart], xlabel=axis, ylabel=kind)
        if _KINDS[kind] == RATE:
            axes.legend(axes.get_lines(), [run.name for run in runs], frameon=False, fontsize=9)


def _runs(paths: Sequence[Path]) -> list[Run]:
    """The trainings of these logs, named as the files without folders and ending, or as the paths if two are alike."""
    names = [os.path.splitext(os.fspath(path))[0] for path in paths]
    if len({os.path.basename(name) for name in names}) == len(names):
        names = list(map(os.path.basename, names))
    logs = [read_log(path) for path in paths]
    colors = [RUN_COLORS[index % len(RUN_COLORS)] if logs[1:] else None for index in range(len(logs))]
    parts = zip(names, logs, colors, strict=True)
    return [Run(name, log.net, series_of(log), color) for name, log, color in parts]


@contextlib.contextmanager
def new_picture(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib figure of this size in inches for the body to draw in; it is written when the body has ended."""
    format = os.path.splitext(os.fspath(path))[1].lstrip(".").lower()
    if format not in FORMATS:
        raise UsageError(f"a picture's name ends in {', '.join(f'.{form}' for form in FORMATS)}, not as {path}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.text import Text
    except ImportError as problem:
        raise FcaffeError("plotting needs matplotlib: pip install matplotlib pygraphviz") from problem
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a $ in a name is no formula
        name = text.get_text()
        if len(name) > LONGEST_TEXT:  # which would leave no room for the curves
            text.set_text(f"{name[: LONGEST_TEXT // 2]} ... {name[-LONGEST_TEXT // 2 :]}")
    with replacing(path, "picture") as temporary:
        figure.savefig(temporary, dpi=120, format=format)


def style(axes: Any) -> None:
    """Give axes a light grid behind the lines, and no frame at the right and above."""
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(color="#999999", labelsize=9)


def _scale_log(axes: Any, values: list[float], fine: bool) -> None:
    """Make the vertical axis, which shows these values, logarithmic; a `fine` one has ticks between powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine and max(values) < 1000 * min(values) else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def is_wide(values: Sequence[float]) -> bool:
    """Whether finite values are best shown on a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def _draw(axes: Any, chart: Chart, by_time: bool = False) -> None:
    """Draw the lines of a chart over iterations or seconds, and fit the vertical axis to them."""
    style(axes)
    axes.margins(x=0.02)
    for line in chart.lines:
        x = [line.series.seconds[one] if by_time else one for one in sorted(line.curve)]
        y = [line.curve[one] for one in sorted(line.curve)]
        look = _look(line)
        if line.is_faint:
            axes.scatter(x, y, s=7, color=look["color"], alpha=0.3, linewidths=0)
        else:
            axes.plot(x, y, **look)
    kinds = {line.series.kind for line in chart.lines}
    if chart.is_log:
        _scale_log(axes, chart.values, fine=RATE not in kinds)
    elif chart.ends:
        axes.set_ylim(*chart.ends)
    if SCORE in kinds:
        axes.set_ylabel("accuracy" if all("accuracy" in line.series.name for line in chart.lines) else "score")
    if kinds - {RATE}:
        axes.legend(frameon=False, fontsize=9)


def _look(line: Line) -> dict[str, Any]:
    """The label, color and style of a line."""
    run, series, number, curve, _ = line
    several, kind = run.color is not None, series.kind
    label = f"{run.name}, {series.name}" if several else series.name
    look: dict[str, Any] = {"color": run.color or COLORS.get(kind) or SCORE_COLORS[number % len(SCORE_COLORS)]}
    if kind == RATE:
        return {**look, "label": f"_{run.name} rate" if several else series.name, "drawstyle": "steps-post"}
    if kind == TRAIN_LOSS:
        return {**look, "label": run.name if several else series.name, "linewidth": 1.5}
    styles = TEST_STYLES if several and kind == TEST_LOSS else ["-", *TEST_STYLES]
    if kind == SCORE:
        label += f", finally {curve[max(curve)]:.4g}"
        styles = styles if several else ["-"]
    return {**look, "label": label, "linestyle": styles[number % len(styles)], "marker": "o", "markersize": 3}
