"""Pictures of trainings by matplotlib: an overview of one or several logs, and Caffe's plot_training_log.py charts."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.log.reader import read_log
from fcaffe.output_files import replacing
from fcaffe.tools.curves import RATE, SCORE, TEST_LOSS, TRAIN_LOSS, Series, series_of, smoothed

Path = str | os.PathLike[str]

FORMATS = ("png", "pdf", "svg")
COLORS = {TRAIN_LOSS: "#6b93c4", TEST_LOSS: "#1f3e6c", RATE: "#777777"}
RUN_COLORS = ["#2f6db3", "#d1642a", "#3f8f4f", "#8a4f9e", "#b8962e", "#2f9a9a", "#c0436d", "#5b5b5b"]
SCORE_COLORS = RUN_COLORS[1:7]
TEST_STYLES = ["--", ":", "-."]
FAINT, FAINTER = 0.5, 0.25  # opacity of a point, and of a point among more than MANY
MANY = 200
MARKED = 60  # points of a curve up to which each gets a mark
UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))
PANELS = {"loss": (6, (TRAIN_LOSS, TEST_LOSS)), "score": (4, (SCORE,)), "learning rate": (2, (RATE,))}

# The charts of plot_training_log.py, by Caffe's numbers.
_KINDS = {"Test accuracy": SCORE, "Test loss": TEST_LOSS, "Train learning rate": RATE, "Train loss": TRAIN_LOSS}
CHARTS = [f"{kind} vs. {axis}" for kind in _KINDS for axis in ("Iters", "Seconds")]


class Run(NamedTuple):
    """A training in the picture. Its color is None if it is the only one: then each kind of series has its own."""

    name: str
    series: list[Series]
    color: str | None


def plot(log_paths: Sequence[Path], picture_path: Path, by_time: bool = False) -> None:
    """Draw the losses, scores and learning rates of logs, fcaffe's or Caffe's, into a PNG, PDF or SVG file.

    Raises FcaffeError."""
    logs = [read_log(path) for path in log_paths]
    colors = [None] if len(logs) == 1 else [RUN_COLORS[index % len(RUN_COLORS)] for index in range(len(logs))]
    runs = [
        Run(name, series_of(log), color) for name, log, color in zip(run_names(log_paths), logs, colors, strict=True)
    ]
    unit, label = 0.0, "iteration"
    if by_time:
        longest = max(max([0.0, *log.seconds.values()]) for log in logs)
        unit, label = next((unit, f"time ({word})") for least, unit, word in UNITS if longest >= least)
    scored = any(series.kind == SCORE for run in runs for series in run.series)
    panels = {title: panel for title, panel in PANELS.items() if scored or title != "score"}
    with new_picture(picture_path, (9, 7.5 if scored else 6)) as figure:
        heights = [height for height, _ in panels.values()]
        all_axes = figure.subplots(len(panels), 1, sharex=True, height_ratios=heights)
        figure.suptitle(logs[0].net or "training", fontsize=13)
        for axes, (title, (_, kinds)) in zip(all_axes, panels.items(), strict=True):
            axes.set_ylabel(title)
            axes.margins(x=0.02)
            style(axes)
            _draw(axes, runs, kinds, unit)
        axes.set_xlabel(label)
        if not unit:
            axes.xaxis.get_major_locator().set_params(integer=True)


def plot_chart(chart: int, picture_path: Path, log_paths: Sequence[Path]) -> None:
    """Draw the chart of this number, a curve of each log, into a PNG, PDF or SVG file. Raises FcaffeError."""
    kind, _, axis = CHARTS[chart].partition(" vs. ")
    found = [next((one for one in series_of(read_log(path)) if one.kind == _KINDS[kind]), None) for path in log_paths]
    with new_picture(picture_path, (9, 5.5)) as figure:
        axes = figure.subplots()
        for index, (series, path, name) in enumerate(zip(found, log_paths, run_names(log_paths), strict=True)):
            if series is None:
                raise FcaffeError(f"{os.fspath(path)} has no {kind.lower()} to draw")
            marker = "o" if len(series.curve) <= MARKED else ""
            look = {"color": RUN_COLORS[index % len(RUN_COLORS)], "linewidth": 1.3, "marker": marker}
            _line(axes, series, axis == "Seconds", name, **look)
        if kind != "Test accuracy":
            scale_wide(axes, [value for series in found if series for value in series.curve.values()])
        axes.set_title(CHARTS[chart], fontsize=12)
        axes.set_xlabel(axis)
        axes.set_ylabel(kind)
        axes.margins(x=0.02)
        style(axes)
        axes.legend(loc="lower right" if kind == "Test accuracy" else "upper right", frameon=False, fontsize=9)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The file names without folders and ending; the whole paths without ending if two names are the same."""
    texts = [os.path.splitext(os.fspath(path))[0] for path in paths]
    names = [os.path.basename(text) for text in texts]
    return names if len(set(names)) == len(names) else texts


@contextlib.contextmanager
def new_picture(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A matplotlib figure of this size in inches for the body to draw in; it is written when the body has ended."""
    format = os.path.splitext(os.fspath(path))[1].lstrip(".").lower()
    if format not in FORMATS:
        raise UsageError(f"a picture's name ends in {', '.join(f'.{form}' for form in FORMATS)}, not as {path}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise FcaffeError("plotting needs matplotlib: pip install 'fcaffe[plot]'") from problem
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    with replacing(path, "picture") as temporary:
        figure.savefig(temporary, dpi=120, format=format)


def style(axes: Any) -> None:
    """Give axes a light grid behind the lines, and no frame at the right and above."""
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(color="#999999", labelsize=9)


def scale_wide(axes: Any, values: list[float], fine: bool = True) -> bool:
    """Make the vertical axis logarithmic if these values span a wide range, and return whether they do.

    A `fine` axis has ticks between the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    finite = [value for value in values if math.isfinite(value)]
    if not is_wide(finite):
        return False
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine and max(finite) < 1000 * min(finite) else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return True


def is_wide(values: Sequence[float]) -> bool:
    """Whether finite values are best shown on a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def _draw(axes: Any, runs: list[Run], kinds: Sequence[str], unit: float) -> None:
    """Draw the series of these kinds, and fit the vertical axis to them."""
    drawn = []
    for run in runs:
        for kind in kinds:
            of_kind = [series for series in run.series if series.kind == kind]
            for index, series in enumerate(of_kind):
                _draw_series(axes, run, series, index, unit)
            drawn += of_kind
    values = [value for series in drawn for value in series.curve.values() if math.isfinite(value)]
    if RATE in kinds:
        if not scale_wide(axes, values, fine=False):
            axes.set_ylim(0, 1.15 * max(values, default=1) or 1)
        return
    if SCORE in kinds:
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("accuracy" if all("accuracy" in series.name for series in drawn) else "score")
    else:
        scale_wide(axes, [value for series in drawn if series.kind == TRAIN_LOSS for value in series.curve.values()])
    if drawn:
        axes.legend(frameon=False, fontsize=9)


def _draw_series(axes: Any, run: Run, series: Series, index: int, unit: float) -> None:
    """Draw the series of this index among those of its kind. The train loss is smoothed over its faint points."""
    several, kind = run.color is not None, series.kind
    color = run.color or COLORS.get(kind) or SCORE_COLORS[index % len(SCORE_COLORS)]
    if kind == RATE:
        _line(axes, series, unit, f"_{run.name} rate" if several else series.name, color=color)
    elif kind == TRAIN_LOSS:
        smooth = smoothed(series.curve)
        if smooth != series.curve:
            alpha = FAINT if len(smooth) <= MANY else FAINTER
            axes.scatter(*_points(series, unit), s=7, color=color, alpha=alpha, linewidths=0)
        label = run.name if several else series.name
        _line(axes, series._replace(curve=smooth), unit, label, color=color, linewidth=1.5)
    else:
        label = f"{run.name}, {series.name}" if several else series.name
        styles = TEST_STYLES if several and kind == TEST_LOSS else ["-", *TEST_STYLES]
        if kind == SCORE:
            label += f", finally {series.curve[max(series.curve)]:.4g}"
            styles = styles if several else ["-"]
        _line(axes, series, unit, label, color=color, linestyle=styles[index % len(styles)], marker="o")


def _line(axes: Any, series: Series, unit: float, label: str, **look: Any) -> None:
    steps = "steps-post" if series.kind == RATE else "default"
    axes.plot(*_points(series, unit), label=label, drawstyle=steps, markersize=3, **look)


def _points(series: Series, unit: float) -> tuple[list[float], list[float]]:
    """Abscissas (iterations, or time in units of so many seconds if `unit` is not 0) and values."""
    iterations = sorted(series.curve)
    x = [series.seconds[iteration] / unit if unit else iteration for iteration in iterations]
    return x, [series.curve[iteration] for iteration in iterations]
