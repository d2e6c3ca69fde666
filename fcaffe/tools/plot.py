"""The picture of one or several trainings: loss, test scores and learning rate over the iterations or the time."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcaffe.errors import FcaffeError, UsageError
from fcaffe.log.reader import Curve, NetCurves, Output, TrainingLog, read_log
from fcaffe.output_files import replacing

Path = str | os.PathLike[str]

FORMATS = ("png", "pdf", "svg")
TRAIN_COLOR, TEST_COLOR, RATE_COLOR = "#6b93c4", "#1f3e6c", "#777777"
SCORE_COLORS = ["#d1642a", "#3f8f4f", "#8a4f9e", "#b8962e", "#2f9a9a", "#c0436d"]
RUN_COLORS = ["#2f6db3", "#d1642a", "#3f8f4f", "#8a4f9e", "#b8962e", "#2f9a9a", "#c0436d", "#5b5b5b"]
TEST_STYLES = ["--", ":", "-."]
FAINT, FAINTER = 0.5, 0.25  # of points, and of more than MANY points
MANY = 200
SMOOTHED = 1 / 20  # share of a curve's points that one point of its smoothed form is the mean of
UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


@dataclass
class Run:
    """One training in the picture: its curves, its name, and the color of its lines (None: one for each kind)."""

    log: TrainingLog
    name: str
    color: str | None


@dataclass
class Axis:
    """What lies to the right: iterations, or time in units of `unit` seconds."""

    label: str = "iteration"
    unit: float = 0

    def of(self, curve: Curve, seconds: Curve) -> list[float]:
        """The abscissas of a curve's points; None of them is left out, since time is known where values are."""
        return [seconds[iteration] / self.unit if self.unit else iteration for iteration in sorted(curve)]


def plot(log_paths: Sequence[Path], picture_path: Path, by_time: bool = False) -> None:
    """Draw the curves of logs, fcaffe's or Caffe's, into a picture, which its name makes PNG, PDF or SVG.

    Raises FcaffeError."""
    logs = [read_log(path) for path in log_paths]
    colors = [None] if len(logs) == 1 else [RUN_COLORS[i % len(RUN_COLORS)] for i in range(len(logs))]
    runs = [Run(*made) for made in zip(logs, run_names(log_paths), colors, strict=True)]
    axis = Axis()
    if by_time:
        longest = max(max([0.0, *log.seconds.values()]) for log in logs)
        axis = next(Axis(f"time ({word})", unit) for least, unit, word in UNITS if longest >= least)
    scored = any(scores_of(net) for log in logs for net in log.test_nets.values())
    with new_picture(picture_path, (9, 7.5 if scored else 6)) as figure:
        _draw(figure, runs, axis, scored)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The names of the files, without what all have in common: their ending, and the folders at the beginning."""
    texts = [os.path.splitext(os.fspath(path))[0] for path in paths]
    names = [os.path.basename(text) for text in texts]
    return names if len(set(names)) == len(names) else texts


class new_picture:  # noqa: N801 - used as a context manager
    """A matplotlib figure for the body of the `with` to draw in, written to a file when the body is done."""

    def __init__(self, path: Path, size: tuple[float, float]) -> None:
        self._path = path
        self._format = os.path.splitext(os.fspath(path))[1].lstrip(".").lower()
        if self._format not in FORMATS:
            raise UsageError(f"a picture's name ends in {', '.join(f'.{form}' for form in FORMATS)}, not as {path}")
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as problem:
            raise FcaffeError("plotting needs matplotlib: pip install 'fcaffe[plot]'") from problem
        self._figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(self._figure)

    def __enter__(self) -> Any:
        return self._figure

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with replacing(self._path, "picture") as temporary:
                self._figure.savefig(temporary, dpi=120, format=self._format)


def _draw(figure: Any, runs: list[Run], axis: Axis, scored: bool) -> None:
    heights = [6, 4, 2] if scored else [6, 2]
    upper, *middle, lower = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    figure.suptitle(runs[0].log.net or "training", fontsize=13)
    for run in runs:
        _draw_losses(upper, run, axis, len(runs) > 1)
        for axes in middle:
            _draw_scores(axes, run, axis, len(runs) > 1)
        rate = _to_the_end(run.log)
        label = "learning rate" if run.color is None else f"_{run.name} rate"
        _line(lower, axis, rate, run.log.seconds, label, color=run.color or RATE_COLOR, drawstyle="steps-post")
    upper.set_ylabel("loss")
    scale_wide(upper, [value for run in runs for value in run.log.loss.values()])
    for axes in middle:
        _fit_scores(axes, runs)
    rates = [value for run in runs for value in run.log.rate.values() if math.isfinite(value)]
    if not scale_wide(lower, rates, fine=False):
        lower.set_ylim(0, 1.15 * max(rates, default=1) or 1)
    lower.set_ylabel("learning rate")
    lower.set_xlabel(axis.label)
    if not axis.unit:
        lower.xaxis.get_major_locator().set_params(integer=True)
    for axes in (upper, *middle, lower):
        axes.margins(x=0.02)
        style(axes)
    for axes in (upper, *middle):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)


def style(axes: Any) -> None:
    """A light grid behind the lines, and no frame at the right and above."""
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(color="#999999", labelsize=9)


def _draw_losses(axes: Any, run: Run, axis: Axis, several: bool) -> None:
    """The training loss, smoothed over faint points, and the test losses."""
    log = run.log
    color = run.color or TRAIN_COLOR
    smooth = smoothed(log.loss)
    if smooth != log.loss:
        values = [log.loss[iteration] for iteration in sorted(log.loss)]
        alpha = FAINT if len(values) <= MANY else FAINTER
        axes.scatter(axis.of(log.loss, log.seconds), values, s=7, color=color, alpha=alpha, linewidths=0)
    _line(axes, axis, smooth, log.seconds, run.name if several else "train loss", color=color, linewidth=1.5)
    for number, net in sorted(log.test_nets.items()):
        for index, (label, curve) in enumerate(losses_of_test(net)):
            label = f"{run.name}, {label}" if several else label
            dots = TEST_STYLES[(number + index) % len(TEST_STYLES)] if several or number + index else "-"
            look = {"color": run.color or TEST_COLOR, "linestyle": dots, "marker": "o", "markersize": 3}
            _line(axes, axis, curve, net.seconds, label + _suffix(log, number), **look)


def _draw_scores(axes: Any, run: Run, axis: Axis, several: bool) -> None:
    colors = iter(SCORE_COLORS * 20)
    dots = iter((["-", *TEST_STYLES]) * 20)
    for number, net in sorted(run.log.test_nets.items()):
        for output in scores_of(net):
            last = output.curve[max(output.curve)]
            who = f"{run.name}, {output.name}" if several else f"test {output.name}"
            label = f"{who}{_suffix(run.log, number)}, finally {last:.4g}"
            look = {"color": run.color or next(colors), "linestyle": next(dots) if several else "-"}
            _line(axes, axis, output.curve, net.seconds, label, marker="o", markersize=3, **look)


def _fit_scores(axes: Any, runs: list[Run]) -> None:
    outputs = [output for run in runs for net in run.log.test_nets.values() for output in scores_of(net)]
    axes.set_ylabel("accuracy" if all("accuracy" in output.name for output in outputs) else "score")
    axes.set_ylim(min([0.0, *(value for output in outputs for value in output.curve.values())]), 1.02)


def _suffix(log: TrainingLog, number: int) -> str:
    return f" (test net {number})" if len(log.test_nets) > 1 else ""


def _line(axes: Any, axis: Axis, curve: Curve, seconds: Curve, label: str, **look: Any) -> None:
    if curve:
        axes.plot(axis.of(curve, seconds), [curve[iteration] for iteration in sorted(curve)], label=label, **look)


def smoothed(curve: Curve) -> Curve:
    """Each value with those around it averaged; what is no number stays so, and does not count."""
    iterations = sorted(curve)
    values = np.array([curve[iteration] for iteration in iterations], np.float64)
    reach = int(len(values) * SMOOTHED / 2)
    if reach == 0:
        return curve
    finite = np.isfinite(values)
    sums, counts = (np.cumsum([0.0, *part]) for part in (np.where(finite, values, 0), finite))
    index = np.arange(len(values))
    width = np.minimum(reach, np.minimum(index, index[::-1]))  # the same to both sides, so that nothing leans,
    width = np.maximum(width, reach // 2)  # but for the very ends
    first, last = np.maximum(index - width, 0), np.minimum(index + width + 1, len(values))
    with np.errstate(all="ignore"):
        means = np.where(finite, (sums[last] - sums[first]) / (counts[last] - counts[first]), values)
    return dict(zip(iterations, means.tolist(), strict=True))


def losses_of_test(net: NetCurves) -> list[tuple[str, Curve]]:
    """The test loss that Caffe summed up, or the parts that it logged."""
    if net.loss:
        return [("test loss", net.loss)]
    return [(f"test {output.name}", output.curve) for output in net.outputs.values() if output.is_loss]


def scores_of(net: NetCurves) -> list[Output]:
    """Outputs between 0 and 1 that are no losses. A row of several values of one name, such as accuracies by class, is
    left out."""
    names = [output.name for output in net.outputs.values()]
    return [
        output
        for output in net.outputs.values()
        if not output.is_loss
        and names.count(output.name) == 1
        and all(0 <= value <= 1 for value in output.curve.values())
    ]


def _to_the_end(log: TrainingLog) -> Curve:
    """The learning rate, which stays as it was told last to the end of the training."""
    end = max(log.seconds, default=0)
    return {**log.rate, end: log.rate[max(log.rate)]} if log.rate else {}


def scale_wide(axes: Any, values: list[float], fine: bool = True) -> bool:
    """Make the vertical axis logarithmic if these values show more on one; returns whether they do. A fine one has
    ticks between the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    finite = [value for value in values if math.isfinite(value)]
    if not finite or min(finite) <= 0 or max(finite) <= 20 * min(finite):
        return False
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if fine and max(finite) < 1000 * min(finite) else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return True
