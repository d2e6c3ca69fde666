"""Charts of a prediction: one sum over the workers, as Figure 4 of FireCaffe's paper, and an iteration's parts, as
Figure 1 of its supplement."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fcaffe.plan.prediction import Prediction
from fcaffe.tools.plot import new_picture, scale_wide, style

DRAWN = {"server": ("parameter server", "#d1642a"), "tree": ("tree", "#2f6db3"), "ring": ("ring", "#3f8f4f")}


def draw(prediction: Prediction, counts: Sequence[int], path: str | os.PathLike[str]) -> None:
    """Parameter server against tree against ring, for these numbers of workers from 2 on. Raises FcaffeError."""
    most = max([2, *counts])
    powers = [1 << step for step in range(1, most.bit_length() + 1) if 1 << step <= most]
    workers = sorted({*powers, *(count for count in counts if count > 1)})
    with new_picture(path, (11, 4.8)) as figure:
        left, right = figure.subplots(1, 2)
        asked = prediction.question
        title = f"{asked.work.name or 'net'} on {asked.machine.name}"
        figure.suptitle(f"{title}, {asked.batch:,} images {'a worker' if asked.per_worker else 'in all'}", fontsize=13)
        _draw_sums(left, prediction, workers)
        _draw_parts(right, prediction, workers)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(workers if len(workers) <= 9 else workers[:: (len(workers) + 8) // 9])
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
            axes.set_xlabel("workers")
            style(axes)
            axes.legend(frameon=False, fontsize=9)


def _draw_sums(axes: Any, prediction: Prediction, workers: Sequence[int]) -> None:
    every = []
    for name, (label, color) in DRAWN.items():
        seconds = [1e3 * prediction.row(count, name).communication for count in workers]
        every += seconds
        axes.plot(workers, seconds, marker="o", markersize=3, color=color, label=label)
    axes.set_title(f"All sums of an iteration: {prediction.question.work.gradient_bytes / 1e6:.1f} MB", fontsize=11)
    axes.set_ylabel("time (ms)")
    if not scale_wide(axes, every):
        axes.set_ylim(bottom=0)


def _draw_parts(axes: Any, prediction: Prediction, workers: Sequence[int]) -> None:
    compute = [prediction.row(count, "ring").compute for count in workers]
    every = list(compute)
    axes.plot(workers, compute, color="#222222", linestyle="--", linewidth=1.2, zorder=5, label="computing alone")
    for name, (label, color) in DRAWN.items():
        seconds = [prediction.row(count, name).seconds for count in workers]
        every += seconds
        axes.plot(workers, seconds, marker="o", markersize=3, color=color, label=label)
    how = "overlapping backward" if prediction.question.overlap else "without overlap"
    axes.set_title(f"An iteration, sums {how}", fontsize=11)
    axes.set_ylabel("time (s)")
    if not scale_wide(axes, every):
        axes.set_ylim(bottom=0)
