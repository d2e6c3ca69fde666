"""One curve of several trainings in a picture: the eight charts of Caffe's plot_training_log.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fcaffe.errors import FcaffeError
from fcaffe.log.reader import Curve, NetCurves, TrainingLog, read_log
from fcaffe.tools.plot import RUN_COLORS, losses_of_test, new_picture, run_names, scale_wide, scores_of, style

MARKED = 60  # points that a curve may have for each to get a mark


class Points(NamedTuple):
    """A curve, and when each of its values came."""

    curve: Curve
    seconds: Curve


def _test_accuracy(log: TrainingLog) -> Points:
    def curve(net: NetCurves) -> Curve:
        return next((output.curve for output in scores_of(net)), {})

    return _of_first_test_net(log, curve)


def _test_loss(log: TrainingLog) -> Points:
    def curve(net: NetCurves) -> Curve:
        return next((curve for _, curve in losses_of_test(net)), {})

    return _of_first_test_net(log, curve)


def _of_first_test_net(log: TrainingLog, curve: Callable[[NetCurves], Curve]) -> Points:
    """The curve of the first test net that has it."""
    found = ((curve(net), net.seconds) for _, net in sorted(log.test_nets.items()))
    return Points(*next((pair for pair in found if pair[0]), ({}, {})))


_KINDS: dict[str, Callable[[TrainingLog], Points]] = {
    "Test accuracy": _test_accuracy,
    "Test loss": _test_loss,
    "Train learning rate": lambda log: Points(log.rate, log.seconds),
    "Train loss": lambda log: Points(log.loss, log.seconds),
}
CHARTS = [f"{kind} vs. {axis}" for kind in _KINDS for axis in ("Iters", "Seconds")]  # by Caffe's numbers


def draw_chart(chart: int, picture_path: str, log_paths: Sequence[str]) -> None:
    """Draw the chart of this number from each log into one picture. Raises FcaffeError."""
    kind, _, axis = CHARTS[chart].partition(" vs. ")
    logs = [read_log(path) for path in log_paths]
    values: list[float] = []
    with new_picture(picture_path, (9, 5.5)) as figure:
        axes = figure.subplots()
        for index, (log, path, name) in enumerate(zip(logs, log_paths, run_names(log_paths), strict=True)):
            curve, seconds = _KINDS[kind](log)
            if not curve:
                raise FcaffeError(f"{os.fspath(path)} has no {kind.lower()} to draw")
            iterations = sorted(curve)
            values += curve.values()
            axes.plot(
                iterations if axis == "Iters" else [seconds[iteration] for iteration in iterations],
                [curve[iteration] for iteration in iterations],
                label=name,
                color=RUN_COLORS[index % len(RUN_COLORS)],
                linewidth=1.3,
                marker="o" if len(curve) <= MARKED else "",
                markersize=3,
                drawstyle="steps-post" if "rate" in kind else "default",
            )
        if "accuracy" not in kind:
            scale_wide(axes, values)
        axes.set_title(CHARTS[chart], fontsize=12)
        axes.set_xlabel(axis)
        axes.set_ylabel(kind)
        axes.margins(x=0.02)
        style(axes)
        axes.legend(loc="lower right" if "accuracy" in kind else "upper right", frameon=False, fontsize=9)
