"""The picture of a training: loss, test scores and learning rate over the iterations."""

from __future__ import annotations

import math
import os
from typing import Any

from fcaffe.errors import FcaffeError
from fcaffe.log.reader import Curve, NetCurves, Output, TrainingLog, read_log
from fcaffe.output_files import replacing

TRAIN_COLOR, TEST_COLOR, RATE_COLOR = "#9db4cf", "#1f4e8c", "#777777"
LINE_STYLES = ["-", "--", ":", "-."]
SCORE_COLORS = ["#d1642a", "#3f8f4f", "#8a4f9e", "#b8962e", "#2f9a9a", "#c0436d"]


def plot(log_path: str | os.PathLike[str], picture_path: str | os.PathLike[str]) -> None:
    """Draw the curves of a log (fcaffe's or Caffe's) into a PNG. Raises FcaffeError."""
    log = read_log(log_path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise FcaffeError("plotting needs matplotlib: pip install 'fcaffe[plot]'") from problem
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(figure, log)
    with replacing(picture_path, "picture") as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _draw(figure: Any, log: TrainingLog) -> None:
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[7, 2])
    figure.suptitle(log.net or "training", fontsize=13)
    _line(upper, log.loss, "train loss", color=TRAIN_COLOR, linewidth=1.2)
    several = len(log.test_nets) > 1
    scores: list[tuple[str, Curve]] = []
    for number, net in sorted(log.test_nets.items()):
        suffix = f" (test net {number})" if several else ""
        for label, curve in _losses(net):
            style = LINE_STYLES[sum(line.get_color() == TEST_COLOR for line in upper.get_lines()) % len(LINE_STYLES)]
            _line(upper, curve, label + suffix, color=TEST_COLOR, linestyle=style, marker="o", markersize=3)
        scores += [(f"test {output.name}{suffix}", output.curve) for output in _scores(net)]
    upper.set_ylabel("loss")
    if _positive_and_wide(log.loss):
        upper.set_yscale("log")
    lines = upper.get_lines()
    if scores:
        right = upper.twinx()
        for (label, curve), color in zip(scores, SCORE_COLORS, strict=False):
            last = curve[max(curve)]
            _line(right, curve, f"{label}, finally {last:.4g}", color=color, marker="o", markersize=3)
        right.set_ylim(0, 1.02)
        right.set_ylabel("accuracy" if all("accuracy" in label for label, _ in scores) else "score")
        right.spines["top"].set_visible(False)
        lines = [*lines, *right.get_lines()]
    figure.legend(lines, [line.get_label() for line in lines], loc="outside lower center", ncols=3, frameon=False)
    _line(lower, log.rate, "learning rate", color=RATE_COLOR, drawstyle="steps-post")
    if _positive_and_wide(log.rate):
        lower.set_yscale("log")
    else:
        lower.set_ylim(0, 1.15 * max(log.rate.values(), default=1) or 1)
    lower.set_ylabel("learning rate")
    lower.set_xlabel("iteration")
    lower.xaxis.get_major_locator().set_params(integer=True)
    for axes in (upper, lower):
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines["top"].set_visible(False)


def _line(axes: Any, curve: Curve, label: str, **style: Any) -> None:
    if curve:
        iterations = sorted(curve)
        axes.plot(iterations, [curve[iteration] for iteration in iterations], label=label, **style)


def _losses(net: NetCurves) -> list[tuple[str, Curve]]:
    """The test loss that Caffe summed up, or the parts that it logged."""
    if net.loss:
        return [("test loss", net.loss)]
    return [(f"test {output.name}", output.curve) for output in net.outputs.values() if output.is_loss]


def _scores(net: NetCurves) -> list[Output]:
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


def _positive_and_wide(curve: Curve) -> bool:
    """Whether a logarithmic axis shows more."""
    values = [value for value in curve.values() if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)
